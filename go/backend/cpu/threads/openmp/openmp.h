#pragma once

#include <stdint.h>

typedef void epg_parallel(void (*member)(void *), void *data, unsigned threads, unsigned flags);

/* What compilers call for a parallel region, of the OpenMP runtime that this process's PyTorch has:
 * GCC's runtime and LLVM's both have it. NULL without PyTorch. */
epg_parallel *epg_find_team(void);

/* Calls epgTeamMember(member) on each thread of a team. */
void epg_run_team(epg_parallel *, uintptr_t member, unsigned threads);
