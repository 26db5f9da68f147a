// Packing of one form, included once for each with FORM (its name), STORAGE (what is loaded), UNIT (bytes of what becomes one element of a panel), ELEMENT (bytes of
// an element of the matrix), and REGISTERS set. Pairs are units of two elements.

// Rows, or steps of the depth, mostly lie so far apart that a processor does not see by itself what will be read next: it is asked for, and so is what will be written.

// pack_rows packs n panels where rows are contiguous, side by side, so that what is read lies in longer pieces.
INLINE void JOIN(pack_rows, FORM)(const int n, const epg_operand *p, int64_t panel, const char *from, char *to, int16_t *smallest) {
  enum { lanes = V(lanes), per_unit = UNIT / ELEMENT, ahead = 8 };
  typedef V(real) T;
  const int64_t width = p->width, units = (p->depth + per_unit - 1) / per_unit, step = p->columns.strides[p->columns.rank - 1];
  _Alignas(64) char gathered[per_unit][lanes * ELEMENT];
  SMALLEST_BEGIN(n)
  for (int64_t k = 0; k < units; k++) {
    const char *lines[per_unit];
    for (int j = 0; j < per_unit; j++) {
      const int64_t at = k * per_unit + j;
      lines[j] = at < p->depth ? from + axis_offset(&p->columns, p->first + at) + (p->row + panel * width) * ELEMENT : 0;
      if (at + ahead * per_unit < p->depth)
        for (int64_t h = 0; h < n * width * ELEMENT; h += 64) _mm_prefetch(lines[j] + ahead * per_unit * step + h, _MM_HINT_T0);
    }
    T *out = (T *)to + (panel * units + k) * width;
    UNROLL for (int i = 0; i < n; i++, out += units * width) {
      for (int64_t h = 0; h < width * (int64_t)sizeof(T); h += 64) __builtin_prefetch((const char *)(out + 2 * ahead * width) + h, 1);
      const int64_t row = (panel + i) * width, rest = p->count - row, valid = rest < width ? rest : width;
      for (int64_t h = 0; h < width; h += lanes) {
        const char *line[per_unit];
        for (int j = 0; j < per_unit; j++) {
          line[j] = lines[j] ? lines[j] + (i * width + h) * ELEMENT : gathered[j];
          if (!lines[j]) memset(gathered[j], 0, lanes * ELEMENT);
          if (!lines[j] || p->row + row + h + lanes <= p->rows.length) continue;
          memset(gathered[j], 0, lanes * ELEMENT);
          if (valid > h) memcpy(gathered[j], line[j], (valid - h) * ELEMENT);
          line[j] = gathered[j];
        }
        V(v) x = LOAD_LINES(line);
        SMALLEST(i, x)
        V(store_first)(out + h, x, width - h < lanes ? width - h : lanes);
      }
    }
  }
  UNROLL for (int i = 0; i < n; i++) { SMALLEST_END(i); }
  (void)smallest;
}

// pack_squares packs a panel otherwise: where the depth is contiguous a square of registers is transposed at a time, what is neither or reaches over an edge is gathered
// first.
INLINE void JOIN(pack_squares, FORM)(const epg_operand *p, int64_t panel, const char *from, char *to, int16_t *smallest) {
  enum { lanes = V(lanes), per_unit = UNIT / ELEMENT, most_width = 2 * V(lanes) + V(lanes), ahead = 2 * lanes };
  typedef V(real) T;
  const int64_t width = p->width, units = (p->depth + per_unit - 1) / per_unit;
  const int depth_contiguous = p->columns.rank == 1 && p->columns.strides[0] == ELEMENT;
  _Alignas(64) char gathered[lanes * UNIT];
  int64_t offsets[most_width] = {0};
  const int64_t row = p->row + panel * width, rest = p->row + p->count - row, valid = rest < width ? rest : width;
  for (int64_t i = 0; i < valid; i++) offsets[i] = axis_offset(&p->rows, row + i);
  T *out = (T *)to + panel * width * units;
  SMALLEST_BEGIN(1)
  for (int64_t k = 0; k < units; k += lanes, out += lanes * width) {
    const int64_t n = units - k < lanes ? units - k : lanes;
    const int64_t elements = p->depth - k * per_unit < lanes * per_unit ? p->depth - k * per_unit : lanes * per_unit;
    const int direct = depth_contiguous && elements == lanes * per_unit;
    const char *first = depth_contiguous ? from + (p->first + k * per_unit) * ELEMENT : from;
    for (int64_t h = 0; h < width; h += lanes) {
      V(v) square[lanes];
      for (int i = 0; i < lanes; i++) {
        const char *line = first + offsets[h + i < valid ? h + i : 0];
        if (h + i >= valid) {
          square[i] = V(set)(0);
          continue;
        }
        if (direct) {
          _mm_prefetch(line + ahead * UNIT, _MM_HINT_T0);
        } else {
          memset(gathered, 0, sizeof gathered);
          for (int64_t j = 0; j < elements; j++) {
            const char *element = depth_contiguous ? line + j * ELEMENT : line + axis_offset(&p->columns, p->first + k * per_unit + j);
            memcpy(gathered + j * ELEMENT, element, ELEMENT);
          }
          line = gathered;
        }
        square[i] = V(JOIN(load, STORAGE))(line);
        SMALLEST(0, square[i])
      }
      for (int64_t i = 0; i < lanes; i++) __builtin_prefetch(out + (ahead + i) * width + h, 1);
      V(transpose)(square);
      const int kept = width - h < lanes ? width - h : lanes;
      if (n == lanes && kept == lanes)
        UNROLL for (int i = 0; i < lanes; i++) V(store_first)(out + i * width + h, square[i], lanes);
      else
        for (int i = 0; i < n; i++) V(store_first)(out + i * width + h, square[i], kept);
    }
  }
  SMALLEST_END(0);
  (void)smallest;
}

TARGET static void JOIN(pack, FORM)(const epg_operand *p, int64_t panel, int64_t count, const char *from, char *to, int16_t *smallest) {
  const int depth_contiguous = p->columns.rank == 1 && p->columns.strides[0] == ELEMENT;
  if (!depth_contiguous && p->rows.rank == 1 && p->rows.strides[0] == ELEMENT) {
    for (; count >= side_by_side; count -= side_by_side, panel += side_by_side) JOIN(pack_rows, FORM)(side_by_side, p, panel, from, to, smallest);
    for (; count > 0; count--, panel++) JOIN(pack_rows, FORM)(1, p, panel, from, to, smallest);
  }
  for (; count > 0; count--, panel++) JOIN(pack_squares, FORM)(p, panel, from, to, smallest);
}
