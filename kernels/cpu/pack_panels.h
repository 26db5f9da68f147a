// Packing of one form into panels: a template with the parameter FORM, which pack.h includes.

#define F(name) JOIN(FORM, name)
#define R(name) JOIN(F(registers), name)

// pack_rows packs units [k, end) of n panels whose rows are neighbours in memory, side by side, so
// that it reads longer pieces. With `whole` all of these rows are the operand's; without it n is 1,
// and the panel may reach over the operand's last row.
INLINE void JOIN(pack_rows, FORM)(const int n, const int whole, const int left, const int width, const epg_operand *p, int64_t panel, int64_t k, int64_t end,
                                  const char *from, char *to, F(found) * found) {
  enum { lanes = R(lanes), per_unit = F(unit) };
  typedef R(real) T;
  const int step = left ? panel_height : width;
  const int64_t units = panel_units(p, per_unit), row = panel * width, rest = p->count - row;
  _Alignas(64) char zeros[side_by_side * most_width * F(bytes)] = {0}, edge[per_unit][lanes * F(bytes)] = {0};
  T *to_unit = (T *)to + panel * units * width + (p->before + k) * step;
  F(found) seen[side_by_side];  // in registers: what is written is no part of it
  for (int i = 0; i < n; i++) seen[i] = found[i];
  for (; k < end; k++, to_unit += step) {
    const char *lines[per_unit];
    for (int j = 0; j < per_unit; j++) {
      const int64_t at = k * per_unit + j;
      lines[j] = zeros;
      if (at >= p->depth) continue;
      lines[j] = from + axis_offset(&p->columns, p->first + at) + (p->row + row) * F(bytes);
    }
    UNROLL for (int i = 0; i < n; i++) {
      T *const out = to_unit + i * units * width, *const second = out + units * step;
      UNROLL for (int h = 0; h < width; h += lanes) {
        if (!whole && h >= rest) break;  // no kernel reads registers that are missing altogether
        const char *line[per_unit];
        for (int j = 0; j < per_unit; j++) {
          line[j] = lines[j] + (i * width + h) * F(bytes);
          if (!whole && rest - h < lanes) line[j] = memcpy(edge[j], line[j], (rest - h) * F(bytes));
        }
        const R(v) x = F(load_lines)(line);
        seen[i] = F(find)(seen[i], x);
        left ? R(store_left)(out + h, second, x) : R(store_real)(out + h, x);
      }
    }
  }
  for (int i = 0; i < n; i++) found[i] = seen[i];
}

// pack_squares packs any other panel, and transposes a square of registers at a time. It gathers
// the square first where the depth is not contiguous, or where the square reaches over an edge.
INLINE void JOIN(pack_squares, FORM)(const int left, const int width, const epg_operand *p, int64_t panel, const char *from, char *to, F(found) * found) {
  enum { lanes = R(lanes), per_unit = F(unit) };
  typedef R(real) T;
  const int step = left ? panel_height : width;
  const int64_t units = (p->depth + per_unit - 1) / per_unit, all = panel_units(p, per_unit);
  const int depth_contiguous = p->columns.rank == 1 && p->columns.strides[0] == F(bytes);
  _Alignas(64) char gathered[lanes][lanes * F(unit) * F(bytes)];
  const char *rows[most_width], *lines[lanes];
  const int64_t row = p->row + panel * width, rest = p->row + p->count - row, valid = rest < width ? rest : width;
  for (int i = 0; i < valid; i++) rows[i] = from + axis_offset(&p->rows, row + i) + (depth_contiguous ? p->first * F(bytes) : 0);
  T *out = (T *)to + panel * width * all + p->before * step;
  F(found) seen = *found;
  for (int64_t k = 0; k < units; k += lanes, out += lanes * step) {
    T *const second = out + all * step;
    const int64_t n = units - k < lanes ? units - k : lanes, first = k * per_unit;
    const int64_t elements = p->depth - first < lanes * per_unit ? p->depth - first : lanes * per_unit;
    // no kernel reads registers that are missing altogether
    for (int h = 0; h < valid; h += lanes) {
      R(v) square[lanes];
      if (depth_contiguous && valid - h >= lanes && elements == lanes * per_unit) {
        UNROLL for (int i = 0; i < lanes; i++) { lines[i] = rows[h + i] + first * F(bytes); }
      } else {
        memset(gathered, 0, sizeof gathered);
        for (int i = 0; i < lanes; i++) {
          lines[i] = gathered[i];
          for (int64_t j = 0; h + i < valid && j < elements; j++) {
            const int64_t offset = depth_contiguous ? (first + j) * F(bytes) : axis_offset(&p->columns, p->first + first + j);
            memcpy(gathered[i] + j * F(bytes), rows[h + i] + offset, F(bytes));
          }
        }
      }
      UNROLL for (int i = 0; i < lanes; i++) square[i] = F(load)(lines[i]);
      R(transpose)(square);
      UNROLL for (int i = 0; i < lanes; i++) {
        seen = F(find)(seen, square[i]);
        if (i >= n) continue;
        left ? R(store_left)(out + i * step + h, second + i * step, square[i]) : R(store_real)(out + i * step + h, square[i]);
      }
    }
  }
  *found = seen;
}

INLINE void JOIN(pack_panels, FORM)(const int left, const int width, const epg_operand *p, int64_t panel, int64_t count, const char *from, char *to,
                                    int16_t *smallest) {
  // units: of all panels, since they lie in the same pages
  enum { per_unit = F(unit), at_a_time = 8 };
  const int64_t units = (p->depth + per_unit - 1) / per_unit;
  F(found) found[EPG_PANELS];
  memset(found, F(nothing), sizeof found);
  if (p->rows.rank == 1 && p->rows.strides[0] == F(bytes) && !(p->columns.rank == 1 && p->columns.strides[0] == F(bytes))) {
    const int64_t whole = least(count, p->count / width - panel);
    const int64_t together = whole / side_by_side * side_by_side;
    for (int64_t k = 0; k < units; k += at_a_time) {
      const int64_t end = k + at_a_time < units ? k + at_a_time : units;
      for (int64_t i = 0; i < together; i += side_by_side) {
        JOIN(pack_rows, FORM)(side_by_side, 1, left, width, p, panel + i, k, end, from, to, found + i);
      }
      for (int64_t i = together; i < count; i++) JOIN(pack_rows, FORM)(1, 0, left, width, p, panel + i, k, end, from, to, found + i);
    }
  } else {
    for (int64_t i = 0; i < count; i++) JOIN(pack_squares, FORM)(left, width, p, panel + i, from, to, found + i);
  }
  for (int64_t i = 0; i < count; i++) smallest[panel + i] = least_of_parts(p->before, smallest[panel + i], F(tell)(found[i]));
}

TARGET static void JOIN(pack, FORM)(const epg_operand *p, int64_t panel, int64_t count, const char *from, char *to, int16_t *smallest) {
  if (p->left)
    JOIN(pack_panels, FORM)(1, R(left), p, panel, count, from, to, smallest);
  else
    JOIN(pack_panels, FORM)(0, panel_registers * R(lanes), p, panel, count, from, to, smallest);
}

#undef FORM
