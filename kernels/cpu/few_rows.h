// Products of few rows, whose right operand is read where it lies, in each of the forms that an
// engine has. gemm.h includes it.
#pragma once

#include "pack.h"

// The most rows.
enum { few_most = 8 };

// So many registers of columns are read at a time where the depth is contiguous: their sums do not
// wait for each other.
enum { few_columns = 2, few_ahead = 256 };

// few_rows is a tile whose right operand has not been packed. Behind its sums there is room for as
// many again, those of a part of the depth.
typedef struct {
  const epg_operand *right;
  const char *from, *left;
  char *sums;
  int64_t form, rows, stride, units;  // as the tile's
  int64_t round;                      // words of the depth that a block of many rows has at a time
} few_rows;

// depth_step is some words of the depth, [unit, unit + units), which one part of it has. They may
// be the first or the last ones of the part, and the part the first one of all.
typedef struct {
  int64_t unit, units, end;
  int begins, ends, is_first;
} depth_step;

// next_step returns the step behind another one, of `most` words at most. The first one of all
// follows (depth_step){0}.
INLINE depth_step next_step(few_rows f, depth_step at, int64_t most) {
  const int64_t unit = at.unit + at.units;
  depth_step next = {.unit = unit, .end = at.end, .begins = unit == at.end, .is_first = at.end == 0 || (at.is_first && unit < at.end)};
  if (next.begins) {  // a part
    const int64_t round = unit / f.round * f.round, of_round = least(f.round, f.units - round);
    next.end = least(unit + depth_of_part(f.form, of_round), round + of_round);
  }
  next.units = least(most, next.end - unit);
  next.ends = unit + next.units == next.end;
  return next;
}

INLINE int is_contiguous(const epg_axis *a, int64_t bytes) { return a->rank == 1 && a->strides[0] == bytes; }

#define f32_target TARGET
#define f64_target TARGET
#define bf16_target TARGET
#define f16_target TARGET
#define f32_fuse f_fma
#define f64_fuse d_fma
#define bf16_fuse f_fma
#define f16_fuse f_fma

#define FORM f32
#include "few_squares.h"
#define FORM f64
#include "few_squares.h"
#define FORM bf16
#include "few_squares.h"
#define FORM f16
#include "few_squares.h"
#ifdef PAIRS
#define pairs_target TARGET_PAIRS
#define pairs_fuse f_fuse_pairs
#define FORM pairs
#include "few_squares.h"
#endif

// A processor's flags tell whether it has read a denormal number, which takes no time. Sums count
// too, but without denormal operands they are hardly ever denormal. Where there are no such flags,
// nothing is known.
#ifdef __x86_64__
enum { saw_denormal = 2 };
INLINE unsigned watch_denormals(void) {
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before & ~saw_denormal);
  return before;
}
INLINE int saw_denormals(unsigned before) {
  const unsigned now = _mm_getcsr();
  _mm_setcsr(before | now);
  return now & saw_denormal;
}
#else
INLINE unsigned watch_denormals(void) { return 0; }
INLINE int saw_denormals(unsigned before) { return 1; }
#endif

#ifdef AMX
#include "few_tiles.h"
#endif

// multiply_few adds up the sums of a tile of few rows, and returns what packing its right operand
// would tell of its numbers.
TARGET static int16_t multiply_few(const epg_tile *t, const epg_operand *right, const char *from, const char *left, char *sums, int64_t round) {
  static int16_t (*const forms[EPG_FORMS])(few_rows) = {
      [EPG_FLOAT32] = few_rows_f32,
      [EPG_FLOAT64] = few_rows_f64,
      [EPG_BFLOAT16] = few_rows_bf16,
      [EPG_FLOAT16] = few_rows_f16,
#ifdef PAIRS
      [EPG_BFLOAT16_PAIRS] = few_rows_pairs,
#endif
#ifdef AMX
      [EPG_BFLOAT16_TILES] = few_rows_bf16_tiles,
      [EPG_FLOAT16_TILES] = few_rows_f16_tiles,
#endif
  };
  const unsigned before = watch_denormals();
  const int16_t told = forms[t->form]((few_rows){right, from, left, sums, t->form, t->rows, t->stride, t->units, round});
  // a denormal float16 is none among floats
  const int halves = t->form == EPG_FLOAT16 || t->form == EPG_FLOAT16_TILES;
  return saw_denormals(before) && !halves ? 0 : told;
}
