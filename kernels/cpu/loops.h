// How kernels meet memory: runs of elements are used where they lie, or gathered into blocks where they are too short or not contiguous. A kernel sees groups of
// EPG_GROUP elements in any case, so an element's result depends neither on its place nor on its neighbours.

#pragma once

#include "cpu.h"

// block is where operands are gathered and results wait.
typedef struct {
  _Alignas(64) char data[EPG_OPERANDS][EPG_BLOCK * 8];
  _Alignas(64) char wide[EPG_OUTPUTS][EPG_BLOCK * 8];
} block;

// sums are where the wide results go, NULL where there are none. Errors lie `width` behind their totals, if they are kept: of float64. What float32 loses in double is
// far below its own rounding, and so is what half types lose in float over few terms, which are then added to the totals; until then they lie where errors would.
typedef struct {
  double *total[EPG_OUTPUTS];
  int64_t width;
  int64_t step;  // 1: a block's elements are columns; 0: they are folded into EPG_GROUP lanes
  int64_t size;  // of an element
} sums;

// few is how many terms are added in float at most.
enum { few = EPG_BLOCK / EPG_GROUP };

#define COPY_STRIDED(type)                                    \
  for (int64_t i = 0; i < n; i++) {                           \
    type element;                                             \
    memcpy(&element, from + i * from_stride, sizeof element); \
    memcpy(to + i * to_stride, &element, sizeof element);     \
  }

// copy copies n elements of 2, 4 or 8 bytes.
TARGET static void copy(char *to, int64_t to_stride, const char *from, int64_t from_stride, int64_t n, int64_t size) {
  if (to_stride == size && from_stride == size)
    memcpy(to, from, n * size);
  else if (size == 2)
    COPY_STRIDED(uint16_t)
  else if (size == 4)
    COPY_STRIDED(uint32_t)
  else
    COPY_STRIDED(uint64_t)
}

// stream copies contiguous results past the caches.
TARGET static void stream(char *to, const char *from, int64_t bytes) {
  int64_t head = -(intptr_t)to & (VECTOR_BYTES - 1);
  if (head > bytes) head = bytes;
  memcpy(to, from, head);
  for (; head + VECTOR_BYTES <= bytes; head += VECTOR_BYTES) store_past_caches(to + head, from + head);
  memcpy(to + head, from + head, bytes - head);
}

INLINE int64_t whole_groups(int64_t n) { return (n + EPG_GROUP - 1) & -EPG_GROUP; }

// add_group adds a group of floats to totals.
INLINE void add_group(double *total, const float *from) {
  double terms[EPG_GROUP];
  for (int64_t i = 0; i < EPG_GROUP; i += f_lanes) f_store_wide(terms + i, f_load_float32(from + i));
  for (int64_t i = 0; i < EPG_GROUP; i += d_lanes) d_store_float64(total + i, d_load_float64(total + i) + d_load_float64(terms + i));
}

// add_floats is add_sums for half types.
TARGET static void add_floats(const sums *s, block *b, int64_t column, int64_t n) {
  for (int output = 0; output < EPG_OUTPUTS; output++) {
    if (!s->total[output]) continue;
    float *terms = (float *)b->wide[output], lanes[EPG_GROUP] = {0};
    memset(terms + n, 0, (whole_groups(n) - n) * sizeof *terms);
    for (int64_t i = 0; i < n; i += f_lanes) {
      float *at = s->step ? (float *)(s->total[output] + s->width) + column + i : lanes + (i & (EPG_GROUP - 1));
      f_store_float32(at, f_load_float32(at) + f_load_float32(terms + i));
    }
    if (!s->step) add_group(s->total[output], lanes);
  }
}

// add_few adds to the totals what few rows came to.
TARGET static void add_few(const sums *s) {
  for (int output = 0; output < EPG_OUTPUTS; output++) {
    if (!s->total[output]) continue;
    float *rows = (float *)(s->total[output] + s->width);
    for (int64_t i = 0; i < s->width; i += EPG_GROUP) add_group(s->total[output] + i, rows + i);
    memset(rows, 0, s->width * sizeof *rows);
  }
}

// add_sums adds n results, padded to whole groups, to the sums from a column on, with the error of each addition.
TARGET static void add_sums(const sums *s, block *b, int64_t column, int64_t n) {
  for (int output = 0; output < EPG_OUTPUTS; output++) {
    if (!s->total[output]) continue;
    double *terms = (double *)b->wide[output];
    memset(terms + n, 0, (whole_groups(n) - n) * sizeof *terms);
    for (int64_t i = 0; i < n; i += d_lanes) {
      double *at = s->total[output] + (s->step ? column + i : i & (EPG_GROUP - 1));
      d_v total = d_load_float64(at), term = d_load_float64(terms + i);
      d_v sum = total + term, part = sum - total;
      d_store_float64(at, sum);
      if (s->size < 8) continue;
      d_store_float64(at + s->width, d_load_float64(at + s->width) + ((total - (sum - part)) + (term - part)));
    }
  }
}

// call runs a kernel on n elements, of which the last may be padding beyond `real`.
INLINE void call(epg_kernel *kernel, block *b, const sums *s, int64_t column, int64_t n, int64_t real, const double *numbers, char *const *at) {
  char *wide[EPG_OUTPUTS] = {0};
  for (int output = 0; s && output < EPG_OUTPUTS; output++)
    if (s->total[output]) wide[output] = b->wide[output];
  kernel(n, at, wide, (const char *const *)at + EPG_OUTPUTS, numbers);
  if (s) (s->size == 2 ? add_floats : add_sums)(s, b, column, real);
}

// run computes elements that lie strides apart.
TARGET static void run(epg_kernel *kernel, block *b, const epg_run *r, const double *numbers, char *const *base, const sums *s) {
  const int64_t size = r->element_size;
  int contiguous = 1;
  for (int o = 0; o < EPG_OPERANDS; o++) contiguous &= !base[o] || r->strides[o] == size;
  for (int64_t done = 0, n; done < r->count; done += n) {
    char *at[EPG_OPERANDS];
    n = r->count - done;
    // A contiguous run is one call, unless its results wait in the block.
    if (n > EPG_BLOCK && (!contiguous || s || r->stream)) n = EPG_BLOCK;
    if (n >= EPG_GROUP) n &= -EPG_GROUP;
    const int padded = n < EPG_GROUP;
    for (int o = 0; o < EPG_OPERANDS; o++) {
      at[o] = base[o] ? base[o] + done * r->strides[o] : 0;
      if (!base[o] || (r->strides[o] == size && !padded && !(r->stream && o < EPG_OUTPUTS))) continue;
      at[o] = b->data[o];
      if (o < EPG_OUTPUTS) continue;
      copy(at[o], size, base[o] + done * r->strides[o], r->strides[o], n, size);
      if (padded) memset(at[o] + n * size, 0, (EPG_GROUP - n) * size);
    }
    call(kernel, b, s, done, whole_groups(n), n, numbers, at);
    for (int o = 0; o < EPG_OUTPUTS; o++) {
      if (!at[o] || at[o] != b->data[o]) continue;
      if (r->stream && r->strides[o] == size)
        stream(base[o] + done * size, at[o], n * size);
      else
        copy(base[o] + done * r->strides[o], r->strides[o], at[o], size, n, size);
    }
  }
}

// place is where a walk is: the index in each dimension and the addresses that belong to it.
typedef struct {
  int64_t index[EPG_MOST_RANK];
  char *at[EPG_OPERANDS];
} place;

INLINE void go_to(place *p, const epg_loops *l, int64_t linear, char *const *base) {
  memcpy(p->at, base, sizeof p->at);
  for (int64_t d = l->rank - 1; d >= 0; d--) {
    p->index[d] = linear % l->shape[d];
    linear /= l->shape[d];
    for (int o = 0; o < EPG_OPERANDS; o++)
      if (base[o]) p->at[o] += p->index[d] * l->strides[o][d];
  }
}

// advance moves by n elements, at most to the end of the innermost dimension, and beyond it to the next run.
INLINE void advance(place *p, const epg_loops *l, int64_t n) {
  int64_t d = l->rank - 1;
  p->index[d] += n;
  for (int o = 0; o < EPG_OPERANDS; o++)
    if (p->at[o]) p->at[o] += n * l->strides[o][d];
  for (; d > 0 && p->index[d] == l->shape[d]; d--) {
    p->index[d - 1]++;
    for (int o = 0; o < EPG_OPERANDS; o++)
      if (p->at[o]) p->at[o] += l->strides[o][d - 1] - p->index[d] * l->strides[o][d];
    p->index[d] = 0;
  }
}

// gather_runs computes n <= EPG_BLOCK elements from a place on through the block, over as many runs as they take, and leaves the place behind them.
TARGET static void gather_runs(epg_kernel *kernel, block *b, const epg_loops *l, place *p, int64_t n, const double *numbers, const sums *s) {
  const int64_t size = l->element_size, inner = l->rank - 1, padding = whole_groups(n) - n;
  place first = *p;
  char *at[EPG_OPERANDS];
  for (int o = 0; o < EPG_OPERANDS; o++) {
    at[o] = p->at[o] ? b->data[o] : 0;
    if (at[o] && o >= EPG_OUTPUTS) memset(at[o] + n * size, 0, padding * size);
  }
  for (int outputs = 0; outputs < 2; outputs++) {
    if (outputs) {
      call(kernel, b, s, 0, n + padding, n, numbers, at);
      *p = first;
    }
    for (int64_t done = 0, length; done < n; done += length) {
      length = l->shape[inner] - p->index[inner];
      if (length > n - done) length = n - done;
      for (int o = outputs ? 0 : EPG_OUTPUTS; o < (outputs ? EPG_OUTPUTS : EPG_OPERANDS); o++) {
        if (!at[o]) continue;
        if (outputs)
          copy(p->at[o], l->strides[o][inner], at[o] + done * size, size, length, size);
        else
          copy(at[o] + done * size, size, p->at[o], l->strides[o][inner], length, size);
      }
      advance(p, l, length);
    }
  }
}

// walk computes [first, first+count), the innermost runs one by one if they are long.
TARGET static void walk(epg_kernel *kernel, const epg_loops *l, int64_t first, int64_t count, const double *numbers, char *const *base, const sums *s) {
  block b;
  place p;
  const int64_t inner = l->rank - 1;
  go_to(&p, l, first, base);
  for (int64_t n; count > 0; count -= n) {
    // An element's lane follows from its index alone, whatever the layout: blocks of a sum over everything are cut from its start on.
    if (l->shape[inner] < 4 * EPG_GROUP || (s && !s->step)) {
      n = count < EPG_BLOCK ? count : EPG_BLOCK;
      gather_runs(kernel, &b, l, &p, n, numbers, s);
      continue;
    }
    epg_run r = {.element_size = l->element_size, .stream = l->stream, .count = n = l->shape[inner] - p.index[inner]};
    if (n > count) r.count = n = count;
    for (int o = 0; o < EPG_OPERANDS; o++) r.strides[o] = l->strides[o][inner];
    run(kernel, &b, &r, numbers, p.at, s);
    advance(&p, l, n);
  }
  if (l->stream) _mm_sfence();  // what was streamed is seen before what says that it is there
}

TARGET static void elementwise(epg_kernel *kernel, const epg_loops *l, int64_t first, int64_t count, const double *numbers, char *const *at) {
  walk(kernel, l, first, count, numbers, at, 0);
}

TARGET static void sum_all(epg_kernel *kernel, const epg_loops *l, int64_t first, int64_t count, const double *numbers, char *const *at, double *const *to) {
  sums s = {.width = EPG_GROUP, .size = l->element_size};
  memcpy(s.total, to, sizeof s.total);
  walk(kernel, l, first, count, numbers, at, &s);
}

TARGET static void sum_rows(epg_kernel *kernel, const epg_loops *rows, const epg_run *r, int64_t first, int64_t count, const double *numbers, char *const *at,
                            double *const *to) {
  block b;
  place p;
  sums s = {.width = whole_groups(r->count), .step = 1, .size = r->element_size};
  memcpy(s.total, to, sizeof s.total);
  go_to(&p, rows, first, at);
  for (int64_t row = 1; row <= count; row++) {
    run(kernel, &b, r, numbers, p.at, &s);
    advance(&p, rows, 1);
    if (s.size == 2 && (row % few == 0 || row == count)) add_few(&s);
  }
  if (r->stream) _mm_sfence();
}
