// Packing into the panels of AMX's tiles, for pack.h.
//
// A panel is 32 rows of an operand. A word holds two neighbours of the depth, which is padded with
// zeros to a multiple of 32 elements. For each 32 elements and each term a panel has two tiles:
//
//   left operand    16 rows x 16 words
//   right operand   16 words x 16 rows
//
// A bfloat16 is one term. A float16 is the sum of two bfloat16 terms: its first 8 digits, and the
// rest of 3 at most, down to 2^-24. All four products of terms are exact and are added.
#pragma once

#include <math.h>

#include "amx.h"

enum { amx_width = 2 * tile_words, depth_of_tile = 2 * tile_words };
enum { tile_stride = tile_words * 4, tile_bytes = tile_words * tile_stride, block_bytes = 2 * tile_bytes };

// What the tiles' instruction takes for zeros is said in gemm.h. Infinities have no second term: 0
// times one would be NaN.
enum { nothing_tiny = 2 * 127, not_for_amx = 0 };

INLINE __m512i bits_of(f_v x) { return _mm512_castps_si512(x); }
INLINE f_v first_term(f_v x) { return _mm512_castsi512_ps(_mm512_and_si512(bits_of(x), _mm512_set1_epi32((int)0xffff0000))); }
INLINE __mmask16 is_infinite(f_v x) { return _mm512_cmpeq_epi32_mask(bits_of(f_abs(x)), bits_of(f_set(INFINITY))); }
INLINE f_v second_term(__mmask16 is_finite, f_v x) { return _mm512_maskz_sub_ps(is_finite, x, first_term(x)); }

// special is what packing finds of a panel's numbers that tiles cannot multiply.
typedef struct {
  __m512i least;       // of bfloat16: magnitudes less 1, so that zero becomes the largest
  __mmask32 infinite;  // of float16
} special;

// find_infinite notes infinities among 32 float16, and returns which of these are finite.
INLINE __mmask32 find_infinite(special *found, __m512i numbers) {
  const __m512i magnitudes = _mm512_and_si512(numbers, _mm512_set1_epi16(0x7fff)), infinity = _mm512_set1_epi16(0x7c00);
  found->infinite |= _mm512_cmpeq_epi16_mask(magnitudes, infinity);
  return _mm512_cmplt_epi16_mask(magnitudes, infinity);
}

// take_row takes 32 elements of a row: a square's words i.
INLINE void take_row(const int terms, f_v (*square)[tile_words], special *found, int i, const char *from) {
  if (terms == 1) {
    square[0][i] = f_load_f32(from);
    return;
  }
  // The upper halves of two registers of sixteen floats, in order.
  static const uint16_t odd[] = {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  const __m512i upper = _mm512_loadu_si512(odd);
  const __mmask32 finite = find_infinite(found, _mm512_loadu_si512(from));
  const f_v low = f_load_f16(from), high = f_load_f16(from + 32);
  square[0][i] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(bits_of(low), upper, bits_of(high)));
  square[1][i] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(bits_of(second_term((__mmask16)finite, low)), upper, bits_of(second_term(finite >> 16, high))));
}

// take_words takes 32 rows' elements at two neighbours of the depth: words i of the squares of
// either half of the rows.
INLINE void take_words(const int terms, f_v (*squares)[2][tile_words], special *found, int i, const char *even, const char *odd) {
  if (terms == 1) {
    static const uint16_t together[][32] = {
        {0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
        {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55, 24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63},
    };
    const __m512i low = _mm512_loadu_si512(even), high = _mm512_loadu_si512(odd);
    UNROLL for (int half = 0; half < 2; half++) squares[half][0][i] =
        _mm512_castsi512_ps(_mm512_permutex2var_epi16(low, _mm512_loadu_si512(together[half]), high));
    return;
  }
  const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
  const __mmask32 finite[] = {find_infinite(found, _mm512_loadu_si512(even)), find_infinite(found, _mm512_loadu_si512(odd))};
  UNROLL for (int half = 0; half < 2; half++) {
    const f_v low = f_load_f16(even + 32 * half), high = f_load_f16(odd + 32 * half);
    const f_v low_rest = second_term(finite[0] >> (16 * half), low), high_rest = second_term(finite[1] >> (16 * half), high);
    squares[half][0][i] = _mm512_castsi512_ps(_mm512_or_si512(_mm512_and_si512(bits_of(high), upper), _mm512_srli_epi32(bits_of(low), 16)));
    squares[half][1][i] = _mm512_castsi512_ps(_mm512_or_si512(bits_of(high_rest), _mm512_srli_epi32(bits_of(low_rest), 16)));
  }
}

// A panel that is packed: its rows, of which the first ones are the operand's.
typedef struct {
  int64_t valid;
  const char *rows[amx_width];
} panel_rows;

INLINE panel_rows rows_of(const epg_operand *p, int64_t panel, const char *from) {
  const int64_t row = p->row + panel * amx_width, rest = p->row + p->count - row;
  panel_rows r = {.valid = rest < amx_width ? rest : amx_width};
  for (int64_t i = 0; i < r.valid; i++) r.rows[i] = from + axis_offset(&p->rows, row + i);
  return r;
}

// lines_of finds 32 elements of the depth of 32 rows, from element k on: lines are rows, or, where
// rows are contiguous, those at one depth.
INLINE void lines_of(const int rows_contiguous, const epg_operand *p, const panel_rows *r, int64_t k, const char **lines, char (*gathered)[64]) {
  enum { ahead = 2 };  // blocks
  const int depth_contiguous = !rows_contiguous && p->columns.rank == 1 && p->columns.strides[0] == 2;
  const int64_t elements = p->depth - k < depth_of_tile ? p->depth - k : depth_of_tile, step = p->columns.strides[p->columns.rank - 1];
  const int whole = r->valid == amx_width && elements == depth_of_tile;
  if (!whole || !(rows_contiguous || depth_contiguous)) {
    memset(gathered, 0, amx_width * sizeof *gathered);
    for (int64_t j = 0; j < elements; j++) {
      const int64_t offset = axis_offset(&p->columns, p->first + k + j);
      if (rows_contiguous)
        memcpy(gathered[j], r->rows[0] + offset, r->valid * 2);
      else
        for (int64_t i = 0; i < r->valid; i++) memcpy(gathered[i] + 2 * j, r->rows[i] + offset, 2);
    }
    for (int i = 0; i < amx_width; i++) lines[i] = gathered[i];
  } else if (rows_contiguous) {
    const int even = p->columns.rank == 1;
    for (int j = 0; j < depth_of_tile; j++) {
      lines[j] = r->rows[0] + (even ? (p->first + k + j) * step : axis_offset(&p->columns, p->first + k + j));
      _mm_prefetch(lines[j] + depth_of_tile * step, _MM_HINT_T1);
    }
  } else {
    for (int i = 0; i < amx_width; i++) {
      lines[i] = r->rows[i] + (p->first + k) * 2;
      _mm_prefetch(lines[i] + ahead * depth_of_tile * 2, _MM_HINT_T1);
    }
  }
}

// put_words writes a square's words i to their block of a panel.
INLINE void put_words(const int terms, f_v (*square)[tile_words], special *found, char *block, const int half, int i) {
  UNROLL for (int term = 0; term < terms; term++) {
    if (terms == 1) found->least = least_magnitudes(found->least, square[term][i]);
    f_store_f32(block + term * block_bytes + half * tile_bytes + i * tile_stride, square[term][i]);
  }
}

// put_transposed writes a whole square with rows and columns exchanged.
INLINE void put_transposed(const int terms, f_v (*square)[tile_words], special *found, char *block, const int half) {
  UNROLL for (int term = 0; term < terms; term++) f_transpose(square[term]);
  UNROLL for (int i = 0; i < tile_words; i++) put_words(terms, square, found, block, half, i);
}

// block_of_columns packs a block from lines that are its columns: the elements of 32 rows at one
// depth.
INLINE void block_of_columns(const int terms, const int transposed, const char **lines, special *found, char *block) {
  f_v squares[2][2][tile_words];
  UNROLL for (int i = 0; i < tile_words; i++) {
    take_words(terms, squares, found, i, lines[2 * i], lines[2 * i + 1]);
    if (!transposed) UNROLL for (int half = 0; half < 2; half++) put_words(terms, squares[half], found, block, half, i);
  }
  if (transposed) UNROLL for (int half = 0; half < 2; half++) put_transposed(terms, squares[half], found, block, half);
}

// block_of_rows packs a block from lines that are its rows.
INLINE void block_of_rows(const int terms, const int transposed, const char **lines, special *found, char *block) {
  UNROLL for (int half = 0; half < 2; half++) {
    f_v square[2][tile_words];
    UNROLL for (int i = 0; i < tile_words; i++) {
      take_row(terms, square, found, i, lines[half * tile_words + i]);
      if (!transposed) put_words(terms, square, found, block, half, i);
    }
    if (transposed) put_transposed(terms, square, found, block, half);
  }
}

// smallest_of returns the number that packing keeps of a panel (epg_engine.pack). Sums of bfloat16
// hold products of earlier parts of the depth too, so the smallest number of all parts counts.
INLINE int16_t smallest_of(const int terms, const special *found, const epg_operand *p, int16_t before) {
  if (terms == 2) return least_of_parts(p->before, before, found->infinite ? not_for_amx : nothing_tiny);
  return least_of_parts(p->again || p->before, before, exponent_of_smallest(found->least));
}

// pack_tiles packs n panels. Those whose rows are contiguous are packed side by side: what is read
// lies in longer pieces. The left operand's words are those of a row, the right one's those of a
// column, so one of them is transposed on the way.
INLINE void pack_tiles(const int terms, const int left, const int rows_contiguous, const int64_t n, const epg_operand *p, int64_t panel, const char *from,
                       char *to, int16_t *smallest) {
  const int64_t blocks = (p->depth + depth_of_tile - 1) / depth_of_tile;
  const int64_t word_bytes = block_bytes / tile_words;  // of all rows
  const int64_t panel_bytes = blocks * terms * block_bytes + (p->before + p->after) * word_bytes;
  const int transposed = left == rows_contiguous;
  _Alignas(64) char gathered[amx_width][64];
  const char *lines[amx_width];
  panel_rows r[EPG_PANELS];
  special found[EPG_PANELS];
  for (int i = 0; i < n; i++) {
    r[i] = rows_of(p, panel + i, from);
    found[i] = (special){.least = _mm512_set1_epi16(-1)};
  }
  for (int64_t block = 0; block < blocks; block++) {
    for (int i = 0; i < n; i++) {
      char *const at = to + (panel + i) * panel_bytes + p->before * word_bytes + block * terms * block_bytes;
      special seen = found[i];  // in registers: what is written is no part of it
      lines_of(rows_contiguous, p, r + i, block * depth_of_tile, lines, gathered);
      for (int64_t line = 0; !left && line < terms * block_bytes; line += 64) __builtin_prefetch(at + 2 * terms * block_bytes + line, 1);
      if (rows_contiguous)
        block_of_columns(terms, transposed, lines, &seen, at);
      else
        block_of_rows(terms, transposed, lines, &seen, at);
      found[i] = seen;
    }
  }
  for (int i = 0; i < n; i++) smallest[panel + i] = smallest_of(terms, found + i, p, smallest[panel + i]);
}

INLINE void pack_panels_of_tiles(const int terms, const int left, const epg_operand *p, int64_t panel, int64_t count, const char *from, char *to,
                                 int16_t *smallest) {
  if (p->rows.rank == 1 && p->rows.strides[0] == 2 && !(p->columns.rank == 1 && p->columns.strides[0] == 2)) {
    pack_tiles(terms, left, 1, count, p, panel, from, to, smallest);
    return;
  }
  for (; count > 0; count--, panel++) pack_tiles(terms, left, 0, 1, p, panel, from, to, smallest);
}

#define PACK_TILES(form, terms)                                                                                                               \
  TARGET static void pack_##form##_tiles(const epg_operand *p, int64_t panel, int64_t count, const char *from, char *to, int16_t *smallest) { \
    if (p->left)                                                                                                                              \
      pack_panels_of_tiles(terms, 1, p, panel, count, from, to, smallest);                                                                    \
    else                                                                                                                                      \
      pack_panels_of_tiles(terms, 0, p, panel, count, from, to, smallest);                                                                    \
  }
PACK_TILES(bf16, 1)
PACK_TILES(f16, 2)
