// Packing of tiles, whose layout is in gemm_tiles.h.

#pragma once

INLINE __m512i bits_of(f_v x) { return _mm512_castps_si512(x); }
INLINE f_v first_term(f_v x) { return _mm512_castsi512_ps(_mm512_and_si512(bits_of(x), _mm512_set1_epi32((int)0xffff0000))); }
INLINE f_m is_finite(f_v x) { return f_less(f_abs(x), f_set(INFINITY)); }
INLINE __mmask16 is_infinite(f_v x) { return _mm512_cmpeq_epi32_mask(bits_of(f_abs(x)), bits_of(f_set(INFINITY))); }
INLINE f_v second_term(f_v x) { return _mm512_maskz_sub_ps(is_finite(x), x, first_term(x)); }

// square is sixteen rows of sixteen words, or transposed. Each term has its own.
typedef struct {
  f_v term[2][tile_words];
} square;

// special is what a panel has that tiles cannot do.
typedef struct {
  __m512i least;       // of bfloat16: magnitudes less 1, so that zero becomes the largest
  __mmask16 infinite;  // of float16
} special;

// take_row takes 32 elements of one row.
INLINE void take_row(const int terms, square *s, special *found, int i, const char *from) {
  if (terms == 1) {
    s->term[0][i] = f_load_float32(from);
    return;
  }
  // The upper halves of two registers of sixteen floats, in order.
  static const uint16_t odd[] = {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  const __m512i upper = _mm512_loadu_si512(odd);
  const f_v low = f_load_float16(from), high = f_load_float16(from + 32);
  found->infinite |= is_infinite(low) | is_infinite(high);
  s->term[0][i] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(bits_of(low), upper, bits_of(high)));
  s->term[1][i] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(bits_of(second_term(low)), upper, bits_of(second_term(high))));
}

// take_words takes 32 rows' elements at two neighbours of the depth, of each half of the rows a square's words.
INLINE void take_words(const int terms, square *s, special *found, int i, const char *even, const char *odd) {
  if (terms == 1) {
    static const uint16_t together[][32] = {
        {0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
        {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55, 24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63},
    };
    const __m512i low = _mm512_loadu_si512(even), high = _mm512_loadu_si512(odd);
    for (int half = 0; half < 2; half++) s[half].term[0][i] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(low, _mm512_loadu_si512(together[half]), high));
    return;
  }
  const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
  for (int half = 0; half < 2; half++) {
    const f_v low = f_load_float16(even + 32 * half), high = f_load_float16(odd + 32 * half);
    found->infinite |= is_infinite(low) | is_infinite(high);
    const __m512i first = _mm512_or_si512(_mm512_and_si512(bits_of(high), upper), _mm512_srli_epi32(bits_of(low), 16));
    const __m512i second = _mm512_or_si512(bits_of(second_term(high)), _mm512_srli_epi32(bits_of(second_term(low)), 16));
    s[half].term[0][i] = _mm512_castsi512_ps(first);
    s[half].term[1][i] = _mm512_castsi512_ps(second);
  }
}

// A panel that is packed: its rows, of which the first ones are the operand's.
typedef struct {
  int64_t row, valid;
  int64_t offsets[tiles_width];
} panel_rows;

INLINE panel_rows rows_of(const epg_operand *p, int64_t panel) {
  panel_rows r = {.row = p->row + panel * tiles_width};
  const int64_t rest = p->row + p->count - r.row;
  r.valid = rest < tiles_width ? rest : tiles_width;
  for (int64_t i = 0; i < r.valid; i++) r.offsets[i] = axis_offset(&p->rows, r.row + i);
  return r;
}

// take_block takes 32 elements of the depth of 32 rows, from element k on.
INLINE void take_block(const int terms, const int rows_contiguous, const epg_operand *p, const panel_rows *r, const char *from, int64_t k, square *s,
                       special *found) {
  enum { ahead = 2 };  // blocks
  const int depth_contiguous = !rows_contiguous && p->columns.rank == 1 && p->columns.strides[0] == 2;
  const int64_t elements = p->depth - k < depth_of_tile ? p->depth - k : depth_of_tile, step = p->columns.strides[p->columns.rank - 1];
  _Alignas(64) char gathered[2][64];
  if (rows_contiguous) {
    for (int i = 0; i < tile_words; i++) {
      const char *line[2];
      for (int j = 0; j < 2; j++) {
        line[j] = from + r->offsets[0] + axis_offset(&p->columns, p->first + k + 2 * i + j);
        _mm_prefetch(line[j] + depth_of_tile * step, _MM_HINT_T0);
        if (r->valid == tiles_width && 2 * i + j < elements) continue;
        memset(gathered[j], 0, sizeof gathered[j]);
        if (2 * i + j < elements) memcpy(gathered[j], line[j], r->valid * 2);
        line[j] = gathered[j];
      }
      take_words(terms, s, found, i, line[0], line[1]);
    }
    return;
  }
  for (int i = 0; i < tiles_width; i++) {
    const char *line = from + r->offsets[i] + (depth_contiguous ? (p->first + k) * 2 : 0);
    if (i < r->valid && depth_contiguous && elements == depth_of_tile) {
      _mm_prefetch(line + ahead * depth_of_tile * 2, _MM_HINT_T0);
    } else {
      memset(gathered[0], 0, sizeof gathered[0]);
      for (int64_t j = 0; i < r->valid && j < elements; j++)
        memcpy(gathered[0] + 2 * j, depth_contiguous ? line + 2 * j : line + axis_offset(&p->columns, p->first + k + j), 2);
      line = gathered[0];
    }
    take_row(terms, s + i / tile_words, found, i % tile_words, line);
  }
}

// pack_tiles packs n panels. Those whose rows are contiguous are packed side by side: what is read lies in longer pieces.
INLINE void pack_tiles(const int terms, const int rows_contiguous, const int n, const epg_operand *p, int64_t panel, const char *from, char *to,
                       int16_t *smallest) {
  const int64_t blocks = (p->depth + depth_of_tile - 1) / depth_of_tile, square_bytes = tiles_width * tile_words * 4;
  panel_rows r[side_by_side];
  special found[side_by_side];
  for (int i = 0; i < n; i++) {
    r[i] = rows_of(p, panel + i);
    found[i] = (special){.least = _mm512_set1_epi16(-1)};
  }
  for (int64_t block = 0; block < blocks; block++) {
    for (int i = 0; i < n; i++) {
      square s[2];
      take_block(terms, rows_contiguous, p, r + i, from, block * depth_of_tile, s, found + i);
      for (int term = 0; term < terms; term++) {
        char *at = to + (((panel + i) * blocks + block) * terms + term) * square_bytes;
        for (int64_t line = 0; !p->left && line < square_bytes; line += 64) __builtin_prefetch(at + 2 * terms * square_bytes + line, 1);
        for (int half = 0; half < 2; half++) {
          f_v *words = s[half].term[term];
          if (terms == 1)
            for (int j = 0; j < tile_words; j++) found[i].least = least_magnitudes(found[i].least, words[j]);
          if (p->left == rows_contiguous) f_transpose(words);
          for (int j = 0; j < tile_words; j++) f_store_float32(at + 64 * (p->left ? half * tile_words + j : j * 2 + half), words[j]);
        }
      }
    }
  }
  for (int i = 0; i < n; i++) {
    if (terms == 1) {
      // What earlier parts have left in the sums is as small as their numbers made it.
      const int16_t least = exponent_of_smallest(found[i].least);
      smallest[panel + i] = p->again && smallest[panel + i] < least ? smallest[panel + i] : least;
    } else {
      smallest[panel + i] = found[i].infinite ? not_for_tiles : nothing_tiny;
    }
  }
}

INLINE void pack_panels_of_tiles(const int terms, const epg_operand *p, int64_t panel, int64_t count, const char *from, char *to, int16_t *smallest) {
  if (p->rows.rank == 1 && p->rows.strides[0] == 2 && !(p->columns.rank == 1 && p->columns.strides[0] == 2)) {
    for (; count >= side_by_side; count -= side_by_side, panel += side_by_side) pack_tiles(terms, 1, side_by_side, p, panel, from, to, smallest);
    for (; count > 0; count--, panel++) pack_tiles(terms, 1, 1, p, panel, from, to, smallest);
  }
  for (; count > 0; count--, panel++) pack_tiles(terms, 0, 1, p, panel, from, to, smallest);
}

TARGET static void pack_bfloat16_tiles(const epg_operand *p, int64_t panel, int64_t count, const char *from, char *to, int16_t *smallest) {
  pack_panels_of_tiles(1, p, panel, count, from, to, smallest);
}
TARGET static void pack_float16_tiles(const epg_operand *p, int64_t panel, int64_t count, const char *from, char *to, int16_t *smallest) {
  pack_panels_of_tiles(2, p, panel, count, from, to, smallest);
}
