// Products of groups, of any strides and on any processor, and sums of groups' rows:
//
//   grouped_product_<dtype>       out[r, n] = sum over k of left[r, k] right[e, k, n] + bias[e, n] (+ out),
//                                 where row r of left may be a token's
//   grouped_depth_<dtype>         out[e, m, n] = sum over r of left[r, m] right[r, n] (+ out),
//                                 where row r of right may be a token's
//   grouped_depth_<dtype>_f32     the same of half types, with out in float
//   grouped_sums_<dtype>          partial sums over r of scales[r] x[r, n], where row r of x may be a
//                                 token's
//   grouped_finish_sums_<dtype>   out[e, n] = the sum of a group's partial sums (+ out)
//
// with r the rows of group e. Sums are in the accumulator's type. Each element of a product is
// formed by one thread, in the order of the depth. Groups without rows have sums of 0. What is
// added to out is added before the sum is rounded, and of a group without rows nothing is.
#include "groups.cuh"

namespace epigrad::grouped {

// A block makes tile x tile elements of a result, a thread side x side of them. A stage has `depth`
// terms of the sums.
constexpr int tile = 64, side = 4, depth = 16, run = 8, together = 8;
constexpr int across_threads = tile / side, gap = 4;
static_assert(across_threads * across_threads == block_threads);

// Product are the parameters of both products.
struct Product {
  Matrix left, right, bias, out;
  const int32_t *ends;
  const int32_t *tokens;  // where each row of left, of the depth kind of right, is; null: in place
  int64_t columns;
  int64_t inner;         // of the rows kind the depth, of the depth kind the rows of a result
  Divisor column_tiles;  // in a row of tiles
  int64_t row_tiles;     // of a result of the depth kind
  int32_t groups;
  int32_t accumulate;  // whether to add to what out holds
};
static_assert(sizeof(Product) == 4 * 32 + 4 * 8 + 24 + 2 * 8, "go/backend/cuda has the same layout");

// Factor is a block's part of an operand: `count` places across the sum, and the terms along it
// from where it begins. A thread reads the same few places of each stage; neighbouring threads read
// what lies side by side. With `places`, they say where what is across lies; with `terms`, where
// the terms do.
template <class Storage>
struct Factor {
  using Real = typename Storage::Real;
  static constexpr int each = tile * depth / block_threads;

  __device__ __forceinline__ Factor(const Storage *data, int64_t across_stride, int64_t along_stride, int count, const int32_t *places = nullptr,
                                    const int32_t *terms = nullptr)
      : count(count), across_stride(across_stride), along_stride(along_stride), places(places), terms(terms) {
    const int thread = static_cast<int>(threadIdx.x);
    const bool along_is_near = along_stride == 1;
    across = along_is_near ? thread / depth : thread % tile;
    along = along_is_near ? thread % depth : thread / tile;
    across_step = along_is_near ? block_threads / depth : 0;
    along_step = along_is_near ? 0 : block_threads / tile;
    next = data;
  }

  // fetch reads the thread's part of the next stage; beyond the rest of the terms is 0.
  __device__ __forceinline__ void fetch(Real (&x)[each], int64_t rest) {
#pragma unroll
    for (int i = 0; i < each; i++) {
      const int number = across + i * across_step, term = along + i * along_step;
      x[i] = 0;
      if (number >= count || term >= rest) continue;
      const int64_t place = places != nullptr ? __ldg(places + number) : number, at = terms != nullptr ? __ldg(terms + term) : term;
      x[i] = Storage::load(next + place * across_stride + at * along_stride);
    }
    if (terms != nullptr) {
      terms += depth;
    } else {
      next += depth * along_stride;
    }
  }

  __device__ __forceinline__ void keep(Real (&to)[depth][tile + gap], const Real (&x)[each]) const {
#pragma unroll
    for (int i = 0; i < each; i++) to[along + i * along_step][across + i * across_step] = x[i];
  }

  int count;

 private:
  const Storage *next;
  int64_t across_stride, along_stride;
  const int32_t *places, *terms;
  int across, along, across_step, along_step;
};

// Stage is the terms that are in shared memory at once, for reads of 16 bytes.
template <class Real>
struct alignas(16) Stage {
  Real left[depth][tile + gap], right[depth][tile + gap];
};

// multiply adds up the thread's elements of a product, from row (threadIdx.x / across_threads) side
// and column (threadIdx.x % across_threads) side of the tile on. In float so many stages as
// `together` says are added up by themselves; and in each, for operands of float, `run` terms.
template <class Storage>
__device__ __forceinline__ void multiply(typename Storage::Real (&totals)[side][side], Factor<Storage> left, Factor<Storage> right, int64_t terms) {
  using Real = typename Storage::Real;
  constexpr bool in_parts = sizeof(Real) < sizeof(double), in_runs = sizeof(Storage) == sizeof(float);
  __shared__ Stage<Real> stages[2];
  const int row = threadIdx.x / across_threads * side, column = threadIdx.x % across_threads * side;
  const bool has_elements = row < left.count && column < right.count;
  Real sums[side][side], few[side][side], next_left[Factor<Storage>::each], next_right[Factor<Storage>::each];
#pragma unroll
  for (int i = 0; i < side; i++) {
#pragma unroll
    for (int j = 0; j < side; j++) totals[i][j] = sums[i][j] = few[i][j] = 0;
  }
  left.fetch(next_left, terms);
  right.fetch(next_right, terms);
  int number = 0;
#pragma unroll 1
  for (; terms > 0; terms -= depth) {
    Stage<Real> &stage = stages[number % 2];
    left.keep(stage.left, next_left);
    right.keep(stage.right, next_right);
    __syncthreads();
    if (terms > depth) {
      left.fetch(next_left, terms - depth);
      right.fetch(next_right, terms - depth);
    }
    number++;
    if (!has_elements) continue;
#pragma unroll
    for (int k = 0; k < depth; k++) {
      Real x[side], y[side];
#pragma unroll
      for (int i = 0; i < side; i++) {
        x[i] = stage.left[k][row + i];
        y[i] = stage.right[k][column + i];
      }
#pragma unroll
      for (int i = 0; i < side; i++) {
#pragma unroll
        for (int j = 0; j < side; j++) {
          Real &sum = in_runs ? few[i][j] : in_parts ? sums[i][j] : totals[i][j];
          sum = fused(x[i], y[j], sum);
          if (in_runs && k % run == run - 1) {
            sums[i][j] += sum;
            sum = 0;
          }
        }
      }
    }
    if (in_parts && (number % together == 0 || terms <= depth)) {
#pragma unroll
      for (int i = 0; i < side; i++) {
#pragma unroll
        for (int j = 0; j < side; j++) {
          totals[i][j] += sums[i][j];
          sums[i][j] = 0;
        }
      }
    }
  }
}

// visit calls a function for each of the thread's elements that are in the tile.
template <class Storage, class Visit>
__device__ __forceinline__ void visit(const typename Storage::Real (&totals)[side][side], int rows, int columns, Visit of) {
  const int row = threadIdx.x / across_threads * side, column = threadIdx.x % across_threads * side;
#pragma unroll
  for (int i = 0; i < side; i++) {
#pragma unroll
    for (int j = 0; j < side; j++) {
      if (row + i < rows && column + j < columns) of(row + i, column + j, totals[i][j]);
    }
  }
}

// in_tile is how many of the rest of a size are in one tile.
__device__ __forceinline__ int in_tile(int64_t rest) { return rest < tile ? static_cast<int>(rest) : tile; }

template <class Storage>
__device__ __forceinline__ void store_total(Storage *to, typename Storage::Real x, bool accumulate) {
  Storage::store(to, accumulate ? x + Storage::reload(to) : x);
}

// product makes a tile of rows of one group.
template <class Storage>
__device__ __forceinline__ void product(const Product &p) {
  using Real = typename Storage::Real;
  const int64_t number = divide(blockIdx.x, p.column_tiles), first_column = (blockIdx.x - number * p.column_tiles.size) * tile;
  const int32_t group = group_of(p.ends, p.groups, number, tile);
  const int64_t begin = begin_of(p.ends, group), end = begin_of(p.ends, group + 1);
  const int64_t first_row = begin + (number - group - begin / tile) * tile;
  if (first_row >= end) return;
  const int rows = in_tile(end - first_row), columns = in_tile(p.columns - first_column);
  Real totals[side][side];
  const int32_t *tokens = p.tokens == nullptr ? nullptr : p.tokens + first_row;
  multiply(totals, Factor<Storage>(element<Storage>(p.left, 0, tokens == nullptr ? first_row : 0, 0), p.left.row_stride, p.left.column_stride, rows, tokens),
           Factor<Storage>(element<Storage>(p.right, group, 0, first_column), p.right.column_stride, p.right.row_stride, columns), p.inner);
  visit<Storage>(totals, rows, columns, [&](int row, int column, Real x) {
    if (p.bias.data != nullptr) x += Storage::load(element<Storage>(p.bias, group, 0, first_column + column));
    store_total(element<Storage>(p.out, 0, first_row + row, first_column + column), x, p.accumulate != 0);
  });
}

// depth_product makes a tile of one group's result, which may be in float beside half types.
template <class Storage, class Result>
__device__ __forceinline__ void depth_product(const Product &p) {
  using Real = typename Storage::Real;
  const int64_t row_tile = divide(blockIdx.x, p.column_tiles), first_column = (blockIdx.x - row_tile * p.column_tiles.size) * tile;
  const int32_t group = static_cast<int32_t>(row_tile / p.row_tiles);
  const int64_t first_row = (row_tile - group * p.row_tiles) * tile;
  const int64_t begin = begin_of(p.ends, group), terms = begin_of(p.ends, group + 1) - begin;
  if (terms == 0 && p.accumulate) return;
  const int rows = in_tile(p.inner - first_row), columns = in_tile(p.columns - first_column);
  Real totals[side][side];
  multiply(totals, Factor<Storage>(element<Storage>(p.left, 0, begin, first_row), p.left.column_stride, p.left.row_stride, rows),
           Factor<Storage>(element<Storage>(p.right, 0, p.tokens == nullptr ? begin : 0, first_column), p.right.column_stride, p.right.row_stride, columns,
                           nullptr, p.tokens == nullptr ? nullptr : p.tokens + begin),
           terms);
  visit<Storage>(totals, rows, columns, [&](int row, int column, Real x) {
    store_total(element<Result>(p.out, group, first_row + row, first_column + column), x, p.accumulate != 0);
  });
}

// Rows are cut into chunks, and where groups begin. The part of group e in chunk c has the number c
// + e, of which each part has another. A block adds up sum_lanes columns, or vectors of them, of
// one part; every sum_parts'th row is a thread's.
constexpr int chunk_rows = 256, sum_lanes = 32, sum_parts = block_threads / sum_lanes;

// Sums are the parameters of grouped_sums.
struct Sums {
  Matrix x;               // from row first_row on
  const int32_t *tokens;  // where each row is in x, or null: in its place
  const void *scales;     // [rows] in the type that sums are in; null for ones
  void *partials;         // [chunks + groups, columns] likewise
  const int32_t *ends;
  int64_t first_row, end_row;  // multiples of chunk_rows, but for the last one
  int64_t columns;
  Divisor column_blocks;
  int32_t groups, unused;
};
static_assert(sizeof(Sums) == 32 + 7 * 8 + 24 + 8, "go/backend/cuda has the same layout");

template <class Storage, bool vectors>
__device__ __forceinline__ void sums(const Sums &p) {
  using Real = typename Storage::Real;
  constexpr int width = vectors ? Storage::width : 1;
  __shared__ Real shared[block_threads];
  const int lane = threadIdx.x % sum_lanes, part = threadIdx.x / sum_lanes;
  const int64_t index = divide(blockIdx.x, p.column_blocks), block = blockIdx.x - index * p.column_blocks.size;
  const int64_t column = (block * sum_lanes + lane) * width, number = p.first_row / chunk_rows + index;
  const int32_t group = group_of(p.ends, p.groups, number, chunk_rows);
  const int64_t chunk = (number - group) * chunk_rows, group_begin = begin_of(p.ends, group);
  const int64_t begin = max(max(chunk, group_begin), p.first_row), end = min(min(chunk + chunk_rows, begin_of(p.ends, group + 1)), p.end_row);
  if (begin >= end) return;
  Real sum[width];
#pragma unroll
  for (int e = 0; e < width; e++) sum[e] = 0;
  if (column < p.columns) {
#pragma unroll 4
    for (int64_t row = begin + part; row < end; row += sum_parts) {
      const Storage *from = element<Storage>(p.x, 0, p.tokens != nullptr ? __ldg(p.tokens + row) : row - p.first_row, column);
      const Real scale = p.scales == nullptr ? Real(1) : __ldg(static_cast<const Real *>(p.scales) + row);
      Real x[width];
      if constexpr (vectors) {
        Storage::unpack(x, __ldg(reinterpret_cast<const uint4 *>(from)));
      } else {
        x[0] = Storage::load(from);
      }
#pragma unroll
      for (int e = 0; e < width; e++) sum[e] = fused(scale, x[e], sum[e]);
    }
  }
#pragma unroll
  for (int e = 0; e < width; e++) {
    sum[e] = sum_of_lanes(shared + threadIdx.x, sum[e], part, sum_parts, sum_lanes);
    if (part == 0 && column < p.columns) static_cast<Real *>(p.partials)[number * p.columns + column + e] = sum[e];
  }
}

// FinishSums are the parameters of grouped_finish_sums.
struct FinishSums {
  Matrix out;  // with rows of size 1
  const void *partials;
  const int32_t *ends;
  int64_t columns;
  Divisor column_blocks;
  int32_t accumulate;
  int32_t rows, parts;  // of a chunk: its rows, and the partial sums that it has
  int32_t of_tiles;     // chunks are a group's tiles (groups.cuh), else begin at multiples of rows
};
static_assert(sizeof(FinishSums) == 32 + 3 * 8 + 24 + 16, "go/backend/cuda has the same layout");

// finish_sums adds up the partial sums of a group with the errors of the additions, as
// finish_columns does (reduce.cuh).
template <class Storage>
__device__ __forceinline__ void finish_sums(const FinishSums &p) {
  using Real = typename Storage::Real;
  __shared__ Real shared[block_threads];
  const int lane = threadIdx.x % sum_lanes, part = threadIdx.x / sum_lanes;
  const int64_t group = divide(blockIdx.x, p.column_blocks), column = (blockIdx.x - group * p.column_blocks.size) * sum_lanes + lane;
  const int64_t begin = begin_of(p.ends, static_cast<int32_t>(group)), end = begin_of(p.ends, static_cast<int32_t>(group) + 1);
  if (begin == end && p.accumulate) return;
  const int64_t from = p.of_tiles ? begin : 0, chunks = begin == end ? 0 : (end - 1 - from) / p.rows - (begin - from) / p.rows + 1;
  const int64_t first = (begin / p.rows + group) * p.parts, numbers = chunks * p.parts;
  Real sum = 0, rest = 0;
  if (column < p.columns) {
    const Real *partial = static_cast<const Real *>(p.partials) + first * p.columns + column;
#pragma unroll 4
    for (int64_t i = part; i < numbers; i += sum_parts) {
      const Real term = __ldg(partial + i * p.columns), next = sum + term, added = next - sum;
      rest += (sum - (next - added)) + (term - added);
      sum = next;
    }
  }
  // Where a sum became infinite or NaN its rest is inf - inf and means nothing.
  if (rest - rest == 0) sum += rest;
  sum = sum_of_lanes(shared + threadIdx.x, sum, part, sum_parts, sum_lanes);
  if (part == 0 && column < p.columns) store_total(element<Storage>(p.out, group, 0, column), sum, p.accumulate != 0);
}

}  // namespace epigrad::grouped

// Two blocks a processor are the least that hide what a block waits for.
#define GROUPED_PRODUCT(name, ...)                                                                                                    \
  extern "C" __global__ void __launch_bounds__(epigrad::block_threads, 2) name(const __grid_constant__ epigrad::grouped::Product p) { \
    epigrad::grouped::__VA_ARGS__(p);                                                                                                 \
  }                                                                                                                                   \
  EPG_REGISTER(name)
#define GROUPED_SUMS(name, Parameters, ...)                                                                     \
  EPG_KERNEL name(const __grid_constant__ epigrad::grouped::Parameters p) { epigrad::grouped::__VA_ARGS__(p); } \
  EPG_REGISTER(name)
#define GROUPED_OF(dtype, unused)                                                       \
  GROUPED_PRODUCT(grouped_product_##dtype, product<epigrad::dtype>)                     \
  GROUPED_PRODUCT(grouped_depth_##dtype, depth_product<epigrad::dtype, epigrad::dtype>) \
  GROUPED_SUMS(grouped_sums_##dtype, Sums, sums<epigrad::dtype, true>)                  \
  GROUPED_SUMS(grouped_sums_##dtype##_strided, Sums, sums<epigrad::dtype, false>)       \
  GROUPED_SUMS(grouped_finish_sums_##dtype, FinishSums, finish_sums<epigrad::dtype>)
EPG_FOR_EACH_DTYPE(GROUPED_OF, )
GROUPED_PRODUCT(grouped_depth_bf16_f32, depth_product<epigrad::bf16, epigrad::f32>)
GROUPED_PRODUCT(grouped_depth_f16_f32, depth_product<epigrad::f16, epigrad::f32>)
