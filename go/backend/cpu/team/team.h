#pragma once

#include <stdint.h>

/* Whether this process has PyTorch and the interface of its OpenMP runtime. */
int epg_find_team(void);

/* Calls epgTeamMember(member) on each thread of a team. */
void epg_run_team(uintptr_t member, unsigned threads);
