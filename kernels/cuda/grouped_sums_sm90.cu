// What is left of the sums along columns of product_sm90.cuh's products.
//
//   grouped_column_sums_sm90_<dtype>   sums[e, c] (+)= sum of parts[i, c] over the tiles i of
//                                      group e, in order; 0 where there are none
//
// Sums are in float, and are rounded once, to the dtype of the result. Tiles are counted as
// make_tables counts them: a group of n rows has ceil(n / 192), and they lie in the order of
// groups.
#include "tiles_sm90.cuh"

namespace epigrad::sm90 {

constexpr int columns_threads = 128;

// ColumnSums are the parameters. Blocks are (columns, groups).
struct ColumnSums {
  const float *parts;   // [tiles, columns]
  const int32_t *ends;  // [groups]
  void *sums;           // [groups, columns], of contiguous columns
  int64_t stride;       // elements from one group to the next one
  int32_t columns, accumulate;
};

template <class Storage>
EPG_INLINE void add_tiles(const ColumnSums &p) {
  __shared__ int32_t before[columns_threads / 32];
  const int group = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  const auto tiles_of = [&](int e) { return up(__ldg(p.ends + e) - (e > 0 ? __ldg(p.ends + e - 1) : 0), group_tile); };
  int tiles = 0;
  for (int e = thread; e < group; e += columns_threads) tiles += tiles_of(e);
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) tiles += __shfl_xor_sync(~0u, tiles, distance);
  if (thread % 32 == 0) before[thread / 32] = tiles;
  __syncthreads();
  int first = 0;
  for (int warp = 0; warp < columns_threads / 32; warp++) first += before[warp];
  const int column = static_cast<int>(blockIdx.x) * columns_threads + thread;
  if (column >= p.columns) return;
  float sum = 0;
  const int end = first + tiles_of(group);
  for (int tile = first; tile < end; tile++) sum += p.parts[static_cast<int64_t>(tile) * p.columns + column];
  Storage *const to = static_cast<Storage *>(p.sums) + group * p.stride + column;
  Storage::store(to, p.accumulate ? Storage::reload(to) + sum : sum);
}

}  // namespace epigrad::sm90

#define GROUPED_COLUMN_SUMS_SM90(dtype)                                                       \
  extern "C" __global__ void __launch_bounds__(epigrad::sm90::columns_threads)                \
      grouped_column_sums_sm90_##dtype(const __grid_constant__ epigrad::sm90::ColumnSums p) { \
    epigrad::sm90::add_tiles<epigrad::dtype>(p);                                              \
  }
GROUPED_COLUMN_SUMS_SM90(bf16)
GROUPED_COLUMN_SUMS_SM90(f16)
GROUPED_COLUMN_SUMS_SM90(f32)
