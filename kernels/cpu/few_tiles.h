// Products of few rows on AMX's tiles, for few_rows.h. A block of the right operand, 32 columns by
// 32 elements of the depth, becomes tiles in the nearest cache, and is multiplied at once:
//
//   its rows are contiguous     as the right operand's tiles. Sums are rows x columns
//   its depth is contiguous     as a left operand's, which need not be transposed. Sums are
//                               columns x rows, and the left operand is packed as a right one
#pragma once

// Sums are tiles 0 and 1, of 16 columns each. The right operand's are 2 and 3, those of a float16's
// second terms 4 and 5; the left operand's are 6 and 7.
#define FEW_MULTIPLY(left, first, second) \
  if (along) {                            \
    tile_multiply(0, first, left);        \
    tile_multiply(1, second, left);       \
  } else {                                \
    tile_multiply(0, left, first);        \
    tile_multiply(1, left, second);       \
  }

// turn_sums writes sums of 16 columns x rows to the rows.
INLINE void turn_sums(const few_rows *f, const float *tile, float *sums) {
  f_v rows[tile_words];
  UNROLL for (int i = 0; i < tile_words; i++) rows[i] = f_load_f32(tile + i * tile_words);
  f_transpose(rows);
  UNROLL for (int i = 0; i < few_most; i++) {
    if (i < f->rows) f_store_f32(sums + i * f->stride, rows[i]);
  }
}

static inline __attribute__((always_inline)) TARGET_AMX int16_t few_tiles(const int terms, const int along, few_rows f) {
  // Of rows that are contiguous so much of the depth is read for all columns, then the next.
  enum { at_a_time = 8 * depth_of_tile };
  const epg_operand *const p = f.right;
  _Alignas(64) char packed[2][2 * block_bytes], gathered[amx_width][64], turned[2][tile_bytes];
  const char *lines[amx_width];
  special found = {.least = _mm512_set1_epi16(-1)};
  amx_begin();
  for (int64_t first = 0, end; first < p->depth; first = end) {
    end = along ? p->depth : least(first + at_a_time, p->depth);
    for (int64_t column = 0; column < p->count; column += amx_width) {
      const panel_rows r = rows_of(p, column / amx_width, f.from);
      const char *left = f.left + first / depth_of_tile * terms * block_bytes;
      float *const sums = (float *)f.sums + column;
      if (first) {
        tile_load(0, sums, f.stride * 4);
        tile_load(1, sums + tile_words, f.stride * 4);
      } else {
        tile_zero(0);
        tile_zero(1);
      }
      for (int64_t element = first; element < end; element += depth_of_tile, left += terms * block_bytes) {
        char *const right = packed[element / depth_of_tile % 2];  // the other one may still be read
        lines_of(!along, p, &r, element, lines, gathered);
        if (along)
          block_of_rows(terms, 0, lines, &found, right);
        else
          block_of_columns(terms, 0, lines, &found, right);
        __asm__ volatile("" ::: "memory");  // the compiler does not know what tiles read
        tile_load(6, left, tile_stride);
        tile_load(2, right, tile_stride);
        tile_load(3, right + tile_bytes, tile_stride);
        FEW_MULTIPLY(6, 2, 3)
        if (terms == 1) continue;
        // in the order of FLOAT16_TILES_KERNEL
        tile_load(4, right + block_bytes, tile_stride);
        tile_load(5, right + block_bytes + tile_bytes, tile_stride);
        tile_load(7, left + block_bytes, tile_stride);
        FEW_MULTIPLY(6, 4, 5)
        FEW_MULTIPLY(7, 4, 5)
        FEW_MULTIPLY(7, 2, 3)
      }
      if (along) {
        tile_store(0, turned[0], tile_stride);
        tile_store(1, turned[1], tile_stride);
        __asm__ volatile("" ::: "memory");
        for (int i = 0; i < 2; i++) turn_sums(&f, (const float *)turned[i], sums + i * tile_words);
      } else {
        tile_store(0, sums, f.stride * 4);
        tile_store(1, sums + tile_words, f.stride * 4);
        __asm__ volatile("" ::: "memory");
      }
    }
  }
  amx_end();
  return smallest_of(terms, &found, p, 0);
}

#define FEW_TILES(form, terms)                                                                    \
  TARGET_AMX static int16_t few_rows_##form##_tiles(few_rows f) {                                 \
    return is_contiguous(&f.right->columns, 2) ? few_tiles(terms, 1, f) : few_tiles(terms, 0, f); \
  }
FEW_TILES(bf16, 1)
FEW_TILES(f16, 2)
