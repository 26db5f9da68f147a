// Walks over strided tensors: a kernel computes every element, and its results are written or
// summed. engine.h, gemm.h and sums.h include it.
//
// Runs of elements are used where they lie, or gathered into blocks where they are too short or not
// contiguous. A kernel sees groups of EPG_GROUP elements in any case, so an element's result
// depends neither on its place nor on its neighbours.
#pragma once

#include "cpu.h"

// block is where operands are gathered and results wait, NULL for what is absent.
typedef struct {
  char *data[EPG_OPERANDS], *wide[EPG_OUTPUTS];
} block;

// sums are the totals that wide results are added to, NULL for an output that is not summed. A
// block's elements are added in one of three ways:
//
//   plain       each element to a total of its own, in turn, from a column on
//   lanes > 0   each element to the next of `lanes` totals; behind the last comes the first again
//   terms > 1   `terms` runs of `run` elements to the same `run` totals
//
// An output has `width` totals. Elements are added in whole groups, so the last EPG_GROUP totals
// are room for padding. Behind the totals lie `width` more doubles, whose use depends on the dtype:
//
//   float64      the errors of the totals' additions
//   float32      none: what a double loses is far below the rounding of float32
//   half types   sums of few rows, as floats, which add_few then adds to the totals; what a float
//                loses over so few terms is far below the rounding of a half type
typedef struct {
  double *total[EPG_OUTPUTS];
  int64_t width, lanes, terms, run;
  int64_t block;  // the most elements of a block, which starts with the first total of a run, or 0
  int64_t dtype;  // its form as it lies in memory
} sums;

INLINE int is_half(int64_t dtype) { return dtype == EPG_BFLOAT16 || dtype == EPG_FLOAT16; }

// What a block's operands and wide results take each, and what they are aligned to.
enum { part_bytes = EPG_BLOCK * 8, part_alignment = 64 };

// memory_of_block is the bytes of a block for the operands that are there, and for the results that
// are summed. It is on the stack of a thread that may have little: callers' threads compute too.
INLINE int64_t memory_of_block(char *const *base, const sums *s) {
  int64_t parts = 0;
  for (int o = 0; o < EPG_OPERANDS; o++) parts += base[o] != 0;
  for (int output = 0; s && output < EPG_OUTPUTS; output++) parts += s->total[output] != 0;
  return parts * part_bytes + part_alignment;
}

INLINE block block_in(char *memory, char *const *base, const sums *s) {
  block b = {0};
  memory += -(intptr_t)memory & (part_alignment - 1);
  for (int o = 0; o < EPG_OPERANDS; o++)
    if (base[o]) b.data[o] = memory, memory += part_bytes;
  for (int output = 0; s && output < EPG_OUTPUTS; output++)
    if (s->total[output]) b.wide[output] = memory, memory += part_bytes;
  return b;
}

// few is how many terms are added in float at most.
enum { few = EPG_BLOCK / EPG_GROUP };

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

#define COPY_RUNS(type)                                                        \
  for (int64_t r = 0; r < runs; r++)                                           \
    for (int64_t i = 0; i < n; i++) {                                          \
      type element;                                                            \
      memcpy(&element, from + r * from_run + i * from_stride, sizeof element); \
      memcpy(to + r * to_run + i * to_stride, &element, sizeof element);       \
    }

// fill repeats an element of 2, 4 or 8 bytes over `bytes` bytes, which are a register's at least.
TARGET static void fill(char *to, const char *element, int64_t bytes, int64_t size) {
  uint64_t word = 0;
  memcpy(&word, element, size);
  for (int64_t bits = 8 * size; bits < 64; bits *= 2) word |= word << bits;
  double same;
  memcpy(&same, &word, sizeof same);
  const d_v x = d_set(same);
  for (int64_t done = 0; done + VECTOR_BYTES <= bytes; done += VECTOR_BYTES) d_store_f64(to + done, x);
  d_store_f64(to + bytes - VECTOR_BYTES, x);
}

typedef uint64_t sixteen_bytes __attribute__((vector_size(16)));

// copy_runs copies runs of n elements of 2, 4 or 8 bytes.
TARGET static void copy_runs(char *to, int64_t to_run, int64_t to_stride, const char *from, int64_t from_run, int64_t from_stride, int64_t runs, int64_t n,
                             int64_t size) {
  enum { bytes_worth_a_call = 32, few_elements = 8 };
  if (to_stride == size && from_stride == size) {
    const int64_t bytes = n * size;
    if (runs == 1 || (to_run == bytes && from_run == bytes)) {
      memcpy(to, from, runs * bytes);
      return;
    }
    if (bytes >= bytes_worth_a_call) {
      for (int64_t r = 0; r < runs; r++) memcpy(to + r * to_run, from + r * from_run, bytes);
      return;
    }
    if (bytes == 4 || bytes == 8 || bytes == 16) {  // a run is an element
      size = bytes;
      n = 1;
    }
  }
  if (from_stride == 0 && to_stride == size && n * size >= 2 * bytes_worth_a_call) {
    for (int64_t r = 0; r < runs; r++) fill(to + r * to_run, from + r * from_run, n * size, size);
    return;
  }
  if (n < few_elements && runs > n) {  // the longer loop inside
    int64_t other = n;
    n = runs, runs = other;
    other = to_run, to_run = to_stride, to_stride = other;
    other = from_run, from_run = from_stride, from_stride = other;
  }
  if (size == 2)
    COPY_RUNS(uint16_t)
  else if (size == 4)
    COPY_RUNS(uint32_t)
  else if (size == 8)
    COPY_RUNS(uint64_t)
  else
    COPY_RUNS(sixteen_bytes)
}

INLINE void copy(char *to, int64_t to_stride, const char *from, int64_t from_stride, int64_t n, int64_t size) {
  copy_runs(to, 0, to_stride, from, 0, from_stride, 1, n, size);
}

INLINE int64_t whole_groups(int64_t n) { return (n + EPG_GROUP - 1) & -EPG_GROUP; }

// add_group adds a group of floats to totals.
INLINE void add_group(double *total, const float *from) {
  double terms[EPG_GROUP];
  for (int64_t i = 0; i < EPG_GROUP; i += f_lanes) f_store_wide(terms + i, f_load_f32(from + i));
  for (int64_t i = 0; i < EPG_GROUP; i += d_lanes) d_store_f64(total + i, d_load_f64(total + i) + d_load_f64(terms + i));
}

// add_floats is add_sums for half types.
TARGET static void add_floats(const sums *s, block *b, int64_t column, int64_t n) {
  for (int output = 0; output < EPG_OUTPUTS; output++) {
    if (!s->total[output]) continue;
    float *terms = (float *)b->wide[output], few_terms[EPG_BLOCK];
    float *at = s->lanes ? few_terms : (float *)(s->total[output] + s->width) + column;
    if (s->lanes) memset(few_terms, 0, s->lanes * sizeof *few_terms);
    memset(terms + n, 0, (whole_groups(n) - n) * sizeof *terms);
    for (int64_t i = 0, lane = 0; i < n; i += f_lanes, lane = lane + f_lanes == s->lanes ? 0 : lane + f_lanes)
      f_store_f32(at + lane, f_load_f32(at + lane) + f_load_f32(terms + i));
    for (int64_t i = 0; i < s->lanes; i += EPG_GROUP) add_group(s->total[output] + i, few_terms + i);
  }
}

// add_few adds the sums of a few rows to the totals, and clears them.
TARGET static void add_few(const sums *s) {
  for (int output = 0; output < EPG_OUTPUTS; output++) {
    if (!s->total[output]) continue;
    float *rows = (float *)(s->total[output] + s->width);
    for (int64_t i = 0; i < s->width; i += EPG_GROUP) add_group(s->total[output] + i, rows + i);
    memset(rows, 0, s->width * sizeof *rows);
  }
}

// add_to adds a term to a total and returns the error (Knuth's two-sum).
#define ADD_TO(name, type)                                                \
  INLINE type name(type *total, type term) {                              \
    const type before = *total, sum = before + term, part = sum - before; \
    *total = sum;                                                         \
    return (before - (sum - part)) + (term - part);                       \
  }
ADD_TO(add_to, double)
ADD_TO(d_add_to, d_v)

// add_sums adds n results, padded to whole groups, to the sums from a column on, with the error of
// each addition.
TARGET static void add_sums(const sums *s, block *b, int64_t column, int64_t n) {
  for (int output = 0; output < EPG_OUTPUTS; output++) {
    if (!s->total[output]) continue;
    double *terms = (double *)b->wide[output];
    memset(terms + n, 0, (whole_groups(n) - n) * sizeof *terms);
    for (int64_t i = 0, lane = column; i < n; i += d_lanes, lane = lane + d_lanes == s->lanes ? 0 : lane + d_lanes) {
      double *at = s->total[output] + lane;
      d_v total = d_load_f64(at);
      const d_v error = d_add_to(&total, d_load_f64(terms + i));
      d_store_f64(at, total);
      if (s->dtype == EPG_FLOAT64) d_store_f64(at + s->width, d_load_f64(at + s->width) + error);
    }
  }
}

#define ADD_RUNS(type, errors)                                        \
  for (int64_t i = 0; i < n; i += s->terms * s->run, total += s->run) \
    for (int64_t j = 0; j < s->run; j++) {                            \
      const type *term = (const type *)b->wide[output] + i + j;       \
      double sum = total[j], error = 0;                               \
      for (int64_t k = 0; k < s->terms; k++, term += s->run)          \
        if (errors)                                                   \
          error += add_to(&sum, *term);                               \
        else                                                          \
          sum += *term;                                               \
      total[j] = sum;                                                 \
      if (errors) total[j + s->width] += error;                       \
    }

// add_runs is add_sums for runs that are added to the same totals.
TARGET static void add_runs(const sums *s, block *b, int64_t column, int64_t n) {
  for (int output = 0; output < EPG_OUTPUTS; output++) {
    if (!s->total[output]) continue;
    double *total = s->total[output] + column;
    if (is_half(s->dtype))
      ADD_RUNS(float, 0)
    else if (s->dtype == EPG_FLOAT32)
      ADD_RUNS(double, 0)
    else
      ADD_RUNS(double, 1)
  }
}

// call runs a kernel on n elements, of which the last may be padding beyond `real`.
INLINE void call(epg_kernel *kernel, block *b, const sums *s, int64_t column, int64_t n, int64_t real, const double *parameters, char *const *at) {
  char *wide[EPG_OUTPUTS] = {0};
  for (int output = 0; s && output < EPG_OUTPUTS; output++)
    if (s->total[output]) wide[output] = b->wide[output];
  kernel(n, at, wide, (const char *const *)at + EPG_OUTPUTS, parameters);
  if (s) (s->terms > 1 ? add_runs : is_half(s->dtype) ? add_floats : add_sums)(s, b, column, real);
}

// inner_run is a run of elements along one dimension. Strides are in bytes.
typedef struct {
  int64_t element_size, count;
  int64_t strides[EPG_OPERANDS];
} inner_run;

// compute_run computes elements that lie strides apart; the first is of a column of the sums.
TARGET static void compute_run(epg_kernel *kernel, block *b, const inner_run *r, const double *parameters, char *const *base, const sums *s, int64_t column) {
  const int64_t size = r->element_size, most = s ? EPG_BLOCK : part_bytes / size;
  int contiguous = 1;
  for (int o = 0; o < EPG_OPERANDS; o++) contiguous &= !base[o] || r->strides[o] == size;
  for (int64_t done = 0, n; done < r->count; done += n) {
    char *at[EPG_OPERANDS];
    n = r->count - done;
    // A contiguous run is one call, unless its results wait in the block.
    if (n > most && (!contiguous || s)) n = most;
    if (n >= EPG_GROUP) n &= -EPG_GROUP;
    const int padded = n < EPG_GROUP;
    for (int o = 0; o < EPG_OPERANDS; o++) {
      at[o] = base[o] ? base[o] + done * r->strides[o] : 0;
      if (!base[o] || (r->strides[o] == size && !padded)) continue;
      at[o] = b->data[o];
      if (o < EPG_OUTPUTS || (!r->strides[o] && done)) continue;  // one element, which is there
      copy(at[o], size, base[o] + done * r->strides[o], r->strides[o], n, size);
      if (padded) memset(at[o] + n * size, 0, (EPG_GROUP - n) * size);
    }
    call(kernel, b, s, column + done, whole_groups(n), n, parameters, at);
    for (int o = 0; o < EPG_OUTPUTS; o++) {
      if (!at[o] || at[o] != b->data[o]) continue;
      copy(base[o] + done * r->strides[o], r->strides[o], at[o], size, n, size);
    }
  }
}

// position is where a walk is: the index in each dimension and the addresses that belong to it.
typedef struct {
  int64_t index[EPG_MOST_RANK];
  char *at[EPG_OPERANDS];
} position;

INLINE void go_to(position *p, const epg_loops *l, int64_t linear, char *const base[static EPG_OPERANDS]) {
  memcpy(p->at, base, sizeof p->at);
  for (int64_t d = l->rank - 1; d >= 0; d--) {
    p->index[d] = linear % l->shape[d];
    linear /= l->shape[d];
    for (int o = 0; o < EPG_OPERANDS; o++)
      if (base[o]) p->at[o] += p->index[d] * l->strides[o][d];
  }
}

// advance moves by n elements, at most to the end of the innermost dimension, and beyond it to the
// next run.
INLINE void advance(position *p, const epg_loops *l, int64_t n) {
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

// walker is a walk, and how many elements of each operand, from the first on, lie side by side.
typedef struct {
  const epg_loops *loops;
  int64_t together[EPG_OPERANDS];
} walker;

INLINE walker walker_of(const epg_loops *l) {
  walker w = {.loops = l};
  for (int o = 0; o < EPG_OPERANDS; o++) {
    w.together[o] = 1;
    for (int64_t d = l->rank - 1; d >= 0 && l->strides[o][d] == w.together[o] * l->element_size; d--) w.together[o] *= l->shape[d];
  }
  return w;
}

// move copies n elements of an operand, from a position on, to a block or from there.
TARGET static void move(const epg_loops *l, const position *p, int o, int64_t n, char *data, int from_block) {
  const int64_t inner = l->rank - 1, size = l->element_size, *strides = l->strides[o];
  char *at = p->at[o];
  int64_t index[EPG_MOST_RANK];
  memcpy(index, p->index, l->rank * sizeof *index);
  for (int64_t length, runs; n > 0; n -= runs * length) {
    length = least(n, l->shape[inner] - index[inner]);
    runs = inner && !index[inner] ? least(n / length, l->shape[inner - 1] - index[inner - 1]) : 1;
    const int64_t stride = inner ? strides[inner - 1] : 0;
    if (from_block)
      copy_runs(at, stride, strides[inner], data, length * size, size, runs, length, size);
    else
      copy_runs(data, length * size, size, at, stride, strides[inner], runs, length, size);
    data += runs * length * size;
    if (!inner) continue;  // which was all
    at += runs * stride - index[inner] * strides[inner];
    index[inner] = 0;
    index[inner - 1] += runs;
    for (int64_t d = inner - 1; d > 0 && index[d] == l->shape[d]; d--) {
      at += strides[d - 1] - index[d] * strides[d];
      index[d] = 0;
      index[d - 1]++;
    }
  }
}

// gather_runs computes n <= EPG_BLOCK elements from the first on, at its position, over as many
// runs as they take, where they lie or through the block.
TARGET static void gather_runs(epg_kernel *kernel, block *b, const walker *w, const position *p, int64_t first, int64_t n, const double *parameters,
                               const sums *s, int64_t column) {
  const int64_t size = w->loops->element_size, padding = whole_groups(n) - n;
  char *at[EPG_OPERANDS];
  int together[EPG_OPERANDS];
  for (int o = 0; o < EPG_OPERANDS; o++) {
    at[o] = p->at[o];
    if (!at[o]) continue;
    together[o] = first + n <= w->together[o] || first % w->together[o] + n <= w->together[o];
    if (together[o] && !padding) continue;
    at[o] = b->data[o];
    if (o < EPG_OUTPUTS) continue;
    move(w->loops, p, o, n, at[o], 0);
    memset(at[o] + n * size, 0, padding * size);
  }
  call(kernel, b, s, column, n + padding, n, parameters, at);
  for (int o = 0; o < EPG_OUTPUTS; o++) {
    if (!at[o] || at[o] != b->data[o]) continue;
    move(w->loops, p, o, n, at[o], 1);
  }
}

// short_run is the elements of a run up to which several at a time are gathered.
enum { short_run = EPG_BLOCK / 4 };

// walk computes the elements [first, first+count): the innermost runs one by one if they are long,
// otherwise through blocks. It adds them to the sums' totals from the first on.
TARGET static void walk(epg_kernel *kernel, block *b, const walker *w, int64_t first, int64_t count, const double *parameters, char *const *base,
                        const sums *s) {
  const epg_loops *l = w->loops;
  const int64_t inner = l->rank - 1;
  position p;
  if ((inner && l->shape[inner] < short_run) || (s && s->block)) {
    const int64_t most = s && s->block ? s->block : EPG_BLOCK;
    for (int64_t done = 0, n; done < count; done += n) {
      n = least(most, count - done);
      go_to(&p, l, first + done, base);
      gather_runs(kernel, b, w, &p, first + done, n, parameters, s, s && s->lanes ? 0 : done / (s ? s->terms : 1));
    }
    return;
  }
  go_to(&p, l, first, base);
  for (int64_t done = 0, n; done < count; done += n) {
    n = least(count - done, l->shape[inner] - p.index[inner]);
    inner_run r = {.element_size = l->element_size, .count = n};
    for (int o = 0; o < EPG_OPERANDS; o++) r.strides[o] = l->strides[o][inner];
    compute_run(kernel, b, &r, parameters, p.at, s, done);
    advance(&p, l, n);
  }
}

TARGET static void elementwise(epg_kernel *kernel, const epg_loops *l, int64_t first, int64_t count, const double *parameters, char *const *at) {
  char memory[memory_of_block(at, 0)];
  block b = block_in(memory, at, 0);
  const walker w = walker_of(l);
  walk(kernel, &b, &w, first, count, parameters, at, 0);
}
