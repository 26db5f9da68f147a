// Products of packed panels. Every sum is formed in the order of the depth, in parts of one length that are added up: tiles, panels and threads have no influence. Where operands are
// lifted (lift.h), only what was denormal on the way is another sum.

#pragma once

#include "lift.h"
#include "loops.h"

// Panels, and how they lie:
//
//   right: depth x three registers
//   left:  depth x tile_rows, of float64 as many as a register has lanes; of floats half as many, so the panel's second half lies behind the first
enum { tile_registers = 3 };
_Static_assert(d_lanes == tile_rows && f_lanes == 2 * tile_rows, "packing writes registers, or halves of one, to the left operand's panels");
// A part of the depth is so many steps that the right operand's panel takes 24 KiB, half or three quarters of the nearest cache, in which the left operand's panels pass by.
enum { depth_part = (24 << 10) / (tile_registers * VECTOR_BYTES) };

// axis_offset returns the bytes from an axis's start to an index.
INLINE int64_t axis_offset(const epg_axis *a, int64_t index) {
  if (a->rank == 1) return index * a->strides[0];
  int64_t bytes = 0;
  for (int64_t d = a->rank - 1; d >= 0; d--) {
    bytes += index % a->sizes[d] * a->strides[d];
    index /= a->sizes[d];
  }
  return bytes;
}

// As many panels are packed side by side at most, each of as many rows.
enum { side_by_side = 4, most_width = tile_registers * f_lanes };

// What is found out about a panel on the way: whether numbers are denormal, of pairs the smallest one, of float16 nothing. Its bytes are NOTHING_FOUND at first.
#define NOTHING_FOUND 0
#define FOUND V(m)
#define FIND(found, x) found = V(either)(found, V(denormal)(x));
#define TELL(smallest, found) smallest = !V(any)(found);
#define LOAD_LINES(line) V(JOIN(load, STORAGE))(line[0])
#define REGISTERS f
#define FORM float32
#define STORAGE float32
#define UNIT 4
#define ELEMENT 4
#include "pack.h"

#define REGISTERS f
#define FORM bfloat16
#define STORAGE bfloat16
#define UNIT 2
#define ELEMENT 2
#include "pack.h"

#define REGISTERS d
#define FORM float64
#define STORAGE float64
#define UNIT 8
#define ELEMENT 8
#include "pack.h"
#undef FOUND
#undef FIND
#undef TELL

#define FOUND char
#define FIND(found, x)
#define TELL(smallest, found) smallest = 1;
#define REGISTERS f
#define FORM float16
#define STORAGE float16
#define UNIT 2
#define ELEMENT 2
#include "pack.h"
#undef FOUND
#undef FIND
#undef TELL
#undef LOAD_LINES
#undef NOTHING_FOUND

#if defined(PAIRS) || defined(TILES)
// Magnitudes less 1, so that zero becomes the largest.
INLINE __m512i least_magnitudes(__m512i least, f_v pairs) {
  const __m512i magnitudes = _mm512_and_si512(_mm512_castps_si512(pairs), _mm512_set1_epi16(0x7fff));
  return _mm512_min_epu16(least, _mm512_sub_epi16(magnitudes, _mm512_set1_epi16(1)));
}

INLINE int16_t exponent_of_smallest(__m512i less_1) {
  uint16_t lanes[32], least = UINT16_MAX;
  memcpy(lanes, &less_1, sizeof lanes);
  for (int i = 0; i < 32; i++) least = lanes[i] < least ? lanes[i] : least;
  return (int16_t)((least + 1) >> 7);
}
#endif

#ifdef PAIRS
#define NOTHING_FOUND -1
#define FOUND __m512i
#define FIND(found, x) found = least_magnitudes(found, x);
#define TELL(smallest, found) smallest = exponent_of_smallest(found);
#define LOAD_LINES(line) f_load_two_rows(line[0], line[1])
#define REGISTERS f
#define FORM pairs
#define STORAGE float32
#define UNIT 4
#define ELEMENT 2
#include "pack.h"
#undef NOTHING_FOUND
#undef FOUND
#undef FIND
#undef TELL
#undef LOAD_LINES
#endif

// What is needed soon, and is asked for from farther caches on the way: the panels of the next kernels, so many bytes of each at every step of the depth.
typedef struct {
  const char *left, *right;
  int64_t left_step, right_step;
} soon;

#define ASK_FOR(next)                                                 \
  _mm_prefetch((next)->left + step * (next)->left_step, _MM_HINT_T0); \
  _mm_prefetch((next)->right + step * (next)->right_step, _MM_HINT_T1);

// Where a panel kernel reads its sums, NULL if it begins them, and where it writes them. Strides are those of rows, in sums.
typedef struct {
  void *from, *to;
  int64_t from_stride, to_stride;
} places;

// A panel kernel adds `depth` products of rows of a panel of the left operand and one of the right to `height` rows of so many registers of sums.
typedef void panel_kernel(int64_t depth, const void *left, const void *right, const places *sums, const soon *next);

// Loops over the sums of a kernel, and over its registers of a row.
#define EACH_SUM UNROLL for (int i = 0; i < height; i++) UNROLL for (int j = 0; j < wide; j++)
#define EACH_REGISTER UNROLL for (int j = 0; j < wide; j++)

#define PANEL_KERNELS(name, registers, target, fuse)                                                                                           \
  static inline __attribute__((always_inline)) target void name(const int height, const int wide, int64_t depth, const registers##_real *left, \
                                                                const registers##_real *right, const places *sums, const soon *next) {         \
    enum { lanes = registers##_lanes };                                                                                                        \
    const registers##_real *const from = sums->from;                                                                                           \
    registers##_real *const to = sums->to;                                                                                                     \
    registers##_v sum[tile_rows][tile_registers], y[tile_registers];                                                                           \
    EACH_SUM sum[i][j] = registers##_set(0);                                                                                                   \
    EACH_SUM {                                                                                                                                 \
      if (from && from != to) _mm_prefetch((const char *)(from + i * sums->from_stride + j * lanes), _MM_HINT_T0);                             \
      _mm_prefetch((const char *)(to + i * sums->to_stride + j * lanes), _MM_HINT_T0);                                                         \
    }                                                                                                                                          \
    for (int64_t step = 0; step < depth; step++, left += tile_rows, right += tile_registers * lanes) {                                         \
      ASK_FOR(next)                                                                                                                            \
      EACH_REGISTER y[j] = registers##_load_real(right + j * lanes);                                                                           \
      UNROLL for (int i = 0; i < height; i++) {                                                                                                \
        const registers##_v x = registers##_set(left[i]);                                                                                      \
        EACH_REGISTER sum[i][j] = fuse(x, y[j], sum[i][j]);                                                                                    \
      }                                                                                                                                        \
    }                                                                                                                                          \
    EACH_SUM {                                                                                                                                 \
      if (from) sum[i][j] = registers##_load_real(from + i * sums->from_stride + j * lanes) + sum[i][j];                                       \
      registers##_store_real(to + i * sums->to_stride + j * lanes, sum[i][j]);                                                                 \
    }                                                                                                                                          \
  }                                                                                                                                            \
  FOR_EACH_TILE(PANEL_KERNEL_##name)                                                                                                           \
  static panel_kernel *JOIN(name, of)(int64_t height, int64_t wide) {                                                                          \
    FOR_EACH_TILE(CHOOSE_##name)                                                                                                               \
    return 0;                                                                                                                                  \
  }

#define FOR_EACH_TILE(macro) FOR_EACH_HEIGHT(macro, 1) FOR_EACH_HEIGHT(macro, 2) FOR_EACH_HEIGHT(macro, 3)

// whole tells that a tile is made of whole registers, and that there is a kernel for its last rows' height.
#define IS_HEIGHT(tall, wide) || rest == tall
static int whole(int64_t rows, int64_t columns, int64_t lanes) {
  const int64_t rest = rows % tile_rows;
  return columns % lanes == 0 && (rest == 0 FOR_EACH_HEIGHT(IS_HEIGHT, ));
}

#define PANEL_KERNEL(name, target, height, wide)                                                                                          \
  target static void name##_##height##_##wide(int64_t depth, const void *left, const void *right, const places *sums, const soon *next) { \
    name(height, wide, depth, left, right, sums, next);                                                                                   \
  }
#define CHOOSE(name, tall, registers) \
  if (height <= tall && wide == registers) return name##_##tall##_##registers;

#define PANEL_KERNEL_multiply_float32(height, wide) PANEL_KERNEL(multiply_float32, TARGET, height, wide)
#define CHOOSE_multiply_float32(height, wide) CHOOSE(multiply_float32, height, wide)
PANEL_KERNELS(multiply_float32, f, TARGET, f_fma)
#define PANEL_KERNEL_multiply_float64(height, wide) PANEL_KERNEL(multiply_float64, TARGET, height, wide)
#define CHOOSE_multiply_float64(height, wide) CHOOSE(multiply_float64, height, wide)
PANEL_KERNELS(multiply_float64, d, TARGET, d_fma)

// The processor's instructions for bfloat16 take numbers below 2^-126 for zeros, those that they read and those that they make. Where no number but zero is so small
// that this could be seen, they have the accuracy of float32 sums; elsewhere operands are lifted, or both halves are multiplied as floats.

#ifdef PAIRS

#define TARGET_PAIRS __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,prfchw,avx512bf16")))
static inline __attribute__((always_inline)) TARGET_PAIRS f_v f_fuse_pairs(f_v x, f_v y, f_v sum) {
  return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_castps_si512(x), (__m512bh)_mm512_castps_si512(y));
}
// In the instruction's order, the odd one first, so that a panel has the same bits whichever way its neighbours' numbers send it.
INLINE f_v f_fuse_halves(f_v x, f_v y, f_v sum) { return f_fma(f_low_half(x), f_low_half(y), f_fma(f_high_half(x), f_high_half(y), sum)); }
#define PANEL_KERNEL_multiply_pairs(height, wide) PANEL_KERNEL(multiply_pairs, TARGET_PAIRS, height, wide)
#define CHOOSE_multiply_pairs(height, wide) CHOOSE(multiply_pairs, height, wide)
PANEL_KERNELS(multiply_pairs, f, TARGET_PAIRS, f_fuse_pairs)
#define PANEL_KERNEL_multiply_halves(height, wide) PANEL_KERNEL(multiply_halves, TARGET, height, wide)
#define CHOOSE_multiply_halves(height, wide) CHOOSE(multiply_halves, height, wide)
PANEL_KERNELS(multiply_halves, f, TARGET, f_fuse_halves)
#endif

#ifdef TILES
#include "gemm_tiles.h"
#else
enum { tiles_width = 0, tiles_part = 0 };
#endif

// kernel_for returns the kernel for so many rows and registers of a row, which AMX's tiles have two of in any case. as_floats is for forms of bfloat16 only, and exchanged makes a
// difference to float16's tiles only.
static panel_kernel *kernel_for(int64_t form, int64_t height, int64_t wide, int as_floats, int exchanged) {
  (void)as_floats;
  (void)exchanged;
#ifdef PAIRS
  if (form == EPG_BFLOAT16_PAIRS) return as_floats ? multiply_halves_of(height, wide) : multiply_pairs_of(height, wide);
#endif
#ifdef TILES
  if (form == EPG_BFLOAT16_TILES || form == EPG_FLOAT16_TILES) return tiles_of_height(form, height, as_floats, exchanged);
#endif
  return form == EPG_FLOAT64 ? multiply_float64_of(height, wide) : multiply_float32_of(height, wide);
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

// ask_for_result asks for what is about to be written: by kernels that compute the last sums, but for AMX's, which are slower with it.
INLINE void ask_for_result(const epg_tile *t, const epg_result *to, char *base, int64_t row, int64_t rows, int64_t column, int64_t columns) {
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

TARGET static void multiply(const epg_tile *t, const char *left, const char *right, const int16_t *left_smallest, const int16_t *right_smallest, char *sums,
                            char *out, char *pre, const char *bias) {
  const int tiles = t->form == EPG_BFLOAT16_TILES || t->form == EPG_FLOAT16_TILES, pairs = tiles || t->form == EPG_BFLOAT16_PAIRS;
  const int64_t lanes = t->form == EPG_FLOAT64 ? d_lanes : f_lanes, size = t->sum_size;
  const int64_t width = tiles ? tiles_width : tile_registers * lanes, tall = tiles ? tiles_width : tile_rows;
  const int direct = t->plain && t->last && t->units && !t->lifted && whole(t->rows, t->columns, lanes);
  if (!t->units)  // -0 + x is x for every x
    for (int64_t row = 0; row < t->rows; row++)
      for (int64_t i = 0; i < t->stride; i++) {
        if (t->form == EPG_FLOAT64)
          ((double *)sums)[row * t->stride + i] = bias ? -0.0 : 0.0;
        else
          ((float *)sums)[row * t->stride + i] = bias ? -0.0f : 0.0f;
      }
  if (t->lifted && !t->first) lift_sums(t, sums, t->lifted);
#ifdef TILES
  if (tiles) tiles_begin();
#endif
  const int64_t turns = (t->rows + tall - 1) / tall, most = tiles ? tiles_part : depth_part;
  for (int64_t k = 0; k < t->units; k += most) {
    const int64_t depth = least(most, t->units - k), more = t->units - k - depth, begin = t->first && k == 0;
    for (int64_t column = 0; column < t->columns; column += width) {
      const int64_t columns = least(width, t->columns - column), wide = (columns + lanes - 1) / lanes, last = column + columns == t->columns;
      const char *below = left + k * tall * size, *beside = right + (column * t->units + k * width) * size;
      const int y = pairs ? right_smallest[column / width] : 0;
      panel_kernel *const kernels[] = {kernel_for(t->form, tall, wide, 0, t->exchanged), kernel_for(t->form, tall, wide, 1, t->exchanged)};
      // The next columns' panel, or the first one's next part, is asked for by pieces, one with each kernel. The left operand's panels are near enough for tiles but for the first column.
      const int64_t after = last ? least(depth, more) : depth, right_step = (after * width * size / turns + depth - 1) / depth;
      soon next = {.left_step = tiles && column ? 0 : tall * size, .right_step = right_step, .right = beside};
      if (after) next.right = last ? right + (k + depth) * width * size : beside + width * t->units * size;
      // Back to the first rows, of the next part after the last column.
      const char *const first = left + (last && more ? k + depth : k) * tall * size;
      for (int64_t row = 0, turn = 0; row < t->rows; row += tall, turn++, below += tall * t->units * size, next.right += right_step * depth) {
        const int64_t height = least(tall, t->rows - row);
        next.left = row + tall < t->rows ? below + tall * t->units * size : first;
        places at = {.from = sums + (row * t->stride + column) * size, .from_stride = t->stride, .to_stride = t->stride};
        at.to = at.from;
        if (begin) at.from = 0;
        if (direct && !more) {
          at.to = out + axis_offset(&t->out.rows, t->row + row) + (t->column + column) * size;
          at.to_stride = t->out.rows.strides[0] / size;
        } else if (t->last && !more && !tiles) {
          ask_for_result(t, &t->out, out, row, height, column, columns);
          ask_for_result(t, &t->pre, pre, row, height, column, columns);
        }
        const int x = !pairs ? 0 : left_smallest[tiles ? turn : turn / (f_lanes / tile_rows)],
                  as_floats = !t->lifted && (!x || !y || x + y < EPG_LEAST_EXPONENTS);
        (height == tall ? kernels[as_floats] : kernel_for(t->form, height, wide, as_floats, t->exchanged))(depth, below, beside, &at, &next);
      }
    }
  }
#ifdef TILES
  if (tiles) tiles_end();
#endif
  if (t->lifted) lift_sums(t, sums, -t->lifted);
  if (!t->last || direct) return;
  enum { rows_ahead = 2 };
  for (int64_t row = 0; row < t->rows; row++) {
    char *line = sums + row * t->stride * size;
    if (tiles && row + rows_ahead < t->rows) {
      ask_for_result(t, &t->out, out, row + rows_ahead, 1, 0, t->columns);
      ask_for_result(t, &t->pre, pre, row + rows_ahead, 1, 0, t->columns);
    }
    if (bias) add(t, line, bias + t->column * t->bias_stride, t->bias_stride);
    if (t->accumulate) add(t, line, out + axis_offset(&t->out.rows, t->row + row) + t->column * t->out.column_stride, t->out.column_stride);
    if (pre) write(t, &t->pre, t->store, row, pre, line);
    if (out) write(t, &t->out, t->value, row, out, line);
  }
}

TARGET static void pack(const epg_operand *p, int64_t panel, int64_t count, const char *from, char *to, int16_t *smallest) {
  switch (p->form) {
    case EPG_FLOAT32:
      pack_float32(p, panel, count, from, to, smallest);
      break;
    case EPG_FLOAT64:
      pack_float64(p, panel, count, from, to, smallest);
      break;
    case EPG_BFLOAT16:
      pack_bfloat16(p, panel, count, from, to, smallest);
      break;
    case EPG_FLOAT16:
      pack_float16(p, panel, count, from, to, smallest);
      break;
#ifdef PAIRS
    case EPG_BFLOAT16_PAIRS:
      pack_pairs(p, panel, count, from, to, smallest);
      break;
#endif
#ifdef TILES
    case EPG_BFLOAT16_TILES:
      pack_bfloat16_tiles(p, panel, count, from, to, smallest);
      break;
    case EPG_FLOAT16_TILES:
      pack_float16_tiles(p, panel, count, from, to, smallest);
      break;
#endif
  }
}
