// The CPU engines: one table for each instruction set, of the same functions compiled for it (engine.h). Go decides which instruction set the machine has,
// what a task is and on which thread it runs; nothing here allocates, and nothing is remembered.
#pragma once

#include <stdint.h>

enum {
  // EPG_OUTPUTS tensors that a kernel writes come first among its operands, EPG_INPUTS that it reads follow. Any may be absent.
  EPG_OUTPUTS = 3,
  EPG_INPUTS = 4,
  EPG_OPERANDS = EPG_OUTPUTS + EPG_INPUTS,
  EPG_MOST_RANK = 16,
  // EPG_GROUP elements are what a kernel is called for at least: a multiple of every register's width.
  EPG_GROUP = 16,
  // EPG_BLOCK is the most elements of a run that are gathered, or summed, at a time.
  EPG_BLOCK = 512,
};

// epg_kernel computes n elements, a multiple of EPG_GROUP, of contiguous operands. Absent outputs are NULL. wide are doubles: the values of the outputs before
// they are rounded, for sums. numbers are the operation's parameters.
typedef void epg_kernel(int64_t n, char *const *out, double *const *wide, const char *const *in, const double *numbers);

// epg_loops is a walk over several tensors of one shape, whose last dimension is the innermost loop. Strides are in bytes.
typedef struct {
  int64_t element_size, rank;
  int64_t shape[EPG_MOST_RANK];
  int64_t strides[EPG_OPERANDS][EPG_MOST_RANK];
} epg_loops;

// epg_run is a run of elements along one dimension. Strides are in bytes.
typedef struct {
  int64_t element_size, count;
  int64_t strides[EPG_OPERANDS];
} epg_run;

typedef struct {
  const char *name;  // "gated_backward_silu_bf16"
  epg_kernel *run;
} epg_entry;

typedef struct {
  const char *name;
  struct {
    const epg_entry *entries;
    int64_t count;
  } kernels[4];  // by dtype
  // elementwise computes the elements [first, first+count) of a walk.
  void (*elementwise)(epg_kernel *, const epg_loops *, int64_t first, int64_t count, const double *numbers, char *const *at);
  // sum_rows adds, for each row [first, first+count) of a walk, a run of terms to as many columns; sum_all adds all terms to EPG_GROUP lanes. Sums are pairs of
  // arrays: totals, and behind them the errors of their additions (Knuth's two-sum). sums[i] is NULL where output i is not summed.
  void (*sum_rows)(epg_kernel *, const epg_loops *rows, const epg_run *, int64_t first, int64_t count, const double *numbers, char *const *at,
                   double *const *sums);
  void (*sum_all)(epg_kernel *, const epg_loops *, int64_t first, int64_t count, const double *numbers, char *const *at, double *const *sums);
} epg_engine;

extern const epg_engine epg_engine_avx2, epg_engine_avx512;
