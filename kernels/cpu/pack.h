// Packing of one form, included once for each with FORM (its name), STORAGE (what is loaded), UNIT (bytes of what becomes one element of a panel), ELEMENT (bytes of
// an element of the matrix), and REGISTERS set. Pairs are units of two elements.

// A square of registers is transposed at a time, where the depth is contiguous; where rows are, registers are copied. What is neither, or reaches over an edge, is
// gathered first.
TARGET static void JOIN(pack, FORM)(const epg_operand *p, int64_t panel, int64_t count, const char *from, char *to, int16_t *smallest) {
  enum { lanes = V(lanes), per_unit = UNIT / ELEMENT, most_width = 2 * V(lanes) + V(lanes) };
  typedef V(real) T;
  const int64_t width = p->width, units = (p->depth + per_unit - 1) / per_unit;
  const int depth_contiguous = p->columns.rank == 1 && p->columns.strides[0] == ELEMENT;
  const int rows_contiguous = !depth_contiguous && p->rows.rank == 1 && p->rows.strides[0] == ELEMENT;
  _Alignas(64) char gathered[most_width][lanes * UNIT];
  int64_t offsets[most_width] = {0};
  for (; count > 0; count--, panel++) {
    T *out = (T *)to + panel * width * units;
    const int64_t row = p->row + panel * width, rest = p->row + p->count - row, valid = rest < width ? rest : width;
    for (int64_t i = 0; i < valid; i++) offsets[i] = axis_offset(&p->rows, row + i);
    SMALLEST_BEGIN
    if (rows_contiguous) {
      for (int64_t k = 0; k < units; k++, out += width) {
        const char *lines[per_unit];
        for (int j = 0; j < per_unit; j++) {
          const int64_t at = k * per_unit + j;
          lines[j] = at < p->depth ? from + offsets[0] + axis_offset(&p->columns, p->first + at) : 0;
        }
        for (int64_t h = 0; h < width; h += lanes) {
          const char *line[per_unit];
          for (int j = 0; j < per_unit; j++) {
            line[j] = lines[j] ? lines[j] + h * ELEMENT : gathered[j];
            if (!lines[j]) memset(gathered[j], 0, lanes * ELEMENT);
            if (!lines[j] || row + h + lanes <= p->rows.length) continue;
            memset(gathered[j], 0, lanes * ELEMENT);
            if (valid > h) memcpy(gathered[j], line[j], (valid - h) * ELEMENT);
            line[j] = gathered[j];
          }
          V(v) x = LOAD_LINES(line);
          SMALLEST(x)
          V(store_first)(out + h, x, width - h < lanes ? width - h : lanes);
        }
      }
    } else {
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
            if (!direct) {
              memset(gathered[i], 0, sizeof gathered[i]);
              for (int64_t j = 0; j < elements; j++) {
                const char *element = depth_contiguous ? line + j * ELEMENT : line + axis_offset(&p->columns, p->first + k * per_unit + j);
                memcpy(gathered[i] + j * ELEMENT, element, ELEMENT);
              }
              line = gathered[i];
            }
            square[i] = V(JOIN(load, STORAGE))(line);
            SMALLEST(square[i])
          }
          V(transpose)(square);
          const int kept = width - h < lanes ? width - h : lanes;
          if (n == lanes && kept == lanes)
            UNROLL for (int i = 0; i < lanes; i++) V(store_first)(out + i * width + h, square[i], lanes);
          else
            for (int i = 0; i < n; i++) V(store_first)(out + i * width + h, square[i], kept);
        }
      }
    }
    SMALLEST_END
  }
  (void)smallest;
}
