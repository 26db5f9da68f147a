// Kernels that multiply panels of half types on AMX's tiles, and the same without tiles. gemm.h
// includes it in engines with AMX; panels are those of pack_amx.h.
#pragma once

#include "pack_amx.h"

// A part of the depth is longer than gemm.h's: sums come and go by whole tiles, which costs more.
enum { amx_part = 256 };

// whole_tiles tells that sums are made of what the kernels write: two tiles side by side, and 16
// rows or 32.
INLINE int whole_tiles(int64_t rows, int64_t columns) { return rows % tile_words == 0 && columns % amx_width == 0; }

// prefetch_tiles prefetches what a step of the next kernels reads.
INLINE void prefetch_tiles(const prefetch *next, int64_t step) {
  const char *left = next->left + step * next->left_step, *right = next->right + step * next->right_step;
  for (int64_t i = 0; i < tile_words * next->left_step; i += 64) _mm_prefetch(left + i, _MM_HINT_T1);
  for (int64_t i = 0; i < tile_words * next->right_step; i += 64) _mm_prefetch(right + i, _MM_HINT_T1);
}

// Sums are tiles 0 to 3 (0 and 1 of the first 16 rows), the left operand's are 4 and 5, the right
// one's 6 and 7. 16 rows leave out 2, 3 and 5.
#define TILES_KERNEL(height)                                                                                                                \
  TARGET_AMX static void multiply_bfloat16_tiles_##height(int64_t depth, const void *left_at, const void *right_at, const panel_sums *sums, \
                                                          const prefetch *next) {                                                           \
    const char *left = left_at, *right = right_at;                                                                                          \
    TILES_LOAD_SUMS(height)                                                                                                                 \
    for (int64_t step = 0; step < depth; step += tile_words, left += block_bytes, right += block_bytes) {                                   \
      prefetch_tiles(next, step);                                                                                                           \
      TILES_LOAD_LEFT(height, left)                                                                                                         \
      tile_load(6, right, tile_stride);                                                                                                     \
      tile_multiply(0, 4, 6);                                                                                                               \
      if (height > tile_words) tile_multiply(2, 5, 6);                                                                                      \
      tile_load(7, right + tile_bytes, tile_stride);                                                                                        \
      tile_multiply(1, 4, 7);                                                                                                               \
      if (height > tile_words) tile_multiply(3, 5, 7);                                                                                      \
    }                                                                                                                                       \
    TILES_STORE_SUMS(height)                                                                                                                \
  }

// The four products of a step, in this order, by the terms of the left and the right operand:
//
//   first x first,  first x second,  second x second,  second x first
//
// Each but the first loads one term anew. Where operands are exchanged, the second product and the
// fourth are too, so that every sum is formed as if the operands were not.
#define FLOAT16_TILES_KERNEL(way, height, load_for_second, load_for_third, load_for_fourth)                                                  \
  TARGET_AMX static void multiply_float16_##way##_##height(int64_t depth, const void *left_at, const void *right_at, const panel_sums *sums, \
                                                           const prefetch *next) {                                                           \
    const char *left = left_at, *right = right_at;                                                                                           \
    TILES_LOAD_SUMS(height)                                                                                                                  \
    for (int64_t step = 0; step < depth; step += 2 * tile_words, left += 2 * block_bytes, right += 2 * block_bytes) {                        \
      prefetch_tiles(next, step);                                                                                                            \
      prefetch_tiles(next, step + tile_words);                                                                                               \
      TILES_LOAD_LEFT(height, left)                                                                                                          \
      TILES_LOAD_RIGHT(right)                                                                                                                \
      TILES_MULTIPLY(height)                                                                                                                 \
      load_for_second TILES_MULTIPLY(height) load_for_third TILES_MULTIPLY(height) load_for_fourth TILES_MULTIPLY(height)                    \
    }                                                                                                                                        \
    TILES_STORE_SUMS(height)                                                                                                                 \
  }
#define FLOAT16_TILES_KERNELS(height)                                                                                                              \
  FLOAT16_TILES_KERNEL(tiles, height, TILES_LOAD_RIGHT(right + block_bytes), TILES_LOAD_LEFT(height, left + block_bytes), TILES_LOAD_RIGHT(right)) \
  FLOAT16_TILES_KERNEL(exchanged, height, TILES_LOAD_LEFT(height, left + block_bytes), TILES_LOAD_RIGHT(right + block_bytes), TILES_LOAD_LEFT(height, left))

#define TILES_LOAD_LEFT(height, from)                    \
  tile_load_once(4, from, tile_stride);                  \
  if (height > tile_words) {                             \
    tile_load_once(5, (from) + tile_bytes, tile_stride); \
  }
#define TILES_LOAD_RIGHT(from)     \
  tile_load(6, from, tile_stride); \
  tile_load(7, (from) + tile_bytes, tile_stride);
#define TILES_MULTIPLY(height) \
  tile_multiply(0, 4, 6);      \
  tile_multiply(1, 4, 7);      \
  if (height > tile_words) {   \
    tile_multiply(2, 5, 6);    \
    tile_multiply(3, 5, 7);    \
  }
// The compiler does not know what tiles read and write.
#define TILES_LOAD_SUMS(height)                                                       \
  __asm__ volatile("" ::: "memory");                                                  \
  if (!sums->from) {                                                                  \
    tile_zero(0);                                                                     \
    tile_zero(1);                                                                     \
    tile_zero(2);                                                                     \
    tile_zero(3);                                                                     \
  } else {                                                                            \
    const int64_t stride = sums->from_stride * 4;                                     \
    const char *const upper = sums->from, *const lower = upper + tile_words * stride; \
    tile_load(0, upper, stride);                                                      \
    tile_load(1, upper + 64, stride);                                                 \
    if (height > tile_words) {                                                        \
      tile_load(2, lower, stride);                                                    \
      tile_load(3, lower + 64, stride);                                               \
    }                                                                                 \
  }
#define TILES_STORE_SUMS(height)                                            \
  const int64_t stride = sums->to_stride * 4;                               \
  char *const upper = sums->to, *const lower = upper + tile_words * stride; \
  tile_store(0, upper, stride);                                             \
  tile_store(1, upper + 64, stride);                                        \
  if (height > tile_words) {                                                \
    tile_store(2, lower, stride);                                           \
    tile_store(3, lower + 64, stride);                                      \
  }                                                                         \
  __asm__ volatile("" ::: "memory");

TILES_KERNEL(16)
TILES_KERNEL(32)
FLOAT16_TILES_KERNELS(16)
FLOAT16_TILES_KERNELS(32)

// An infinity times a second term, which may be zero, would be NaN: it is hidden from second terms.
// The product of first terms has all that it is worth.
INLINE f_v shown(f_v x, const int hide) { return hide ? f_select(is_infinite(x), f_set(0), x) : x; }

// add_products adds the products of a step's words to four rows' sums in the order of a tile's
// instruction: even elements and odd ones by themselves, then both.
enum { rows_as_floats = 4 };
INLINE void add_products(const int hide_left, const int hide_right, const char *left, const char *right, f_v *low, f_v *high) {
  f_v even[2][rows_as_floats], odd[2][rows_as_floats];
  UNROLL for (int i = 0; i < rows_as_floats; i++) even[0][i] = even[1][i] = odd[0][i] = odd[1][i] = f_set(0);
  for (int word = 0; word < tile_words; word++, left += 4, right += tile_stride) {
    f_v y[2][2];
    UNROLL for (int half = 0; half < 2; half++) {
      const f_v words = f_load_f32(right + half * tile_bytes);
      y[half][0] = shown(f_low_half(words), hide_right);
      y[half][1] = shown(f_high_half(words), hide_right);
    }
    UNROLL for (int i = 0; i < rows_as_floats; i++) {
      float words;
      memcpy(&words, left + i * tile_stride, sizeof words);
      const f_v x[2] = {shown(f_low_half(f_set(words)), hide_left), shown(f_high_half(f_set(words)), hide_left)};
      UNROLL for (int half = 0; half < 2; half++) {
        even[half][i] = f_fma(x[0], y[half][0], even[half][i]);
        odd[half][i] = f_fma(x[1], y[half][1], odd[half][i]);
      }
    }
  }
  UNROLL for (int i = 0; i < rows_as_floats; i++) {
    low[i] = low[i] + (even[0][i] + odd[0][i]);
    high[i] = high[i] + (even[1][i] + odd[1][i]);
  }
}

// The same panels without tiles, for what those cannot do. Every sum is formed in their order, so a
// row has the bits that tiles give it whichever way its neighbours' numbers send it.
//
// Tiles would also take for zero what becomes smaller than 2^-126 on the way, but nothing does
// there: EPG_LEAST_EXPONENTS keeps every product but zeros above 2^-100, so that sums are multiples
// of 2^-114.
INLINE void multiply_as_floats(const int terms, const int exchanged, int64_t height, int64_t depth, const char *left, const char *right,
                               const panel_sums *sums) {
  for (int64_t row = 0; row < height; row += rows_as_floats) {
    f_v low[rows_as_floats], high[rows_as_floats];
    UNROLL for (int i = 0; i < rows_as_floats; i++) {
      const float *at = sums->from ? (const float *)sums->from + (row + i) * sums->from_stride : 0;
      low[i] = at ? f_load_f32(at) : f_set(0);
      high[i] = at ? f_load_f32(at + f_lanes) : f_set(0);
    }
    for (int64_t k = 0; k < depth; k += terms * tile_words) {
      const char *x = left + k * amx_width * 4 + row * tile_stride, *y = right + k * amx_width * 4;
      add_products(0, 0, x, y, low, high);
      if (terms == 1) continue;
      // As in FLOAT16_TILES_KERNEL.
      if (exchanged)
        add_products(0, 1, x + block_bytes, y, low, high);
      else
        add_products(1, 0, x, y + block_bytes, low, high);
      add_products(0, 0, x + block_bytes, y + block_bytes, low, high);
      if (exchanged)
        add_products(1, 0, x, y + block_bytes, low, high);
      else
        add_products(0, 1, x + block_bytes, y, low, high);
    }
    UNROLL for (int i = 0; i < rows_as_floats; i++) {
      float *at = (float *)sums->to + (row + i) * sums->to_stride;
      f_store_f32(at, low[i]);
      f_store_f32(at + f_lanes, high[i]);
    }
  }
}

#define FLOATS_KERNEL(form, way, terms, exchanged, height)                                                                                                  \
  TARGET static void multiply_##form##_##way##_##height(int64_t depth, const void *left, const void *right, const panel_sums *sums, const prefetch *next) { \
    multiply_as_floats(terms, exchanged, height, depth, left, right, sums);                                                                                 \
  }
#define FLOATS_KERNELS(height)                  \
  FLOATS_KERNEL(bfloat16, floats, 1, 0, height) \
  FLOATS_KERNEL(float16, floats, 2, 0, height)  \
  FLOATS_KERNEL(float16, exchanged_floats, 2, 1, height)
FLOATS_KERNELS(16)
FLOATS_KERNELS(32)

#define TILES_OF(form, way) (height <= tile_words ? multiply_##form##_##way##_16 : multiply_##form##_##way##_32)
static panel_kernel *amx_kernel_for(int64_t form, int64_t height, int as_floats, int exchanged) {
  if (form == EPG_BFLOAT16_TILES) return as_floats ? TILES_OF(bfloat16, floats) : TILES_OF(bfloat16, tiles);
  if (as_floats) return exchanged ? TILES_OF(float16, exchanged_floats) : TILES_OF(float16, floats);
  return exchanged ? TILES_OF(float16, exchanged) : TILES_OF(float16, tiles);
}
