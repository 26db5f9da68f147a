// Products that take less time than launches do, with all that belongs to them, in one launch each
// way: gemm_epilogue_small_<activation>_<dtype>, and gemm_epilogue_backward_small_<...> from the
// saved preactivation, gemm_epilogue_backward_small_from_output_<...> from the saved output.
//
//   preactivation = a b + bias,  out = act(preactivation)
//   g = grad_output act'(preactivation)
//   grad_a = g b^T,  grad_b = a^T g (+ grad_b),  grad_bias = column sums of g (+ grad_bias)
//
// a is [m, k], b is [k, n], and whatever else has m rows has n columns; all of any strides. A
// result without a place is not computed. The preactivation is rounded to storage before it is
// used, as when it is stored; g is not. A block makes one tile of one result, and forms the
// elements of g that it meets again each time: for problems this small that is less than a second
// launch. Every fourth term of `depth` is added up by itself. Activations that are less frequent
// share a kernel, "other" (activation.cuh).
#include "gemm_epilogue.cuh"
#include "loops.cuh"

namespace epigrad {

constexpr int tile = 16;
constexpr int depth = 64;  // terms that are in shared memory at once
static_assert(tile * tile == block_threads, "a thread has one element of a tile");

// Matrix is an operand; strides in elements.
struct Matrix {
  void *data;
  int64_t row_stride, column_stride;
};

struct SmallForward {
  Matrix a, b, out, preactivation;
  const void *bias;  // null for none
  int64_t bias_stride;
  double parameters[most_parameters + 1];  // and the number of another activation
  int32_t m, n, k, column_tiles;
};
static_assert(sizeof(SmallForward) == 4 * 24 + 16 + 5 * 8 + 16, "go/backend/cuda has the same layout");

struct SmallBackward {
  Matrix grad_output, saved, a, b, grad_a, grad_b;
  void *grad_bias;
  int64_t grad_bias_stride;
  double parameters[most_parameters + 1];  // and the number of another activation
  int32_t m, n, k;
  // blocks that make tiles of either, 0 where it is not asked for; those after them make grad_bias
  int32_t grad_a_tiles, grad_b_tiles;
  int32_t accumulate;
};
static_assert(sizeof(SmallBackward) == 6 * 24 + 16 + 5 * 8 + 24, "go/backend/cuda has the same layout");

// rounded is x as storage would give it back.
template <class Storage>
__device__ __forceinline__ typename Storage::Real rounded(typename Storage::Real x) {
  typename Storage::Real all[Storage::width] = {x};
  Storage::unpack(all, Storage::pack(all));
  return all[0];
}

template <class Storage>
__device__ __forceinline__ Storage *element(const Matrix &x, int row, int column) {
  return static_cast<Storage *>(x.data) + row * x.row_stride + column * x.column_stride;
}

// A factor of a product gives its element at a place across the sum and one along it. Elements is a
// matrix as it lies, and Gradients is g.
template <class Storage>
struct Elements {
  const Matrix &x;
  __device__ __forceinline__ typename Storage::Real operator()(int row, int column) const { return Storage::load(element<Storage>(x, row, column)); }
};

template <class Operation>
struct Gradients {
  using Storage = typename Operation::Storage;
  const Matrix &x, &saved;
  Parameters<typename Storage::Real> parameters;
  __device__ __forceinline__ typename Storage::Real operator()(int row, int column) const {
    typename Storage::Real y[1], in[Operation::inputs];
    in[0] = Storage::load(element<Storage>(x, row, column));
    if constexpr (Operation::inputs > 1) in[1] = Storage::load(element<Storage>(saved, row, column));
    Operation::template apply<1>(parameters, y, in);
    return y[0];
  }
};

// Factor is a part of a matrix, `count` places across the sum from `first` on. A factor is
// transposed where its columns are across.
template <bool transposed, class Source>
struct Factor {
  Source source;
  int first, count, terms;

  // fetch reads the thread's part of the terms from `begin` on. Neighbouring threads read what lies
  // side by side.
  template <class Real>
  __device__ __forceinline__ void fetch(Real (&x)[tile * depth / block_threads], int begin) const {
#pragma unroll
    for (int i = 0; i < tile * depth / block_threads; i++) {
      int across, along;
      place(i, across, along);
      along += begin;
      x[i] = across >= count || along >= terms ? Real(0) : transposed ? source(along, first + across) : source(first + across, along);
    }
  }

  template <class Real>
  __device__ __forceinline__ void keep(Real (&to)[tile][depth + 1], const Real (&x)[tile * depth / block_threads]) const {
#pragma unroll
    for (int i = 0; i < tile * depth / block_threads; i++) {
      int across, along;
      place(i, across, along);
      to[across][along] = x[i];
    }
  }

 private:
  __device__ __forceinline__ void place(int i, int &across, int &along) const {
    const int index = threadIdx.x + i * block_threads;
    const bool along_is_near = transposed ? source.x.row_stride < source.x.column_stride : source.x.column_stride <= source.x.row_stride;
    across = along_is_near ? index / depth : index % tile;
    along = along_is_near ? index % depth : index / tile;
  }
};

template <class Real>
struct Stage {
  Real left[tile][depth + 1], right[tile][depth + 1];
};

// tile_product is the thread's element of a tile of a product: row threadIdx.x / tile, column
// threadIdx.x % tile.
template <class Real, class Left, class Right>
__device__ __forceinline__ Real tile_product(Stage<Real> &stage, const Left &left, const Right &right) {
  const int row = threadIdx.x / tile, column = threadIdx.x % tile;
  Real total = 0, next_left[tile * depth / block_threads], next_right[tile * depth / block_threads];
  left.fetch(next_left, 0);
  right.fetch(next_right, 0);
#pragma unroll 1
  for (int begin = 0; begin < left.terms; begin += depth) {
    left.keep(stage.left, next_left);
    right.keep(stage.right, next_right);
    __syncthreads();
    if (begin + depth < left.terms) {
      left.fetch(next_left, begin + depth);
      right.fetch(next_right, begin + depth);
    }
    Real sums[4] = {};
#pragma unroll 4
    for (int i = 0; i < depth; i += 4) {
#pragma unroll
      for (int j = 0; j < 4; j++) sums[j] = fused(stage.left[row][i + j], stage.right[column][i + j], sums[j]);
    }
    total = total + ((sums[0] + sums[1]) + (sums[2] + sums[3]));
    __syncthreads();
  }
  return total;
}

// small_forward makes a tile of the preactivation in each block.
template <class Activation, class Storage>
__device__ __forceinline__ void small_forward(const SmallForward &p) {
  using Real = typename Storage::Real;
  __shared__ Stage<Real> stage;
  const int first_row = blockIdx.x / p.column_tiles * tile, first_column = blockIdx.x % p.column_tiles * tile;
  Real x = tile_product(stage, Factor<false, Elements<Storage>>{{p.a}, first_row, min(tile, p.m - first_row), p.k},
                        Factor<true, Elements<Storage>>{{p.b}, first_column, min(tile, p.n - first_column), p.k});
  const int row = first_row + threadIdx.x / tile, column = first_column + threadIdx.x % tile;
  if (row >= p.m || column >= p.n) return;
  if (p.bias != nullptr) x = x + Storage::load(static_cast<const Storage *>(p.bias) + column * p.bias_stride);
  x = rounded<Storage>(x);
  if (p.preactivation.data != nullptr) Storage::store(element<Storage>(p.preactivation, row, column), x);
  if (p.out.data != nullptr) Storage::store(element<Storage>(p.out, row, column), Activation::value(x, Activation::parts(x, Parameters<Real>(p.parameters))));
}

template <class Storage>
__device__ __forceinline__ void store_sum(Storage *to, typename Storage::Real x, bool accumulate) {
  Storage::store(to, accumulate ? x + Storage::reload(to) : x);
}

// small_grad_bias adds up `tile` columns of g.
template <class Operation, class Storage>
__device__ __forceinline__ void small_grad_bias(const SmallBackward &p, const Gradients<Operation> &g, int first_column,
                                                typename Storage::Real (&partial)[tile][depth + 1]) {
  const int lane = threadIdx.x / tile, column = threadIdx.x % tile;
  const bool inside = first_column + column < p.n;
  typename Storage::Real sum = 0;
#pragma unroll 1
  for (int row = lane; inside && row < p.m; row += tile) sum = sum + g(row, first_column + column);
  partial[lane][column] = sum;
  __syncthreads();
  if (!inside || lane != 0) return;
#pragma unroll
  for (int i = 1; i < tile; i++) sum = sum + partial[i][column];
  store_sum(static_cast<Storage *>(p.grad_bias) + (first_column + column) * p.grad_bias_stride, sum, p.accumulate != 0);
}

// small_backward makes a tile of grad_a or of grad_b, or a tile's columns of grad_bias, in each
// block.
template <class Operation, class Storage>
__device__ __forceinline__ void small_backward(const SmallBackward &p) {
  using Real = typename Storage::Real;
  __shared__ Stage<Real> stage;
  const Gradients<Operation> g{p.grad_output, p.saved, Parameters<Real>(p.parameters)};
  const int k_tiles = (p.k + tile - 1) / tile, n_tiles = (p.n + tile - 1) / tile;
  int index = blockIdx.x;
  if (index < p.grad_a_tiles) {
    const int first_row = index / k_tiles * tile, first_column = index % k_tiles * tile;
    const Real x = tile_product(stage, Factor<false, Gradients<Operation>>{g, first_row, min(tile, p.m - first_row), p.n},
                                Factor<false, Elements<Storage>>{{p.b}, first_column, min(tile, p.k - first_column), p.n});
    const int row = first_row + threadIdx.x / tile, column = first_column + threadIdx.x % tile;
    if (row < p.m && column < p.k) Storage::store(element<Storage>(p.grad_a, row, column), x);
    return;
  }
  index -= p.grad_a_tiles;
  if (index < p.grad_b_tiles) {
    const int first_row = index / n_tiles * tile, first_column = index % n_tiles * tile;
    const Real x = tile_product(stage, Factor<true, Elements<Storage>>{{p.a}, first_row, min(tile, p.k - first_row), p.m},
                                Factor<true, Gradients<Operation>>{g, first_column, min(tile, p.n - first_column), p.m});
    const int row = first_row + threadIdx.x / tile, column = first_column + threadIdx.x % tile;
    if (row < p.k && column < p.n) store_sum(element<Storage>(p.grad_b, row, column), x, p.accumulate != 0);
    return;
  }
  small_grad_bias<Operation, Storage>(p, g, (index - p.grad_b_tiles) * tile, stage.left);
}

}  // namespace epigrad

// Two blocks a processor are more than there are: with registers for that many, none spill.
#define EPG_SMALL_KERNEL extern "C" __global__ void __launch_bounds__(epigrad::block_threads, 2)
#define FORMULA(activation, dtype) epigrad::activations::activation<epigrad::dtype::Arithmetic>, epigrad::dtype
#define SMALL_FORWARD(activation, dtype)                                                                         \
  EPG_SMALL_KERNEL gemm_epilogue_small_##activation##_##dtype(const __grid_constant__ epigrad::SmallForward p) { \
    epigrad::small_forward<FORMULA(activation, dtype)>(p);                                                       \
  }                                                                                                              \
  EPG_REGISTER(gemm_epilogue_small_##activation##_##dtype)
#define SMALL_BACKWARD_OF(name, dtype, ...)                                                                                            \
  EPG_SMALL_KERNEL name(const __grid_constant__ epigrad::SmallBackward p) { epigrad::small_backward<__VA_ARGS__, epigrad::dtype>(p); } \
  EPG_REGISTER(name)
#define SMALL_BACKWARD(activation, dtype) \
  SMALL_BACKWARD_OF(gemm_epilogue_backward_small_##activation##_##dtype, dtype, epigrad::GradPreactivation<FORMULA(activation, dtype)>)
#define SMALL_BACKWARD_FROM_OUTPUT(activation, dtype) \
  SMALL_BACKWARD_OF(gemm_epilogue_backward_small_from_output_##activation##_##dtype, dtype, epigrad::GradPreactivationFromOutput<FORMULA(activation, dtype)>)
#define SMALL_ALL(dtype, unused)                                         \
  SMALL_FORWARD(none, dtype)                                             \
  SMALL_FORWARD(other, dtype)                                            \
  SMALL_BACKWARD(other, dtype)                                           \
  EPG_FOR_EACH_FREQUENT_ACTIVATION(SMALL_FORWARD, dtype)                 \
  EPG_FOR_EACH_FREQUENT_ACTIVATION(SMALL_BACKWARD, dtype)                \
  EPG_FOR_EACH_ACTIVATION_FROM_OUTPUT(SMALL_BACKWARD_FROM_OUTPUT, dtype) \
  SMALL_BACKWARD_OF(gemm_epilogue_backward_small_none_##dtype, dtype, epigrad::GradPreactivationOfNone<epigrad::dtype>)
EPG_FOR_EACH_DTYPE(SMALL_ALL, )
