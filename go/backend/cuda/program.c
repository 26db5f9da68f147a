/* Programs: enqueueing their steps. */
#include <stdlib.h>
#include <string.h>

#include "libraries.h"

enum { VECTOR_BYTES = 16, MOST_PARAM_BYTES = 4096 };

/* One run. */
typedef struct {
  const epg_device *device;
  const uint64_t *bases;
  const epg_run_arguments *arguments;
  void *stream;
} execution;

static uint64_t address(const epg_pointer *p, const execution *run) {
  const uint64_t base = p->operand < 0 ? run->arguments->workspace : run->bases[p->operand];
  return base ? base + (uint64_t)p->offset : 0;
}

static int run_launch(const epg_step *s, const execution *run, epg_failure *failure) {
  const epg_launch *l = &s->vector;
  for (uint32_t i = 0; l->function && i < l->num_pointers; i++)
    if (address(&l->pointers[i], run) % VECTOR_BYTES) l = &s->general;
  if (!l->function) l = &s->general;
  _Alignas(64) uint8_t params[MOST_PARAM_BYTES];
  size_t bytes = l->param_bytes;
  memcpy(params, l->params, bytes);
  for (uint32_t i = 0; i < l->num_pointers; i++) {
    const uint64_t value = address(&l->pointers[i], run);
    memcpy(params + l->pointers[i].at, &value, sizeof value);
  }
  if (l->parameters >= 0) memcpy(params + l->parameters, run->arguments->parameters, sizeof run->arguments->parameters);
  if (l->accumulate >= 0) memcpy(params + l->accumulate, &run->arguments->accumulate, sizeof run->arguments->accumulate);
  for (uint32_t i = 0; i < l->num_maps; i++) {
    enum { NO_INTERLEAVE = 0, SWIZZLE_128B = 3, L2_PROMOTION_256B = 3, ZEROS = 0 };
    const epg_tensor_map *m = &l->maps[i];
    const unsigned steps[EPG_MAP_RANK] = {1, 1, 1, 1};
    DRIVER(cuTensorMapEncodeTiled, params + m->pointer.at, m->type, (unsigned)m->rank, (void *)(uintptr_t)address(&m->pointer, run), m->sizes, m->strides,
           m->box, steps, NO_INTERLEAVE, SWIZZLE_128B, L2_PROMOTION_256B, ZEROS);
  }
  void *kernel_params[] = {params};
  if (l->early) {
    enum { PROGRAMMATIC_STREAM_SERIALIZATION = 6 };
    epg_launch_attribute attribute = {.id = PROGRAMMATIC_STREAM_SERIALIZATION, .value.flag = 1};
    const epg_launch_config config = {{l->grid[0], l->grid[1], l->grid[2]}, {l->block[0], l->block[1], l->block[2]}, l->shared, run->stream, &attribute, 1};
    DRIVER(cuLaunchKernelEx, &config, l->function, kernel_params, NULL);
    return 0;
  }
  DRIVER(cuLaunchKernel, l->function, l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1], l->block[2], l->shared, run->stream, kernel_params, NULL);
  return 0;
}

static int run_matmul(epg_matmul *m, const execution *run, epg_failure *failure) {
  epg_matmul_addresses at = {.bias = m->has_bias ? address(&m->bias, run) : 0, .scratch = address(&m->scratch, run)};
  uint64_t all = 0;
  for (int i = 0; i < EPG_MATRICES; i++) all |= at.matrices[i] = address(&m->pointers[i], run);
  if (at.bias % VECTOR_BYTES) {
    const uint64_t copy = address(&m->aligned_bias, run);
    DRIVER(cuMemcpyDtoDAsync, copy, at.bias, m->bias_bytes, run->stream);
    at.bias = copy;
  }
  const int adds = m->adds == EPG_ALWAYS || (m->adds == EPG_IF_ACCUMULATING && run->arguments->accumulate);
  return epg_matmul_enqueue(run->device, m, &m->choices[all % VECTOR_BYTES != 0], &at, adds, run->stream, failure);
}

static int run_step(epg_step *s, const execution *run, epg_failure *failure) {
  switch (s->kind) {
    case EPG_LAUNCH:
      return run_launch(s, run, failure);
    case EPG_MATMUL:
      return run_matmul(&s->matmul, run, failure);
    case EPG_FILL:
      DRIVER(cuMemsetD8Async, address(&s->fill, run), 0, s->fill_bytes, run->stream);
  }
  return 0;
}

/* Whether all operands of launches that copy boxes start where boxes may. */
static int are_boxable(const epg_cuda_program *p, const execution *run) {
  uint64_t all = 0;
  for (int32_t i = 0; i < p->count; i++) {
    const epg_launch *l = &p->steps[i].general;
    for (uint32_t j = 0; j < l->num_maps; j++) all |= address(&l->maps[j].pointer, run);
    for (uint32_t j = 0; l->num_maps && j < l->num_pointers; j++) all |= address(&l->pointers[j], run);
  }
  return all % VECTOR_BYTES == 0;
}

static int run_program(const epg_program *program, const uint64_t *bases, const epg_run_arguments *arguments, epg_failure *failure) {
  const epg_cuda_program *p = (const epg_cuda_program *)program;
  const execution run = {p->device, bases, arguments, (void *)(uintptr_t)arguments->stream};
  const int entered = epg_enter(p->device, failure);
  if (entered < 0) return -1;
  int failed = 0;
  const uint32_t is = (arguments->accumulate ? EPG_ACCUMULATING : EPG_OVERWRITING) | (are_boxable(p, &run) ? EPG_BOXABLE : EPG_NOT_BOXABLE);
  for (int32_t i = 0; i < p->count && !failed; i++)
    if (!(p->steps[i].unless & is)) failed = run_step(&p->steps[i], &run, failure);
  epg_leave(entered);
  return failed;
}

epg_cuda_program *epg_cuda_program_create(const epg_device *device, int32_t count) {
  epg_cuda_program *p = calloc(1, sizeof *p);
  epg_step *steps = calloc(count > 0 ? (size_t)count : 1, sizeof *steps);
  if (!p || !steps) abort(); /* as Go does */
  *p = (epg_cuda_program){{"cuda", run_program}, device, steps, count};
  return p;
}

void epg_cuda_program_destroy(epg_cuda_program *p) {
  for (int32_t i = 0; i < p->count; i++) epg_matmul_destroy(&p->steps[i].matmul);
  free(p->steps);
  free(p);
}

/* Programs for one problem, and where they compute. */
typedef struct {
  epg_cuda_program *const *programs;
  uint64_t bases[EPG_BENCH_BUFFERS];
  epg_run_arguments arguments;
} contest;

static int run_candidate(void *self, int which, void *stream) {
  contest *c = self;
  epg_failure ignored;
  c->arguments.stream = (uint64_t)(uintptr_t)stream;
  return run_program(&c->programs[which]->program, c->bases, &c->arguments, &ignored);
}

int epg_cuda_fastest(epg_cuda_program *const *programs, int count, const uint64_t *operand_bytes, int operands, uint64_t workspace_bytes) {
  const float round = 10; /* enough for the clock that a GPU keeps up */
  contest c = {.programs = programs};
  epg_bench b;
  epg_failure ignored;
  const int entered = epg_enter(programs[0]->device, &ignored);
  if (entered < 0) return -1;
  const int mode = epg_relax_capture();
  int failed = epg_bench_open(&b, &ignored) || epg_bench_allocate(&b, workspace_bytes, &c.arguments.workspace, &ignored);
  for (int i = 0; i < operands && !failed; i++) failed = epg_bench_allocate(&b, operand_bytes[i], &c.bases[i], &ignored);
  const int winner = failed ? -1 : epg_bench_fastest(&b, run_candidate, &c, count, round);
  epg_bench_close(&b);
  epg_restore_capture(mode);
  epg_leave(entered);
  return winner;
}
