// Sums of what kernels compute, over some dimensions of the operands' shape: how a pass is cut
// (epg_sums), and what becomes of its totals. engine.h includes it.
#pragma once

#include <float.h>

#include "walk.h"

// part is what a task adds up.
typedef struct {
  int64_t outer, first, count;  // the index over q->outer, and the elements from there that stay
  int64_t from, to;             // the chunk: rows, or with lanes the terms of a block
} part;

INLINE part part_of(const epg_sums *q, int64_t task) {
  const int64_t column = task / q->chunks, chunk = task % q->chunks, first = column % q->pieces * q->piece;
  return (part){column / q->pieces, first, least(q->piece, q->kept - first), q->rows_count * chunk / q->chunks, q->rows_count * (chunk + 1) / q->chunks};
}

TARGET static void sum(epg_kernel *kernel, const epg_sums *q, int64_t task, const double *parameters, char *const *base, double *totals) {
  const part t = part_of(q, task);
  // Rows are added term by term.
  sums s = {.width = q->width, .run = q->run, .terms = q->rows_count > 1 ? 1 : q->terms, .lanes = q->lanes, .block = q->block, .dtype = q->dtype};
  for (int output = 0; output < EPG_OUTPUTS; output++) {
    if (!q->summed[output]) continue;
    s.total[output] = memset(totals, 0, 2 * q->width * sizeof *totals);
    totals += 2 * q->width;
  }
  if (t.from == t.to) return;
  const walker w = walker_of(&q->inner);
  char memory[memory_of_block(base, &s)];
  block b = block_in(memory, base, &s);
  position p;
  go_to(&p, &q->outer, t.outer, base);
  if (q->lanes) {
    walk(kernel, &b, &w, t.from * q->run, (t.to - t.from) * q->run, parameters, p.at, &s);
  } else {
    char *at[EPG_OPERANDS];
    memcpy(at, p.at, sizeof at);
    go_to(&p, &q->rows, t.from, at);
    for (int64_t row = t.from; row < t.to; row++) {
      walk(kernel, &b, &w, t.first * q->terms, t.count * q->terms, parameters, p.at, &s);
      advance(&p, &q->rows, 1);
      if (is_half(q->dtype) && s.terms == 1 && ((row - t.from) % few == few - 1 || row == t.to - 1)) add_few(&s);
    }
  }
}

// towards_odd is the float beside a number whose last bit tells that there is more, so that
// rounding it to a half type rounds the number once (Boldo and Melquiond 2008,
// https://doi.org/10.1109/TC.2007.70819).
INLINE float towards_odd(double x) {
  float rounded = (float)x;
  uint32_t bits;
  memcpy(&bits, &rounded, sizeof bits);
  bits -= __builtin_fabs(rounded) > __builtin_fabs(x);
  bits |= (rounded < x) | (rounded > x);
  memcpy(&rounded, &bits, sizeof bits);
  return rounded;
}

// widen and narrow convert n elements, a multiple of EPG_GROUP.
TARGET static void widen(double *to, const char *from, int64_t n, int64_t dtype) {
  for (int64_t i = 0; i < n; i += f_lanes) switch (dtype) {
      case EPG_BFLOAT16:
        f_store_wide(to + i, f_load_bf16(from + 2 * i));
        break;
      case EPG_FLOAT16:
        f_store_wide(to + i, f_load_f16(from + 2 * i));
        break;
      case EPG_FLOAT32:
        f_store_wide(to + i, f_load_f32(from + 4 * i));
        break;
      default:
        memcpy(to + i, from + 8 * i, f_lanes * sizeof *to);
    }
}

TARGET static void narrow(char *to, const double *from, int64_t n, int64_t dtype) {
  float halves[EPG_GROUP];
  for (int64_t i = 0; i < n; i += EPG_GROUP) {
    for (int64_t j = 0; j < EPG_GROUP; j++) halves[j] = towards_odd(from[i + j]);
    for (int64_t j = 0; j < EPG_GROUP; j += f_lanes) {
      if (dtype == EPG_BFLOAT16) f_store_bf16(to + 2 * (i + j), f_load_f32(halves + j));
      if (dtype == EPG_FLOAT16) f_store_f16(to + 2 * (i + j), f_load_f32(halves + j));
    }
    for (int64_t j = 0; j < EPG_GROUP; j += d_lanes) {
      if (dtype == EPG_FLOAT32) d_store_f32(to + 4 * (i + j), d_load_f64(from + i + j));
      if (dtype == EPG_FLOAT64) d_store_f64(to + 8 * (i + j), d_load_f64(from + i + j));
    }
  }
}

// fold adds lanes to each other, as long as halves of them are of the same sums and whole groups,
// and returns how many are left.
TARGET static int64_t fold(double *totals, double *errors, int64_t lanes, int64_t run) {
  for (; lanes % (2 * EPG_GROUP) == 0 && lanes / 2 % run == 0; lanes /= 2)
    for (int64_t i = 0; i < lanes / 2; i += d_lanes) {
      d_v total = d_load_f64(totals + i);
      const d_v error = d_add_to(&total, d_load_f64(totals + lanes / 2 + i));
      d_store_f64(totals + i, total);
      d_store_f64(errors + i, d_load_f64(errors + i) + d_load_f64(errors + lanes / 2 + i) + error);
    }
  return lanes;
}

// finish_part makes n results of the totals from `begin` on, and adds up chunk after chunk. A
// result is total plus error; it is the total alone where that is infinite or NaN, since the error
// means nothing there.
INLINE void finish_part(const epg_sums *q, int64_t begin, int64_t n, double *totals, int64_t each, int output, position *p) {
  const int64_t size = q->to.element_size, whole = whole_groups(n);
  double total[EPG_BLOCK], error[EPG_BLOCK];
  memset(total, 0, whole * sizeof *total);
  memset(error, 0, whole * sizeof *error);
  for (int64_t chunk = 0; chunk < q->chunks; chunk++) {
    double *from = totals + chunk * each + begin, *errors = from + q->width;
    // `same` neighbouring totals belong to `run` sums.
    int64_t count = n, same = q->run;
    if (q->lanes)
      count = same = fold(from, errors, q->lanes, q->run);
    else if (q->rows_count > 1)
      count *= q->terms, same *= q->terms;
    if (q->chunks == 1 && same == q->run) {
      memcpy(total, from, whole * sizeof *total);
      memcpy(error, errors, whole * sizeof *error);
      break;
    }
    for (int64_t i = 0, first = 0; i < count; i += same, first += q->run)
      for (int64_t k = 0; k < same; k += q->run)
        for (int64_t j = 0; j < q->run && i + k + j < count; j++) error[first + j] += add_to(&total[first + j], from[i + k + j]) + errors[i + k + j];
  }
  for (int64_t j = 0; j < whole; j += d_lanes) {
    const d_v e = d_load_f64(error + j);
    const d_m means_something = d_at_most(d_abs(e), d_set(DBL_MAX));
    d_store_f64(total + j, d_load_f64(total + j) + d_select(means_something, e, d_set(0)));
  }
  char data[EPG_BLOCK * 8];
  if (q->accumulate) {
    move(&q->to, p, output, n, data, 0);
    memset(data + n * size, 0, (whole - n) * size);
    widen(error, data, whole, q->result);
    for (int64_t j = 0; j < n; j++) total[j] += error[j];
  }
  narrow(data, total, whole, q->result);
  move(&q->to, p, output, n, data, 1);
}

// finish_sums makes the results of a column's totals, EPG_BLOCK at a time.
TARGET static void finish_sums(const epg_sums *q, int64_t column, double *totals, char *const *to) {
  const part t = part_of(q, column * q->chunks);
  int64_t each = 0;
  for (int output = 0; output < EPG_OUTPUTS; output++) each += q->summed[output] * 2 * q->width;
  char *base[EPG_OPERANDS] = {0};
  memcpy(base, to, EPG_OUTPUTS * sizeof *base);
  for (int64_t begin = 0, n; begin < t.count; begin += n) {
    n = least(EPG_BLOCK, t.count - begin);
    position p;
    go_to(&p, &q->to, t.outer * q->kept + t.first + begin, base);
    double *from = totals;
    for (int output = 0; output < EPG_OUTPUTS; output++) {
      if (!q->summed[output]) continue;
      finish_part(q, begin, n, from, each, output, &p);
      from += 2 * q->width;
    }
  }
}
