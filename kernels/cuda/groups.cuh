// Rows that belong to groups: ends[e] is where the rows of group e end, and ends do not fall. A
// kernel finds the rows of a block from the ends, which the device alone knows.
//
// The rows of each group are cut into tiles, of which the last one may be shorter. Tile j of group
// e has the number
//
//   begin(e) / rows + e + j,  rows being those of a whole tile
//
// No two tiles have one number, and all are below (rows of all groups) / rows + groups, so that a
// launch knows how many blocks are enough. Some numbers are no tile's.
#pragma once

#include "loops.cuh"

namespace epigrad::grouped {

// begin_of is the first row of a group.
__device__ __forceinline__ int64_t begin_of(const int32_t *ends, int32_t group) { return group == 0 ? 0 : __ldg(ends + group - 1); }

// rows_of_all is where the rows that are nobody's begin.
__device__ __forceinline__ int64_t rows_of_all(const int32_t *ends, int32_t groups) { return begin_of(ends, groups); }

// group_of finds the group that a tile's number is of: the last one whose first tile's is not
// above.
__device__ __forceinline__ int32_t group_of(const int32_t *ends, int32_t groups, int64_t number, int32_t tile_rows) {
  int32_t low = 0, high = groups - 1;
  while (low < high) {
    const int32_t middle = low + (high - low + 1) / 2;
    if (begin_of(ends, middle) / tile_rows + middle <= number) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// Matrix is an operand: a matrix of rows, or one for each group. Strides are in elements.
struct Matrix {
  void *data;
  int64_t group_stride, row_stride, column_stride;
};

template <class Storage>
__device__ __forceinline__ Storage *element(const Matrix &x, int64_t group, int64_t row, int64_t column) {
  return static_cast<Storage *>(x.data) + group * x.group_stride + row * x.row_stride + column * x.column_stride;
}

// load_number and store_number are of tensors that may be in float beside half types.
template <class Storage>
__device__ __forceinline__ typename Storage::Real load_number(const void *data, int64_t offset, bool is_float) {
  if (is_float) return f32::load(static_cast<const f32 *>(data) + offset);
  return Storage::load(static_cast<const Storage *>(data) + offset);
}
template <class Storage>
__device__ __forceinline__ void store_number(void *data, int64_t offset, typename Storage::Real x, bool is_float) {
  if (is_float) {
    f32::store(static_cast<f32 *>(data) + offset, static_cast<float>(x));
  } else {
    Storage::store(static_cast<Storage *>(data) + offset, x);
  }
}

// sum_of_lanes adds the numbers of threads whose `lane` differs, in pairs, and returns the sum to
// lane 0. All threads of a block call it; shared has an element for each, with neighbours `apart`
// lanes.
template <class Real>
__device__ __forceinline__ Real sum_of_lanes(Real *own, Real x, int lane, int lanes, int apart) {
  __syncthreads();
  *own = x;
  for (int half = lanes / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) *own += own[half * apart];
  }
  return *own;
}

}  // namespace epigrad::grouped
