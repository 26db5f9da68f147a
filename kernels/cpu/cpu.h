// What Go and the engines share: constants, the structs of a call, and epg_engine, the table of an
// engine's functions. cpu.go mirrors the structs; every header with functions includes this one.
//
// Go decides which engine runs, how work is cut into tasks, and which threads may take them
// (tasks.h). C allocates nothing and remembers nothing.
#pragma once

#ifdef _WIN32
#error "epigrad has no C kernels for Windows: build with CGO_ENABLED=0, which gives the portable engine, or build in WSL 2"
#endif

#include <stdint.h>

#include "../../go/backend/program.h"  // EPG_MOST_PARAMETERS

enum {
  // EPG_OUTPUTS tensors that a kernel writes come first among its operands, EPG_INPUTS that it
  // reads follow. Any may be absent.
  EPG_OUTPUTS = 3,
  EPG_INPUTS = 5,
  EPG_OPERANDS = EPG_OUTPUTS + EPG_INPUTS,
  EPG_MOST_RANK = 16,
  // EPG_GROUP elements are what a kernel is called for at least: a multiple of every register's
  // width.
  EPG_GROUP = 16,
  // EPG_BLOCK is the most elements that are computed at a time for sums. Without sums a block holds
  // as many elements as fit into EPG_BLOCK doubles.
  EPG_BLOCK = 512,
  // The instruction for pairs multiplies two panels if the exponents of their smallest numbers, as
  // they are stored, sum to EPG_LEAST_EXPONENTS or more (gemm.h).
  EPG_LEAST_EXPONENTS = 2 * 127 - 100,
  // EPG_PANELS is the most panels that are packed at a time.
  EPG_PANELS = 8,
  // EPG_PAIRS is the most pairs whose operands are packed together.
  EPG_PAIRS = 4,
};

// epg_kernel computes n elements, a multiple of EPG_GROUP, of contiguous operands. Absent outputs
// are NULL. wide are the values of the outputs before they are rounded, for sums: floats of half
// types, else doubles. parameters are the operation's: EPG_MOST_PARAMETERS of them.
typedef void epg_kernel(int64_t n, char *const *out, char *const *wide, const char *const *in, const double *parameters);

// epg_loops is a walk over several tensors of one shape, whose last dimension is the innermost
// loop. Strides are in bytes.
typedef struct {
  int64_t element_size, rank;
  int64_t shape[EPG_MOST_RANK];
  int64_t strides[EPG_OPERANDS][EPG_MOST_RANK];
} epg_loops;

// epg_axis is one index of a matrix: dimensions that are walked in row-major order as one. Strides
// are in bytes.
typedef struct {
  int64_t rank, length;
  int64_t sizes[EPG_MOST_RANK], strides[EPG_MOST_RANK];
} epg_axis;

// epg_form is how operands of a product are packed: converted to what sums are kept in; as pairs of
// bfloat16, two of the depth in one word; or as tiles of such pairs (gemm_amx.h), of which float16
// needs twice as many.
typedef enum { EPG_FLOAT32, EPG_FLOAT64, EPG_BFLOAT16, EPG_FLOAT16, EPG_BFLOAT16_PAIRS, EPG_BFLOAT16_TILES, EPG_FLOAT16_TILES, EPG_FORMS } epg_form;

// epg_operand is the left or the right operand of a product, a matrix of rows x depth, of which
// `count` rows from `row` on and `depth` elements from `first` on are packed: panels of `width`
// rows, whose elements (or pairs) at one depth are neighbours, but in tiles, and where the left
// operand's panels are halves, one behind the other (gemm.h). Rows that are missing from the last
// panel are zeros, or not there, by whole registers. `again` says that sums have been begun with
// other parts, packed before to the same place. Where several pairs are packed, a panel
// has `before` words of the pairs before this one, and `after` words of those behind it.
typedef struct {
  epg_axis rows, columns;
  int64_t form, width, left, again;
  int64_t row, count, first, depth, before, after;
} epg_operand;

// epg_result is a matrix that is written. Strides are in bytes.
typedef struct {
  epg_axis rows;
  int64_t column_stride;
} epg_result;

// epg_tile is a product of packed panels and what becomes of it:
//
//   sums = left rightᵀ (+ sums, unless it is the first part of the depth)
//
// and if it is the last part:
//
//   pre = sums + bias,  out = act(pre) (+ out, with accumulate)
//
// With `plain`, out is the sums: it has their type, rows an even stride apart, whose columns are
// neighbours, and there is no more to do.
//
// Everything is of one tile of `rows` x `columns`, whose place in the results is (row, column).
// Sums have a row stride of `stride` elements, room for whole panels, and the accumulator's type.
// `exchanged` says that left was to be the right operand, and that the bits are to be those of
// right leftᵀ.
typedef struct {
  int64_t form, units;  // the depth as it is packed, in words of a sum's size
  int64_t rows, columns, stride;
  int64_t first, last, accumulate, exchanged, plain;
  // by what power of two the products of packed numbers are larger than they should be
  // (denormals.h)
  int64_t lifted;
  int64_t row, column;
  int64_t size, sum_size;  // bytes of an element, of a sum
  int64_t bias_stride;
  double parameters[EPG_MOST_PARAMETERS];
  epg_result out, pre;
  epg_kernel *add, *store, *value;
} epg_tile;

// epg_cut is how a block is cut into down x across tiles, as even as whole units of rows and
// columns are, numbered row by row or column by column. Sums lie `scratch` bytes apart for each
// thread, or, where that is 0, together for the whole block. `refuse` says when a block is packed
// but not multiplied: where numbers are so small that operands had better be lifted first, or
// always. `pairs` says that they are in the form of pairs.
//
// With `panels` tiles are strips: of rows with all columns, row by row, or of columns with all
// rows. Each packs its own panels of the left or of the right operand, EPG_PANELS at most, so many
// bytes behind its sums' start; only the other operand is packed before.
//
// With `round` tiles are strips of columns with all rows, which are few: the right operand is not
// packed at all (epg_engine.multiply_few).
enum { EPG_NEVER, EPG_WHERE_SMALL, EPG_ALWAYS };
typedef struct {
  int64_t down, across, row_unit, column_unit, row_by_row, scratch, panels, round, refuse, pairs;
} epg_cut;

// epg_sums is a pass that sums outputs of a kernel over some dimensions of its operands. `dtype` is
// the kernel's, `result` the sums' (forms as they lie in memory). For each index over `outer`,
// dimensions that stay, `kept` elements are summed in pieces of `piece` at most, each in `chunks`
// parts. Results are walked by `to`, over all that stays.
//
// Without `lanes` a task adds the elements of `inner` that belong to its piece, for the chunk's
// part of `rows_count` rows. It adds `terms` runs of `run` elements to `run` totals; if there are
// several rows, it adds each element to a total of its own.
//
// With `lanes`, `inner` holds `rows_count` runs, whose `run` elements stay. A task adds the
// elements of its chunk in turn to `lanes` totals. Every `run`th total belongs to the same sum.
//
// A task has `width` totals for each output that is summed, and `width` doubles behind them (sums).
typedef struct {
  int64_t dtype, result, accumulate;
  int64_t summed[EPG_OUTPUTS];  // 0 or 1
  int64_t rows_count, kept, piece, pieces, chunks;
  int64_t run, terms, lanes, width;
  // the most elements that are computed at a time, from a run's first on; 0 where that is all the
  // same
  int64_t block;
  epg_loops outer, rows, inner, to;
} epg_sums;

// epg_crew is the threads that share a call's tasks, `members` at most. Each takes tasks until none
// is left. With `parallel`, the entry of an OpenMP runtime, they belong to its team of `team`
// threads. Without it they are the threads that make the call.
enum { EPG_LISTS = 3, EPG_STRETCHES = 16 };
typedef struct {
  void (*parallel)(void (*member)(void *), void *data, unsigned threads, unsigned flags);
  int64_t team, members;
  // atomic: threads that are there; of a product, the tasks of packing that are done, and whether
  // it has to be lifted first; the tasks that are taken, by list and stretch (tasks.c)
  int64_t joined, packed, refused;
  int64_t next[EPG_LISTS][EPG_STRETCHES];
} epg_crew;

// epg_panels are packed operands, from a tile's first row and column on, and what packing found out
// about each panel (epg_engine.pack).
typedef struct {
  const char *left, *right;
  const int16_t *left_smallest, *right_smallest;
} epg_panels;

// epg_memory is where a product's sums are, and its matrices, NULL for absent ones.
typedef struct {
  char *sums, *out, *pre;
  const char *bias;
} epg_memory;

typedef struct {
  const char *name;  // "gated_backward_silu_bf16"
  epg_kernel *run;
} epg_entry;

typedef struct {
  struct {
    const epg_entry *entries;
    int64_t count;
  } kernels[4];  // by dtype
  // elementwise computes the elements [first, first+count) of a walk.
  void (*elementwise)(epg_kernel *, const epg_loops *, int64_t first, int64_t count, const double *parameters, char *const *at);
  // sum adds up one task of a pass, and overwrites its totals. finish_sums makes the results of a
  // column, which is a piece of an index over outer, from the totals of its chunks, which lie one
  // behind the other.
  void (*sum)(epg_kernel *, const epg_sums *, int64_t task, const double *parameters, char *const *at, double *totals);
  void (*finish_sums)(const epg_sums *, int64_t column, double *totals, char *const *to);
  // A tile is made of panels of left_width rows of the left operand and right_width of the right
  // one, by form (0 where the engine lacks a form).
  int64_t left_width[EPG_FORMS], right_width[EPG_FORMS];
  // pack packs `count` panels, EPG_PANELS at most, from `panel` on to where the first panel of all
  // lies. smallest gets, of pairs and tiles, the exponent of each panel's smallest number that is
  // not zero, or zero where there is another reason not to multiply pairs; of other forms zero
  // where a number is denormal.
  void (*pack)(const epg_operand *, int64_t panel, int64_t count, const char *from, char *to, int16_t *smallest);
  // largest returns the exponent of the largest magnitude among numbers of a form's panels; lift
  // multiplies them by a power of two. Bytes are whole registers.
  int64_t (*largest)(int64_t form, const char *from, int64_t bytes);
  void (*lift)(int64_t form, char *at, int64_t bytes, int64_t powers);
  void (*multiply)(const epg_tile *, const epg_panels *, const epg_memory *);
  // multiply_few adds up a tile's sums, of few rows of a packed left operand and of a right one
  // that is read where it lies: `count` rows from `row` on. Behind the sums there is room for as
  // many again. A block of many rows would have `round` words of the depth at a time. It returns
  // what pack tells of a panel. finish makes results of the sums.
  int16_t (*multiply_few)(const epg_tile *, const epg_operand *right, const char *from, const char *left, char *sums, int64_t round);
  void (*finish)(const epg_tile *, const epg_memory *);
} epg_engine;

extern const epg_engine epg_engine_neon, epg_engine_avx2, epg_engine_avx512, epg_engine_avx512bf16, epg_engine_amx, epg_engine_amx_emulated;
