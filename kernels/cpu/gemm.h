// Products: multiplying panels, and making results of their sums.
// engine.h includes it. Where there is AMX, gemm_amx.h has kernels of its own.
//
// Every sum is formed in the order of the depth, in parts of a length that the depth decides, and
// which are added up: tiles, panels and threads have no influence. Lifted operands (denormals.h)
// change only sums that were formed from denormals.
#pragma once

#include "denormals.h"
#include "pack.h"

// A stretch of the depth is at most so many steps that the right operand's panel takes 24 KiB, half
// or three quarters of the nearest cache, in which the left operand's panels pass by.
enum { depth_stretch = (24 << 10) / (panel_registers * VECTOR_BYTES) };

// The panels that a panel kernel prefetches for the next ones. At every step of the depth it moves
// on by left_step and right_step bytes.
typedef struct {
  const char *left, *right;
  int64_t left_step, right_step;
} prefetch;

#define PREFETCH_STEP(next)                                    \
  __builtin_prefetch((next)->left + step * (next)->left_step); \
  __builtin_prefetch((next)->right + step * (next)->right_step, 0, 2);

// Where a panel kernel reads its sums, NULL if it begins them, and where it writes them. Strides
// are those of rows, in sums. Sums are formed in parts of so many steps.
typedef struct {
  void *from, *to;
  int64_t from_stride, to_stride, part;
} panel_sums;

// A panel kernel adds `depth` products of rows of a panel of the left operand and one of the right
// to `height` rows of so many registers of sums, part by part.
typedef void panel_kernel(int64_t depth, const void *left, const void *right, const panel_sums *sums, const prefetch *next);

// Loops over the sums of a kernel, and over its registers of a row.
#define EACH_SUM UNROLL for (int i = 0; i < height; i++) UNROLL for (int j = 0; j < wide; j++)
#define EACH_REGISTER UNROLL for (int j = 0; j < wide; j++)

#define PANEL_KERNELS(name, registers, target, fuse)                                                                                           \
  static inline __attribute__((always_inline)) target void name(const int height, const int wide, int64_t depth, const registers##_real *left, \
                                                                const registers##_real *right, const panel_sums *sums, const prefetch *next) { \
    enum { lanes = registers##_lanes };                                                                                                        \
    const registers##_real *from = sums->from;                                                                                                 \
    registers##_real *const to = sums->to;                                                                                                     \
    int64_t from_stride = sums->from_stride;                                                                                                   \
    registers##_v sum[panel_height][panel_registers], y[panel_registers];                                                                      \
    EACH_SUM {                                                                                                                                 \
      if (from && from != to) __builtin_prefetch((const char *)(from + i * from_stride + j * lanes));                                          \
      __builtin_prefetch((const char *)(to + i * sums->to_stride + j * lanes));                                                                \
    }                                                                                                                                          \
    for (int64_t step = 0, end; step < depth; from = to, from_stride = sums->to_stride) {                                                      \
      EACH_SUM sum[i][j] = registers##_set(0);                                                                                                 \
      for (end = least(step + sums->part, depth); step < end; step++, left += panel_height, right += panel_registers * lanes) {                \
        PREFETCH_STEP(next)                                                                                                                    \
        EACH_REGISTER y[j] = registers##_load_real(right + j * lanes);                                                                         \
        UNROLL for (int i = 0; i < height; i++) {                                                                                              \
          const registers##_v x = registers##_set(left[i]);                                                                                    \
          EACH_REGISTER sum[i][j] = fuse(x, y[j], sum[i][j]);                                                                                  \
        }                                                                                                                                      \
      }                                                                                                                                        \
      EACH_SUM {                                                                                                                               \
        if (from) sum[i][j] = registers##_load_real(from + i * from_stride + j * lanes) + sum[i][j];                                           \
        registers##_store_real(to + i * sums->to_stride + j * lanes, sum[i][j]);                                                               \
      }                                                                                                                                        \
    }                                                                                                                                          \
  }                                                                                                                                            \
  FOR_EACH_PANEL(PANEL_KERNEL, name, target)                                                                                                   \
  static panel_kernel *JOIN(name, of)(int64_t height, int64_t wide) {                                                                          \
    FOR_EACH_PANEL(CHOOSE, name, )                                                                                                             \
    return 0;                                                                                                                                  \
  }

// whole tells that a tile is made of whole registers, and that there is a kernel for its last rows'
// height.
#define IS_HEIGHT(tall, registers, name, target) || rest == tall
static int whole(int64_t rows, int64_t columns, int64_t lanes) {
  const int64_t rest = rows % panel_height;
  return columns % lanes == 0 && (rest == 0 FOR_EACH_HEIGHT(IS_HEIGHT, , , ));
}

#define PANEL_KERNEL(height, wide, name, target)                                                                                                  \
  target static void name##_##height##_##wide(int64_t depth, const void *left, const void *right, const panel_sums *sums, const prefetch *next) { \
    name(height, wide, depth, left, right, sums, next);                                                                                           \
  }
#define CHOOSE(tall, registers, name, target) \
  if (height <= tall && wide == registers) return name##_##tall##_##registers;

PANEL_KERNELS(multiply_f32, f, TARGET, f_fma)
PANEL_KERNELS(multiply_f64, d, TARGET, d_fma)

// The processor's instructions for bfloat16 take numbers below 2^-126 for zeros, those that they
// read and those that they make. Where no number but zero is so small that this could be seen, they
// have the accuracy of float32 sums; elsewhere operands are lifted, or both halves are multiplied
// as floats.

#ifdef PAIRS

#define TARGET_PAIRS __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,prfchw,avx512bf16")))
static inline __attribute__((always_inline)) TARGET_PAIRS f_v f_fuse_pairs(f_v x, f_v y, f_v sum) {
  return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_castps_si512(x), (__m512bh)_mm512_castps_si512(y));
}
// In the instruction's order, the odd one first, so that a panel has the same bits whichever way
// its neighbours' numbers send it.
INLINE f_v f_fuse_halves(f_v x, f_v y, f_v sum) { return f_fma(f_low_half(x), f_low_half(y), f_fma(f_high_half(x), f_high_half(y), sum)); }
PANEL_KERNELS(multiply_pairs, f, TARGET_PAIRS, f_fuse_pairs)
PANEL_KERNELS(multiply_halves, f, TARGET, f_fuse_halves)
#endif

#ifdef AMX
#include "gemm_amx.h"
#else
enum { amx_width = 0, amx_part = 0 };
INLINE int whole_tiles(int64_t rows, int64_t columns) { return 0; }
#endif

// depth_of_part is the length of a part of the depth, of so many words that are packed at a time. A
// sum's error grows with the length of its parts and with their number: short sums of float32 and
// float64 have shorter parts than the cache asks for, of a power of two near twice the depth's
// root. Others are rounded to 16 bits, and a sum's error counts for little.
INLINE int64_t depth_of_part(int64_t form, int64_t units) {
  if (form == EPG_BFLOAT16_TILES || form == EPG_FLOAT16_TILES) return amx_part;
  if (form != EPG_FLOAT32 && form != EPG_FLOAT64) return depth_stretch;
  int64_t steps = 32;
  while (steps * steps < 4 * units) steps *= 2;
  return least(steps, depth_stretch);
}

#include "few_rows.h"

// kernel_for returns the panel kernel for `height` rows of `wide` registers; AMX's kernels always
// have two registers in a row. as_floats is for forms of bfloat16 only. exchanged makes a
// difference to float16's tiles only.
static panel_kernel *kernel_for(int64_t form, int64_t height, int64_t wide, int as_floats, int exchanged) {
#ifdef PAIRS
  if (form == EPG_BFLOAT16_PAIRS) return as_floats ? multiply_halves_of(height, wide) : multiply_pairs_of(height, wide);
#endif
#ifdef AMX
  if (form == EPG_BFLOAT16_TILES || form == EPG_FLOAT16_TILES) return amx_kernel_for(form, height, as_floats, exchanged);
#endif
  return form == EPG_FLOAT64 ? multiply_f64_of(height, wide) : multiply_f32_of(height, wide);
}

// write rounds a row of sums to storage, through a kernel.
TARGET static void write(const epg_tile *t, const epg_result *to, epg_kernel *kernel, int64_t row, char *base, const char *from) {
  _Alignas(64) char rounded[EPG_BLOCK * 8];
  char *const wide[EPG_OUTPUTS] = {0};
  char *at = base + axis_offset(&to->rows, t->row + row) + t->column * to->column_stride;
  int64_t done = to->column_stride == t->size ? t->columns & -EPG_GROUP : 0;
  if (done) kernel(done, (char *const[EPG_OUTPUTS]){at}, wide, (const char *const[EPG_INPUTS]){from}, t->parameters);
  if (done == t->columns) return;
  kernel(whole_groups(t->columns - done), (char *const[EPG_OUTPUTS]){rounded}, wide, (const char *const[EPG_INPUTS]){from + done * t->sum_size}, t->parameters);
  copy(at + done * to->column_stride, to->column_stride, rounded, t->size, t->columns - done, t->size);
}

// add adds n stored numbers to a row of sums.
TARGET static void add(const epg_tile *t, char *sums, const char *from, int64_t stride) {
  _Alignas(64) char numbers[EPG_BLOCK * 8];
  char *const wide[EPG_OUTPUTS] = {0};
  const int64_t n = whole_groups(t->columns);
  copy(numbers, t->size, from, stride, t->columns, t->size);
  memset(numbers + t->columns * t->size, 0, (n - t->columns) * t->size);
  t->add(n, (char *const[EPG_OUTPUTS]){sums}, wide, (const char *const[EPG_INPUTS]){numbers}, 0);
}

// prefetch_result prefetches part of a result that is about to be written.
INLINE void prefetch_result(const epg_tile *t, const epg_result *to, char *base, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  if (!base || to->column_stride != t->size) return;
  for (int64_t i = 0; i < rows; i++) {
    const char *at = base + axis_offset(&to->rows, t->row + row + i) + (t->column + column) * t->size;
    for (int64_t line = 0; line < columns * t->size; line += 64) __builtin_prefetch(at + line, 1, 3);
  }
}

// lift_sums multiplies a tile's sums by a power of two.
TARGET static void lift_sums(const epg_tile *t, char *sums, int64_t powers) {
  const int64_t bytes = (t->columns * t->sum_size + VECTOR_BYTES - 1) & -VECTOR_BYTES;
  for (int64_t row = 0; row < t->rows; row++) lift(t->form == EPG_FLOAT64 ? EPG_FLOAT64 : EPG_FLOAT32, sums + row * t->stride * t->sum_size, bytes, powers);
}

// product is a tile that is being computed:
//
//                      right panel
//                       <- width ->
//                      +-----------+-----------+
//              depth   |           |           |    One kernel multiplies a left panel by a right one, over
//                      +-----------+-----------+    a stretch of the depth: the right panel's stretch stays
//          +---------+ +-----------+-----------+    in the nearest cache while all left panels pass by, then
//   height |  left   | |   sums    |           |    comes the next right panel, then the next stretch.
//          |  panel  | |           |           |
//          +---------+ +-----------+-----------+
typedef struct {
  const epg_tile *tile;
  epg_panels panels;
  epg_memory memory;
  int64_t size, lanes;    // bytes of a sum; sums in a register
  int64_t height, width;  // rows of a left and of a right panel
  int64_t part, stretch;  // the most of the depth that is one sum, and that a kernel multiplies
  int amx, pairs;         // the form is of tiles; of pairs
  int direct;             // the last part's kernels write the result
} product;

INLINE product product_of(const epg_tile *t, const epg_panels *panels, const epg_memory *memory) {
  const int amx = t->form == EPG_BFLOAT16_TILES || t->form == EPG_FLOAT16_TILES;
  const int64_t lanes = t->form == EPG_FLOAT64 ? d_lanes : f_lanes, part = depth_of_part(t->form, t->units);
  return (product){
      .tile = t,
      .panels = *panels,
      .memory = *memory,
      .size = t->sum_size,
      .lanes = lanes,
      .height = amx ? amx_width : panel_height,
      .width = amx ? amx_width : panel_registers * lanes,
      .part = part,
      .stretch = part < depth_stretch ? depth_stretch - depth_stretch % part : part,
      .amx = amx,
      .pairs = amx || t->form == EPG_BFLOAT16_PAIRS,
      .direct = t->plain && t->last && t->units && !t->lifted && (amx ? whole_tiles(t->rows, t->columns) : whole(t->rows, t->columns, lanes)),
  };
}

// Where the panel of a row or column lies, from a step of the depth on.
INLINE const char *left_panel(const product *p, int64_t row, int64_t step) { return p->panels.left + (row * p->tile->units + step * p->height) * p->size; }
INLINE const char *right_panel(const product *p, int64_t column, int64_t step) {
  return p->panels.right + (column * p->tile->units + step * p->width) * p->size;
}

// span is a stretch of the depth: [first, first + depth), with `more` behind it.
typedef struct {
  int64_t first, depth, more;
} span;

// first_prefetch is what the first kernel of a right panel prefetches: its part of the next right
// panel, or, behind the last columns, of the first panel's next part. Each kernel has a part of its
// own. AMX finds the left operand's panels near enough but for the first columns.
INLINE prefetch first_prefetch(const product *p, span s, int64_t column, int is_last) {
  const int64_t kernels = (p->tile->rows + p->height - 1) / p->height;
  const int64_t steps = is_last ? least(s.depth, s.more) : s.depth;  // that the next panel has
  prefetch next = {
      .left_step = p->amx && column ? 0 : p->height * p->size,
      .right_step = (steps * p->width * p->size / kernels + s.depth - 1) / s.depth,
      .right = right_panel(p, column, s.first),
  };
  if (steps) next.right = is_last ? right_panel(p, 0, s.first + s.depth) : right_panel(p, column + p->width, s.first);
  return next;
}

// next_left is the left panel after a row's: below it, or back at the first rows, of the next part
// behind the last columns.
INLINE const char *next_left(const product *p, span s, int64_t row, int is_last) {
  if (row + p->height < p->tile->rows) return left_panel(p, row + p->height, s.first);
  return left_panel(p, 0, is_last && s.more ? s.first + s.depth : s.first);
}

// sums_of says where a kernel finds its sums and puts them.
INLINE panel_sums sums_of(const product *p, span s, int64_t row, int64_t column) {
  const epg_tile *t = p->tile;
  char *const sums = p->memory.sums + (row * t->stride + column) * p->size;
  panel_sums at = {.from = t->first && s.first == 0 ? 0 : sums, .to = sums, .from_stride = t->stride, .to_stride = t->stride, .part = p->part};
  if (p->direct && !s.more) {
    at.to = p->memory.out + axis_offset(&t->out.rows, t->row + row) + (t->column + column) * p->size;
    at.to_stride = t->out.rows.strides[0] / p->size;
  }
  return at;
}

// too_small tells that products of pairs could be flushed to zero, so that both halves are
// multiplied as floats.
INLINE int too_small(const product *p, int64_t row, int64_t column) {
  if (!p->pairs || p->tile->lifted) return 0;
  // packing's: two of a kernel's where those are halves
  const int64_t panel = p->amx ? amx_width : f_lanes;
  const int x = p->panels.left_smallest[row / panel], y = p->panels.right_smallest[column / p->width];
  return !x || !y || x + y < EPG_LEAST_EXPONENTS;
}

// multiply_column multiplies all left panels by one right panel, over a stretch of the depth.
TARGET static void multiply_column(const product *p, span s, int64_t column) {
  const epg_tile *t = p->tile;
  const int64_t columns = least(p->width, t->columns - column), registers = (columns + p->lanes - 1) / p->lanes;
  const int is_last = column + columns == t->columns;
  const char *const right = right_panel(p, column, s.first);
  panel_kernel *const kernels[] = {kernel_for(t->form, p->height, registers, 0, t->exchanged), kernel_for(t->form, p->height, registers, 1, t->exchanged)};
  prefetch next = first_prefetch(p, s, column, is_last);
  for (int64_t row = 0; row < t->rows; row += p->height, next.right += next.right_step * s.depth) {
    const int64_t height = least(p->height, t->rows - row);
    const int as_floats = too_small(p, row, column);
    const panel_sums at = sums_of(p, s, row, column);
    next.left = next_left(p, s, row, is_last);
    if (t->last && !s.more && !p->direct && !p->amx) {  // AMX's kernels are slower with it
      prefetch_result(t, &t->out, p->memory.out, row, height, column, columns);
      prefetch_result(t, &t->pre, p->memory.pre, row, height, column, columns);
    }
    panel_kernel *const kernel = height == p->height ? kernels[as_floats] : kernel_for(t->form, height, registers, as_floats, t->exchanged);
    kernel(s.depth, left_panel(p, row, s.first), right, &at, &next);
  }
}

// clear_sums gives a product without a depth its sums. A bias is added to -0, since -0 + x is x for
// every x.
INLINE void clear_sums(const product *p, double zero) {
  const epg_tile *t = p->tile;
  for (int64_t row = 0; row < t->rows; row++)
    for (int64_t i = row * t->stride; i < (row + 1) * t->stride; i++) {
      if (t->form == EPG_FLOAT64)
        ((double *)p->memory.sums)[i] = zero;
      else
        ((float *)p->memory.sums)[i] = (float)zero;
    }
}

// finish_rows makes results of complete sums: pre = sums + bias, out = act(pre) (+ out).
TARGET static void finish_rows(const product *p) {
  enum { rows_ahead = 2 };
  const char *const bias = p->memory.bias;
  const epg_tile *t = p->tile;
  for (int64_t row = 0; row < t->rows; row++) {
    char *sums = p->memory.sums + row * t->stride * p->size;
    if (p->amx && row + rows_ahead < t->rows) {
      prefetch_result(t, &t->out, p->memory.out, row + rows_ahead, 1, 0, t->columns);
      prefetch_result(t, &t->pre, p->memory.pre, row + rows_ahead, 1, 0, t->columns);
    }
    if (bias) add(t, sums, bias + t->column * t->bias_stride, t->bias_stride);
    if (t->accumulate) add(t, sums, p->memory.out + axis_offset(&t->out.rows, t->row + row) + t->column * t->out.column_stride, t->out.column_stride);
    if (p->memory.pre) write(t, &t->pre, t->store, row, p->memory.pre, sums);
    if (p->memory.out) write(t, &t->out, t->value, row, p->memory.out, sums);
  }
}

TARGET static void multiply(const epg_tile *t, const epg_panels *panels, const epg_memory *memory) {
  const product p = product_of(t, panels, memory);
  if (!t->units) clear_sums(&p, memory->bias ? -0.0 : 0.0);
  if (t->lifted && !t->first) lift_sums(t, memory->sums, t->lifted);
#ifdef AMX
  if (p.amx) amx_begin();
#endif
  for (span s = {0}; s.first < t->units; s.first += p.stretch) {
    s.depth = least(p.stretch, t->units - s.first);
    s.more = t->units - s.first - s.depth;
    for (int64_t column = 0; column < t->columns; column += p.width) multiply_column(&p, s, column);
  }
#ifdef AMX
  if (p.amx) amx_end();
#endif
  if (t->lifted) lift_sums(t, memory->sums, -t->lifted);
  if (t->last && !p.direct) finish_rows(&p);
}

// finish makes the results of sums that multiply_few has added up.
TARGET static void finish(const epg_tile *t, const epg_memory *memory) {
  const product p = {.tile = t, .memory = *memory, .size = t->sum_size};
  finish_rows(&p);
}
