// Products of few rows, in one form: a template with the parameter FORM, which few_rows.h
// includes.
//
// Packing would take longer than multiplying, so the right operand is read once, where it lies, in
// squares of as many steps of the depth as a register has columns:
//
//   its rows are contiguous     a step's columns are loaded. The walk goes along the rows, which
//                               are long
//   its depth is contiguous     a column's steps are loaded, and the square is transposed. The walk
//                               goes along the depth
//
// Each row of the left operand adds the square's steps to its sums in their order, in the parts of
// the depth that panels have (depth_of_part). So the bits are those of a product of many rows.

#define F(name) JOIN(FORM, name)
#define R(name) JOIN(F(registers), name)
#define FORM_INLINE static inline __attribute__((always_inline)) JOIN(FORM, target)

// load_square loads a square of the right operand, of which `elements` of the depth and `columns`
// are the operand's. A line is a column or, where the rows are contiguous, an element of the depth.
FORM_INLINE void JOIN(load_square, FORM)(const int along, const int whole, const char *const *lines, int64_t offset, int64_t elements, int64_t columns,
                                         R(v) * square) {
  enum { lanes = R(lanes), per_unit = F(unit) };
  _Alignas(64) char edge[per_unit][lanes * per_unit * F(bytes)];
  const int64_t valid = along ? columns : elements, bytes = (along ? elements : columns) * F(bytes);
  UNROLL for (int i = 0; i < lanes; i++) {
    const char *line[per_unit];
    for (int j = 0; j < (along ? 1 : per_unit); j++) {
      const int64_t number = along ? i : i * per_unit + j;
      if (whole) {
        line[j] = lines[number] + offset;
        __builtin_prefetch(line[j] + few_ahead);
        continue;
      }
      memset(edge[j], 0, sizeof edge[j]);
      line[j] = number < valid ? memcpy(edge[j], lines[number] + offset, bytes) : edge[j];
    }
    square[i] = along ? F(load)(line[0]) : F(load_lines)(line);
  }
  if (along) R(transpose)(square);
}

// add_square adds a square's products with the rows of the left operand to their sums. The compiler
// cannot tell that sums are no part of what `f` points to, so it is copied.
FORM_INLINE void JOIN(add_square, FORM)(const int whole, const few_rows f, depth_step at, int64_t column, const R(v) * square) {
  enum { lanes = R(lanes) };
  typedef R(real) T;
  const T *x = (const T *)f.left + at.unit * panel_height;
  T *sums = (T *)f.sums + column, *part = sums + f.rows * f.stride;
  for (int64_t row = 0; row < f.rows; row += panel_height, x += f.units * panel_height) {
    const int64_t height = least(panel_height, f.rows - row);
    for (int64_t i = 0; i < height; i++, sums += f.stride, part += f.stride) {
      R(v) sum = at.begins ? R(set)(0) : R(load_real)(part);
      if (whole) {
        UNROLL for (int k = 0; k < lanes; k++) sum = F(fuse)(R(set)(x[k * panel_height + i]), square[k], sum);
      } else {
        for (int64_t k = 0; k < at.units; k++) sum = F(fuse)(R(set)(x[k * panel_height + i]), square[k], sum);
      }
      if (at.ends && !at.is_first) sum = R(load_real)(sums) + sum;
      R(store_real)(at.ends ? sums : part, sum);
    }
  }
}

// add_columns computes the sums of a range of columns. It finds out about the numbers of pairs what
// packing finds.
FORM_INLINE F(found) JOIN(add_columns, FORM)(const int along, const few_rows f, int64_t column, int64_t end, F(found) found) {
  enum { lanes = R(lanes), per_unit = F(unit) };
  const epg_operand *const p = f.right;
  const char *lines[few_columns * lanes > lanes * per_unit ? few_columns * lanes : lanes * per_unit];
  for (int64_t i = column; along && i < end; i++) lines[i - column] = f.from + axis_offset(&p->rows, p->row + i) + p->first * F(bytes);
  for (depth_step at = next_step(f, (depth_step){0}, lanes); at.unit < f.units; at = next_step(f, at, lanes)) {
    const int64_t element = at.unit * per_unit, elements = least(at.units * per_unit, p->depth - element);
    for (int64_t i = 0; !along && i < elements; i++) lines[i] = f.from + axis_offset(&p->columns, p->first + element + i) + p->row * F(bytes);
    for (int64_t c = column; c < end; c += lanes) {
      const int64_t columns = least(lanes, end - c), offset = (along ? element : c) * F(bytes);
      const char *const *const from = along ? lines + c - column : lines;
      if (elements == lanes * per_unit && columns == lanes) {
        R(v) square[lanes];
        JOIN(load_square, FORM)(along, 1, from, offset, elements, columns, square);
        if (F(unit) > 1) UNROLL for (int i = 0; i < lanes; i++) found = F(find)(found, square[i]);
        JOIN(add_square, FORM)(1, f, at, c, square);
      } else {
        R(v) square[lanes];
        JOIN(load_square, FORM)(along, 0, from, offset, elements, columns, square);
        if (F(unit) > 1) UNROLL for (int i = 0; i < lanes; i++) found = F(find)(found, square[i]);
        JOIN(add_square, FORM)(0, f, at, c, square);
      }
    }
  }
  return found;
}

JOIN(FORM, target) static int16_t JOIN(few_rows, FORM)(few_rows f) {
  enum { lanes = R(lanes) };
  const int64_t columns = f.right->count;
  F(found) found;
  memset(&found, F(nothing), sizeof found);
  if (is_contiguous(&f.right->columns, F(bytes)))
    for (int64_t c = 0; c < columns; c += few_columns * lanes) found = JOIN(add_columns, FORM)(1, f, c, least(columns, c + few_columns * lanes), found);
  else
    found = JOIN(add_columns, FORM)(0, f, 0, columns, found);
  return F(tell)(found);
}

#undef FORM_INLINE
#undef FORM
