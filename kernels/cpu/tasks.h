// The functions that Go calls: each runs the tasks of one call on an engine, which a crew's threads
// share. engine_cgo.go includes this; tasks.c has the functions.
//
// Every address is an argument, or a member of one that is passed by value, never of a struct in
// Go's memory: so cgo knows, and pins, the Go memory among them; and none is a void *, in whose
// memory cgo would look for pointers on each call. A crew shares the tasks of a call without Go:
// while all of Go's threads compute in C, its runtime would wake up every few microseconds to look
// after them, for each of many short calls, on processors that are busy.
#pragma once

#include "cpu.h"

// The first elements of a kernel's operands, NULL for absent ones.
typedef struct {
  char *at[EPG_OPERANDS];
} epg_addresses;

// Elements are computed `each` at a time.
void epg_elementwise(const epg_engine *, epg_crew *, epg_kernel *, const epg_loops *, int64_t first, int64_t count, int64_t each, const double *parameters,
                     epg_addresses);

// The tensors that outputs are summed to, NULL for absent ones.
typedef struct {
  char *at[EPG_OUTPUTS];
} epg_targets;
// With one chunk, `totals` has room for one task of each member of the crew. With several chunks it
// has room for every task, and `done`, which starts as zeros, counts each column's tasks that
// ended.
void epg_sum(const epg_engine *, epg_crew *, epg_kernel *, const epg_sums *, int64_t columns, const double *parameters, epg_addresses, epg_targets to,
             double *totals, int32_t *done);

// epg_packing is an operand of each pair that is packed, and where it lies; then NULL, and nothing
// else if all have been packed before. Their panels go to `to`, one behind the other, and what is
// found out about them to `smallest` (epg_engine.pack).
typedef struct {
  const epg_operand *operand[EPG_PAIRS];
  const char *from[EPG_PAIRS];
  char *to;
  int16_t *smallest;
} epg_packing;
// epg_product packs operands, and multiplies when all is packed. Where the cut refuses, it only
// packs, and the crew says so.
void epg_product(const epg_engine *, epg_crew *, epg_packing left, epg_packing right, const epg_tile *block, const epg_cut *, epg_memory);

// epg_largest returns the exponent of the largest magnitude among packed numbers; epg_lift
// multiplies them by a power of two. The numbers are the first `bytes` of each of `rows`, a stride
// apart.
int64_t epg_largest(const epg_engine *, epg_crew *, int64_t form, const char *from, int64_t rows, int64_t bytes, int64_t stride);
void epg_lift(const epg_engine *, epg_crew *, int64_t form, char *at, int64_t rows, int64_t bytes, int64_t stride, int64_t powers);

// epg_pass is a program of one walk, which a caller's thread runs without Go. Operands that are not
// absent lie `offset` bytes behind the address of the call's operand of a number; of absent ones
// that is negative. free() ends it.
epg_program *epg_pass(const epg_engine *, epg_kernel *, const epg_loops *, int64_t count, const int64_t *operand, const int64_t *offset);

// On amd64 only, in processor_amd64.c:
//
// epg_request_amx asks the system for AMX's registers, for the whole process, and returns 0 or an
// error's number.
int epg_request_amx(void);

// epg_slow_with_denormals tells that this processor multiplies denormal numbers a hundred times as
// slowly as others: Intel's do.
int epg_slow_with_denormals(void);
