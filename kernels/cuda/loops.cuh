// Elementwise kernels: every output element is a function of the input elements at the same place.
//
// An operation is a struct with
//
//   Storage                   the storage type of all operands
//   outputs, inputs           how many there are
//   sums                      how many outputs a summing kernel sums, the first (reduce.cuh)
//   optional_inputs           whether a null input stands for zeros
//   selective                 whether apply leaves out what is not wanted
//   vectors                   how many vectors a thread of the vector form does: 2 where they have
//                             more to compute than to wait for, so that they share what it costs
//                             to find them
//   uniform                   bit i says that input i has one value, wherever it is read: what
//                             apply computes of it is then computed once for a vector
//   apply<wanted>(p, y, x)    outputs y from inputs x and the parameters p; bit i of wanted asks for y[i]
//
// most of which it inherits from Operands. Two kernels are made of it, which give the same bits for
// the same element. A null output is not written.
#pragma once

#include "arithmetic.cuh"
#include "storage.cuh"

namespace epigrad {

constexpr int block_threads = 256;
constexpr int block_threads_log2 = 8;
// of a block of the vector form: shorter blocks make way sooner
constexpr int vector_threads = 128;
constexpr int max_rank = 8;

template <class S, int output_count, int input_count>
struct Operands {
  using Storage = S;
  using Real = typename S::Real;
  static constexpr int outputs = output_count, inputs = input_count, operands = outputs + inputs, sums = outputs, vectors = 1;
  static constexpr unsigned uniform = 0;
  static constexpr bool optional_inputs = false, selective = false;
};

// Divisor divides numbers below 2^63 by size with one multiplication (Granlund and Montgomery 1994,
// https://doi.org/10.1145/178243.178249):
//
//   multiplier = floor(2^(63+l)/size) + 1,  shift = l - 1
//
// where 2^l is the least power of two that is not below size. A size of 1 has the multiplier 0.
struct Divisor {
  uint64_t multiplier;
  int64_t size;
  uint32_t shift, unused;
};
static_assert(sizeof(Divisor) == 24, "go/backend/cuda has the same layout");

__device__ __forceinline__ int64_t divide(int64_t n, const Divisor &d) {
  return d.multiplier == 0 ? n : static_cast<int64_t>(__umul64hi(static_cast<uint64_t>(n), d.multiplier) >> d.shift);
}

// Elementwise are the parameters of both kernels. Operands are the outputs, then the inputs.
// Dimensions are innermost first, strides in elements.
template <int operands>
struct Elementwise {
  void *pointers[operands];
  double parameters[most_parameters];  // those of apply
  int64_t count;                       // vector form: vectors; strided form: rows
  // vector form: elements behind the last vector, of one dimension
  int64_t tail;
  int64_t strides[operands][max_rank];  // vector form: [..][0] is not read
  Divisor dims[max_rank];               // sizes; vector form: dims[0] counts vectors
  Divisor tiles;                        // strided form: tiles of a row
  int32_t rank;
  int32_t lanes;        // strided form: 2^lanes threads are side by side in a row
  uint32_t broadcast;   // vector form: bit i says that operand i has one value along dims[0]
  uint32_t gate_first;  // pairs (gated.cu): whether a gate comes before its value
};
static_assert(sizeof(Elementwise<2>) == 2 * 8 + 4 * 8 + 16 + 2 * 64 + 9 * 24 + 16, "go/backend/cuda has the same layout");

// advance adds the offset of an index to each operand's. The index counts through the dimensions
// from `first` on, as if they were one.
template <int operands>
__device__ __forceinline__ void advance(int64_t (&offsets)[operands], int64_t index, int first, int rank, const Divisor (&dims)[max_rank],
                                        const int64_t (&strides)[operands][max_rank]) {
#pragma unroll 1
  for (int d = first; d < rank; d++) {
    int64_t outer = d + 1 < rank ? divide(index, dims[d]) : 0;
    int64_t along = index - outer * dims[d].size;
#pragma unroll
    for (int i = 0; i < operands; i++) offsets[i] += along * strides[i][d];
    index = outer;
  }
}

// repeated is a vector with one value in all its elements.
template <class Storage>
__device__ __forceinline__ uint4 repeated(const Storage *p) {
  typename Storage::Real value = Storage::load(p), all[Storage::width];
#pragma unroll
  for (int e = 0; e < Storage::width; e++) all[e] = value;
  return Storage::pack(all);
}

// Inputs are an operation's inputs in flight: whole vectors, still as they lie in memory, so that
// all loads are under way before the first is waited for.
template <class Operation>
struct Inputs {
  using Storage = typename Operation::Storage;
  static constexpr int first = Operation::outputs;  // among the operands
  uint4 raw[Operation::inputs];

  // load reads a vector of each input; base and offsets are those of all operands.
  __device__ __forceinline__ void load(void *const *base, const int64_t *offsets, uint32_t broadcast) {
    if (broadcast == 0) {
#pragma unroll
      for (int i = 0; i < Operation::inputs; i++) load_one(i, base[first + i], offsets[first + i], false);
    } else {
#pragma unroll
      for (int i = 0; i < Operation::inputs; i++) load_one(i, base[first + i], offsets[first + i], broadcast >> (first + i) & 1);
    }
  }

 private:
  __device__ __forceinline__ void load_one(int i, const void *base, int64_t offset, bool one_value) {
    const Storage *p = static_cast<const Storage *>(base) + offset;
    if (Operation::optional_inputs && base == nullptr) {
      raw[i] = make_uint4(0, 0, 0, 0);
    } else if (one_value) {
      raw[i] = repeated(p);
    } else {
      raw[i] = __ldg(reinterpret_cast<const uint4 *>(p));
    }
  }
};

// apply_vector applies an operation to a vector of inputs and stores those outputs that have a
// place.
template <class Operation, unsigned wanted>
__device__ __forceinline__ void apply_vector(typename Operation::Real (&y)[Operation::outputs][Operation::Storage::width], const Inputs<Operation> &inputs,
                                             const Parameters<typename Operation::Real> &parameters) {
  using Storage = typename Operation::Storage;
  constexpr int width = Storage::width;
  typename Operation::Real x[Operation::inputs][width];
#pragma unroll
  for (int i = 0; i < Operation::inputs; i++) Storage::unpack(x[i], inputs.raw[i]);
#pragma unroll
  for (int e = 0; e < width; e++) {
    typename Operation::Real in[Operation::inputs], out[Operation::outputs];
#pragma unroll
    for (int i = 0; i < Operation::inputs; i++) in[i] = x[i][Operation::uniform >> i & 1 ? 0 : e];
    Operation::template apply<wanted>(parameters, out, in);
#pragma unroll
    for (int i = 0; i < Operation::outputs; i++) {
      if (wanted >> i & 1) y[i][e] = out[i];
    }
  }
}

template <class Operation, unsigned wanted>
__device__ __forceinline__ void store_vector(void *const *base, const int64_t *offsets,
                                             const typename Operation::Real (&y)[Operation::outputs][Operation::Storage::width]) {
  using Storage = typename Operation::Storage;
#pragma unroll
  for (int i = 0; i < Operation::outputs; i++) {
    if (wanted >> i & 1 && (Operation::outputs == 1 || base[i] != nullptr)) {
      *reinterpret_cast<uint4 *>(static_cast<Storage *>(base[i]) + offsets[i]) = Storage::pack(y[i]);
    }
  }
}

// apply_one applies an operation to one element, all of it, and stores those outputs that have a
// place.
template <class Operation>
__device__ __forceinline__ void apply_one(typename Operation::Real (&y)[Operation::outputs], void *const *base, const int64_t *offsets,
                                          const Parameters<typename Operation::Real> &parameters) {
  using Storage = typename Operation::Storage;
  typename Operation::Real x[Operation::inputs];
#pragma unroll
  for (int i = 0; i < Operation::inputs; i++) {
    const void *from = base[Operation::outputs + i];
    if (Operation::optional_inputs && from == nullptr) {
      x[i] = 0;
    } else {
      x[i] = Storage::load(static_cast<const Storage *>(from) + offsets[Operation::outputs + i]);
    }
  }
  Operation::template apply<(1u << Operation::outputs) - 1>(parameters, y, x);
#pragma unroll
  for (int i = 0; i < Operation::outputs; i++) {
    if (base[i] != nullptr) Storage::store(static_cast<Storage *>(base[i]) + offsets[i], y[i]);
  }
}

template <class Operation, unsigned wanted>
__device__ __forceinline__ void apply_and_store(const Elementwise<Operation::operands> &p, const int64_t *offsets, const Inputs<Operation> &inputs) {
  typename Operation::Real y[Operation::outputs][Operation::Storage::width];
  apply_vector<Operation, wanted>(y, inputs, Parameters<typename Operation::Real>(p.parameters));
  store_vector<Operation, wanted>(p.pointers, offsets, y);
}

// apply_tail does the elements behind the last vector.
template <class Operation>
__device__ __forceinline__ void apply_tail(const Elementwise<Operation::operands> &p) {
  constexpr int operands = Operation::operands;
#pragma unroll 1
  for (int64_t e = 0; e < p.tail; e++) {
    int64_t offsets[operands];
#pragma unroll
    for (int i = 0; i < operands; i++) offsets[i] = p.broadcast >> i & 1 ? 0 : p.count * Operation::Storage::width + e;
    typename Operation::Real y[Operation::outputs];
    apply_one<Operation>(y, p.pointers, offsets, Parameters<typename Operation::Real>(p.parameters));
  }
}

// elementwise_vector does one vector in each thread, or two that lie a block apart. One dimension
// needs no division; each further one costs a thread one multiplication a vector.
template <class Operation>
__device__ __forceinline__ void elementwise_vector(const Elementwise<Operation::operands> &p) {
  constexpr int width = Operation::Storage::width, operands = Operation::operands;
  constexpr unsigned all = (1u << Operation::outputs) - 1;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (vector_threads * Operation::vectors) + threadIdx.x;
  int64_t offsets[Operation::vectors][operands];
  Inputs<Operation> inputs[Operation::vectors];
  const bool flat = p.rank == 1 && p.broadcast == 0;  // as most calls are
#pragma unroll
  for (int v = 0; flat && v < Operation::vectors; v++) {
    const int64_t index = first + v * vector_threads;
    if (index >= p.count) break;
#pragma unroll
    for (int i = 0; i < operands; i++) offsets[v][i] = index * width;
    inputs[v].load(p.pointers, offsets[v], 0);
  }
#pragma unroll
  for (int v = 0; !flat && v < Operation::vectors; v++) {
    const int64_t index = first + v * vector_threads;
    if (index >= p.count) break;
    int64_t row = p.rank > 1 ? divide(index, p.dims[0]) : 0;
    int64_t along = (index - row * p.dims[0].size) * width;
#pragma unroll
    for (int i = 0; i < operands; i++) offsets[v][i] = p.broadcast >> i & 1 ? 0 : along;
    if (p.rank > 1) advance(offsets[v], row, 1, p.rank, p.dims, p.strides);
    inputs[v].load(p.pointers, offsets[v], p.broadcast);
  }
  if constexpr (Operation::vectors > 1 && !Operation::selective) {
    // All of a thread's vectors side by side share constants, and one waits for no other.
    if (first + (Operation::vectors - 1) * vector_threads < p.count) {
      typename Operation::Real y[Operation::vectors][Operation::outputs][width];
#pragma unroll
      for (int v = 0; v < Operation::vectors; v++) apply_vector<Operation, all>(y[v], inputs[v], Parameters<typename Operation::Real>(p.parameters));
#pragma unroll
      for (int v = 0; v < Operation::vectors; v++) store_vector<Operation, all>(p.pointers, offsets[v], y[v]);
      return;
    }
  }
#pragma unroll
  for (int v = 0; v < Operation::vectors; v++) {
    const int64_t index = first + v * vector_threads;
    if (index >= p.count) {
      if (index == p.count) apply_tail<Operation>(p);
      return;
    }
    if constexpr (Operation::selective) {
      static_assert(Operation::outputs == 2);
      if (p.pointers[0] == nullptr) {
        apply_and_store<Operation, 2>(p, offsets[v], inputs[v]);
      } else if (p.pointers[1] == nullptr) {
        apply_and_store<Operation, 1>(p, offsets[v], inputs[v]);
      } else {
        apply_and_store<Operation, all>(p, offsets[v], inputs[v]);
      }
    } else {
      apply_and_store<Operation, all>(p, offsets[v], inputs[v]);
    }
  }
}

constexpr int elements_per_thread = 4;

// elementwise_strided does up to elements_per_thread elements of one row in each thread: 2^lanes
// threads are side by side in a row, so that neighbours read neighbours, and a block has
// 256/2^lanes rows. Where a row is costs a thread a few multiplications, once; along it only
// strides are added.
template <class Operation>
__device__ __forceinline__ void elementwise_strided(const Elementwise<Operation::operands> &p) {
  constexpr int operands = Operation::operands;
  int64_t block = divide(blockIdx.x, p.tiles);
  int64_t tile = blockIdx.x - block * p.tiles.size;
  int64_t row = (block << (block_threads_log2 - p.lanes)) + (threadIdx.x >> p.lanes);
  if (row >= p.count) return;
  int64_t along = ((tile * elements_per_thread) << p.lanes) + (threadIdx.x & ((1u << p.lanes) - 1));
  int64_t offsets[operands];
#pragma unroll
  for (int i = 0; i < operands; i++) offsets[i] = along * p.strides[i][0];
  advance(offsets, row, 1, p.rank, p.dims, p.strides);
#pragma unroll 1
  for (int step = 0; step < elements_per_thread && along < p.dims[0].size; step++) {
    typename Operation::Real y[Operation::outputs];
    apply_one<Operation>(y, p.pointers, offsets, Parameters<typename Operation::Real>(p.parameters));
    along += int64_t(1) << p.lanes;
    // Strides may be negative, and C++17 shifts no negative number.
#pragma unroll
    for (int i = 0; i < operands; i++) offsets[i] += static_cast<uint64_t>(p.strides[i][0]) << p.lanes;
  }
}

}  // namespace epigrad

// EPG_KERNEL begins a kernel's definition, and EPG_REGISTER follows it: the emulator finds kernels
// by it.
#define EPG_KERNEL extern "C" __global__ void __launch_bounds__(epigrad::block_threads)
#ifdef __CUDACC__
#define EPG_REGISTER(name)
#endif

// EPG_ELEMENTWISE makes both kernels of the operation that the rest of the arguments name.
#define EPG_ELEMENTWISE(name, ...)                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(epigrad::vector_threads) name(const __grid_constant__ epigrad::Elementwise<__VA_ARGS__::operands> p) { \
    epigrad::elementwise_vector<__VA_ARGS__>(p);                                                                                                      \
  }                                                                                                                                                   \
  EPG_KERNEL name##_strided(const __grid_constant__ epigrad::Elementwise<__VA_ARGS__::operands> p) { epigrad::elementwise_strided<__VA_ARGS__>(p); }  \
  EPG_REGISTER(name) EPG_REGISTER(name##_strided)
