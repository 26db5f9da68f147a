/* What the C and Go halves of the bridge say to each other. */
#ifndef EPG_BRIDGE_H
#define EPG_BRIDGE_H

#include "epigrad.h"
#include "program.h"

void epg_set_last_error(const char *text, size_t length, int64_t needed, int64_t got);

/* Records the failure of a call in a forked child and returns its status. */
int32_t epg_refuse_forked(void);

/* A call's kernel, for a caller that makes calls of one geometry again and again (program.c). Where it has a program C runs that, and Go, which takes longest to wake up
 * where little else is done, sleeps on. */
typedef struct {
  uintptr_t kernel;           /* 0: none, each call is Go's to check */
  const epg_program *program; /* the kernel's; NULL: it is Go's to run */
  uint64_t age;               /* epg_programs_age() when it was chosen */
  uint64_t workspace_nbytes;  /* what it needs, and from a multiple of what */
  uint64_t workspace_alignment;
} epg_prepared;

/* Prepares calls of the geometry of one that would run. */
int32_t epg_prepare(const epg_call *call, epg_prepared *prepared);
void epg_prepared_release(epg_prepared *prepared);
/* Runs a call of that geometry, whose outputs are new memory; returns a status, or -1, and has done nothing, where only epg_run can say what is wrong. */
int32_t epg_prepared_run(const epg_prepared *prepared, const epg_call *call);
/* A number that grows when other kernels may be chosen from now on. */
uint64_t epg_programs_age(void);
void epg_programs_grow_old(void);

#endif
