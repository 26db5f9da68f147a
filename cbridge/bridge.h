/* What the C and Go halves of the bridge say to each other. */
#ifndef EPG_BRIDGE_H
#define EPG_BRIDGE_H

#include "epigrad.h"

void epg_set_last_error(const char *text, size_t length, int64_t needed, int64_t got);

/* Records the failure of a call in a forked child and returns its status. */
int32_t epg_refuse_forked(void);

#endif
