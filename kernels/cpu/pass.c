//go:build amd64 || arm64

// Programs of one walk, for calls so small that the way through Go would be a large part of their
// time.
#include <stdlib.h>
#include <string.h>

#include "tasks.h"

typedef struct {
  epg_program program;
  const epg_engine *engine;
  epg_kernel *kernel;
  epg_loops loops;
  int64_t count, operand[EPG_OPERANDS], offset[EPG_OPERANDS];
} pass;

static int run(const epg_program *program, const uint64_t *bases, const epg_run_arguments *arguments, epg_failure *failure) {
  const pass *p = (const pass *)program;
  char *at[EPG_OPERANDS];
  for (int i = 0; i < EPG_OPERANDS; i++) at[i] = p->operand[i] < 0 ? NULL : (char *)(uintptr_t)bases[p->operand[i]] + p->offset[i];
  p->engine->elementwise(p->kernel, &p->loops, 0, p->count, arguments->parameters, at);
  return 0;
}

epg_program *epg_pass(const epg_engine *e, epg_kernel *k, const epg_loops *l, int64_t count, const int64_t *operand, const int64_t *offset) {
  pass *p = malloc(sizeof *p);
  if (!p) return NULL;
  *p = (pass){{"cpu", run}, e, k, *l, count, {0}, {0}};
  memcpy(p->operand, operand, sizeof p->operand);
  memcpy(p->offset, offset, sizeof p->offset);
  return &p->program;
}
