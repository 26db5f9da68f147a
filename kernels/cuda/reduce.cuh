// Elementwise kernels that also sum what they compute, before it is rounded, over some of the
// dimensions.
//
// Dimensions are kept or reduced. The reduced indices are cut into chunks; a block sums the terms
// of one chunk for a few kept indices and writes partial sums to the workspace, and finish_columns
// adds those in one order and rounds once. No sum depends on when a block runs, nor on the form of
// the kernel: the indices alone say in which order their terms are added. A thread adds at most
// some hundreds of terms one after the other, threads are added in pairs, and chunks with the error
// of each addition carried along.
#pragma once

#include "loops.cuh"

namespace epigrad {

// Reduction are the parameters of a summing kernel. Dimensions are innermost first. Along the
// dimension that vectors are along, indices and strides are those of vectors, and elsewhere of
// elements; strides count elements.
template <int operands, int outputs>
struct Reduction {
  void *pointers[operands];
  // [chunks, partial_row], in the type that sums are in; null where no sum is asked for
  void *partials[outputs];
  double parameters[most_parameters];  // those of apply
  int64_t kept;                        // indices
  int64_t reduced;                     // elements
  // neighbouring reduced elements that one thread adds up, by themselves
  int64_t unit;
  // units in each of the first long_chunks chunks, and in the others
  int64_t run, short_run;
  int64_t partial_row;  // elements
  Divisor kept_blocks;  // blocks along the kept indices
  Divisor kept_dims[max_rank], reduced_dims[max_rank];
  int64_t kept_strides[operands][max_rank], reduced_strides[operands][max_rank];
  int32_t kept_rank, reduced_rank;
  // 2^kept_lanes threads of a block have different kept indices, the others different units
  int32_t kept_lanes;
  int32_t kept_first;  // whether neighbouring threads have neighbouring kept indices, or else units
  // bit i says that operand i has one value along the dimension that vectors are along
  uint32_t broadcast;
  int32_t long_chunks;
};
static_assert(sizeof(Reduction<2, 1>) == 3 * 8 + 4 * 8 + 6 * 8 + 17 * 24 + 4 * 64 + 24, "go/backend/cuda has the same layout");

// Vectors says which dimension vectors are along. Along the reduced one a vector is a unit.
enum class Vectors { none, along_kept, along_reduced };

// locate sets offsets to those of a row plus those of a reduced index.
template <int operands, int outputs>
__device__ __forceinline__ void locate(int64_t (&offsets)[operands], const int64_t (&row)[operands], int64_t index, const Reduction<operands, outputs> &p) {
  if (p.reduced_rank == 1) {
#pragma unroll
    for (int i = 0; i < operands; i++) offsets[i] = row[i] + index * p.reduced_strides[i][0];
    return;
  }
#pragma unroll
  for (int i = 0; i < operands; i++) offsets[i] = row[i];
  advance(offsets, index, 0, p.reduced_rank, p.reduced_dims, p.reduced_strides);
}

// An operation may have is_plain(p), which tells that parameters are such that apply can do less:
// then `plain` is among the bits of wanted. It is asked where kernels would wait for arithmetic.
constexpr unsigned plain = 1u << 31;
template <class Operation, class = void>
constexpr bool has_plain = false;
template <class Operation>
constexpr bool has_plain<Operation, decltype(void(&Operation::is_plain))> = true;

// stages is how many vectors of each input a thread has in shared memory or on their way there.
template <class Operation>
constexpr int stages = Operation::inputs == 1 ? 4 : 3;

// stream calls add(inputs, outputs' pointers) for `count` vectors, each a step behind the last. It
// copies inputs to shared memory some iterations ahead, since the loads of one iteration do not
// keep the memory busy. slots is the thread's part of
//
//   [stages, inputs, threads]
template <class Operation, class Add>
__device__ __forceinline__ void stream(char *(&pointers)[Operation::operands], const int64_t (&steps)[Operation::operands], int count, uint32_t broadcast,
                                       uint4 *slots, Add add) {
  using Storage = typename Operation::Storage;
  constexpr int outputs = Operation::outputs, inputs = Operation::inputs, depth = stages<Operation>;
  auto start = [&](int stage) {
#pragma unroll
    for (int i = 0; i < inputs; i++) {
      char *&from = pointers[outputs + i];
      if ((Operation::optional_inputs && from == nullptr) || broadcast >> (outputs + i) & 1) continue;
      copy_ahead(slots + (stage * inputs + i) * block_threads, from);
      from += steps[outputs + i];
    }
  };
#pragma unroll
  for (int stage = 0; stage < depth - 1; stage++) {
    if (stage < count) start(stage);
    close_group();
  }
  int stage = 0;
#pragma unroll 1
  for (int done = 0; done < count; done++) {
    wait_for_groups<depth - 2>();
    Inputs<Operation> here;
#pragma unroll
    for (int i = 0; i < inputs; i++) {
      char *&from = pointers[outputs + i];
      if (Operation::optional_inputs && from == nullptr) {
        here.raw[i] = make_uint4(0, 0, 0, 0);
      } else if (broadcast >> (outputs + i) & 1) {
        here.raw[i] = repeated<Storage>(reinterpret_cast<const Storage *>(from));
        from += steps[outputs + i];
      } else {
        here.raw[i] = slots[(stage * inputs + i) * block_threads];
      }
    }
    // Into the stage before this one, which has been read.
    if (done + depth - 1 < count) start(stage == 0 ? depth - 1 : stage - 1);
    close_group();
    stage = stage == depth - 1 ? 0 : stage + 1;
    add(here, pointers);
#pragma unroll
    for (int i = 0; i < outputs; i++) pointers[i] += steps[i];
  }
}

// reduce is the kernel.
template <Vectors vectors, class Operation>
__device__ __forceinline__ void reduce(const Reduction<Operation::operands, Operation::outputs> &p) {
  using Real = typename Operation::Real;
  constexpr int operands = Operation::operands, outputs = Operation::outputs, width = Operation::Storage::width;
  constexpr int kept_width = vectors == Vectors::along_kept ? width : 1;
  constexpr int summands = Operation::sums;  // of the outputs, the first
  constexpr unsigned all = (1u << outputs) - 1;
  let_next_start();
  const int unit_lanes = block_threads_log2 - p.kept_lanes;
  const unsigned thread = threadIdx.x;
  const unsigned kept_lane = p.kept_first ? thread & ((1u << p.kept_lanes) - 1) : thread >> unit_lanes;
  const unsigned unit_lane = p.kept_first ? thread >> p.kept_lanes : thread & ((1u << unit_lanes) - 1);
  const int64_t chunk = divide(blockIdx.x, p.kept_blocks);
  const int64_t kept = ((blockIdx.x - chunk * p.kept_blocks.size) << p.kept_lanes) + kept_lane;
  const Parameters<Real> parameters(p.parameters);

  // First for what is on its way to the threads, then for their sums.
  constexpr int staged = vectors == Vectors::none ? 0 : stages<Operation> * Operation::inputs * block_threads;
  constexpr int summed = block_threads * kept_width * sizeof(Real) / sizeof(uint4);
  __shared__ uint4 shared[staged > summed ? staged : summed];

  Real sums[summands][kept_width];
#pragma unroll
  for (int i = 0; i < summands; i++) {
#pragma unroll
    for (int e = 0; e < kept_width; e++) sums[i][e] = 0;
  }
  if (kept < p.kept) {
    int64_t row[operands], offsets[operands];
#pragma unroll
    for (int i = 0; i < operands; i++) row[i] = 0;
    advance(row, kept, 0, p.kept_rank, p.kept_dims, p.kept_strides);
    const int64_t long_chunks = min(chunk, static_cast<int64_t>(p.long_chunks));
    const int64_t begin = long_chunks * p.run + (chunk - long_chunks) * p.short_run;
    // or more, with units of several elements
    const int64_t units = vectors == Vectors::along_reduced ? p.reduced / width : p.reduced;
    const int64_t end = min(begin + (chunk < p.long_chunks ? p.run : p.short_run), units);
    const int64_t first = begin + unit_lane, step = int64_t(1) << unit_lanes;
    if constexpr (vectors == Vectors::none) {
#pragma unroll 1
      for (int64_t index = first; index < end && index * p.unit < p.reduced; index += step) {
        Real unit[outputs];
#pragma unroll
        for (int i = 0; i < outputs; i++) unit[i] = 0;
#pragma unroll 1
        for (int64_t element = index * p.unit; element < min(p.reduced, (index + 1) * p.unit); element++) {
          Real y[outputs];
          locate(offsets, row, element, p);
          apply_one<Operation>(y, p.pointers, offsets, parameters);
#pragma unroll
          for (int i = 0; i < outputs; i++) unit[i] += y[i];
        }
#pragma unroll
        for (int i = 0; i < summands; i++) sums[i][0] += unit[i];
      }
    } else {
      constexpr int64_t size = sizeof(typename Operation::Storage);
      auto add = [&](const Inputs<Operation> &inputs, char *const(&pointers)[operands]) {
        Real y[outputs][width];
        bool is_plain = false;
        if constexpr (has_plain<Operation>) is_plain = Operation::is_plain(parameters);
        if (is_plain) {
          apply_vector<Operation, has_plain<Operation> ? all | plain : all>(y, inputs, parameters);
        } else {
          apply_vector<Operation, all>(y, inputs, parameters);
        }
#pragma unroll
        for (int i = 0; i < outputs; i++) {
          if (pointers[i] != nullptr) *reinterpret_cast<uint4 *>(pointers[i]) = Operation::Storage::pack(y[i]);
        }
#pragma unroll
        for (int i = 0; i < summands; i++) {
          if constexpr (vectors == Vectors::along_kept) {
#pragma unroll
            for (int e = 0; e < width; e++) sums[i][e] += y[i][e];
          } else {
            Real unit = 0;
#pragma unroll
            for (int e = 0; e < width; e++) unit += y[i][e];
            sums[i][0] += unit;
          }
        }
      };
      char *pointers[operands];
      auto find = [&](int64_t index) {
        locate(offsets, row, index, p);
#pragma unroll
        for (int i = 0; i < operands; i++) pointers[i] = static_cast<char *>(p.pointers[i]) + offsets[i] * size;
      };
      if (p.reduced_rank == 1) {
        int64_t steps[operands];
#pragma unroll
        for (int i = 0; i < operands; i++) steps[i] = (p.reduced_strides[i][0] * size) << unit_lanes;
        find(first);
        int count = first < end ? static_cast<int>((end - first - 1) >> unit_lanes) + 1 : 0;
        stream<Operation>(pointers, steps, count, p.broadcast, shared + thread, add);
      } else {
#pragma unroll 1
        for (int64_t index = first; index < end; index += step) {
          find(index);
          Inputs<Operation> inputs;
          inputs.load(p.pointers, offsets, p.broadcast);
          add(inputs, pointers);
        }
      }
    }
  }

#pragma unroll
  for (int i = 0; i < summands; i++) {
    if (p.partials[i] == nullptr) continue;
    Real *own = reinterpret_cast<Real *>(shared) + ((unit_lane << p.kept_lanes) + kept_lane) * kept_width;
    __syncthreads();
#pragma unroll
    for (int e = 0; e < kept_width; e++) own[e] = sums[i][e];
    for (unsigned half = 1u << unit_lanes >> 1; half > 0; half >>= 1) {
      __syncthreads();
      if (unit_lane < half) {
#pragma unroll
        for (int e = 0; e < kept_width; e++) own[e] += own[(half << p.kept_lanes) * kept_width + e];
      }
    }
    if (unit_lane == 0 && kept < p.kept) {
      Real *partial = static_cast<Real *>(p.partials[i]) + chunk * p.partial_row + kept * kept_width;
#pragma unroll
      for (int e = 0; e < kept_width; e++) partial[e] = own[e];
    }
  }
}

// Finish are the parameters of finish_columns.
struct Finish {
  const void *partials;  // [chunks, partial_row]
  void *out;
  int64_t kept, chunks, partial_row;
  int64_t strides[1][max_rank];
  Divisor dims[max_rank];
  int32_t rank;
  int32_t kept_lanes;
  int32_t accumulate;  // whether to add to what out holds
  uint32_t unused;
};
static_assert(sizeof(Finish) == 5 * 8 + 64 + 8 * 24 + 16, "go/backend/cuda has the same layout");

// finish_columns writes out = the sum of the partial sums, plus out itself where it accumulates,
// rounded once.
template <class Storage>
__device__ __forceinline__ void finish_columns(const Finish &p) {
  using Real = typename Storage::Real;
  wait_for_previous();
  const int reduced_lanes = block_threads_log2 - p.kept_lanes;
  const unsigned kept_lane = threadIdx.x & ((1u << p.kept_lanes) - 1), reduced_lane = threadIdx.x >> p.kept_lanes;
  const int64_t kept = (static_cast<int64_t>(blockIdx.x) << p.kept_lanes) + kept_lane;
  // The sum, and the errors of its additions (Knuth, The Art of Computer Programming 2, 4.2.2).
  Real sum = 0, rest = 0;
  if (kept < p.kept) {
    const Real *partial = static_cast<const Real *>(p.partials) + kept;
#pragma unroll 4
    for (int64_t chunk = reduced_lane; chunk < p.chunks; chunk += int64_t(1) << reduced_lanes) {
      Real term = partial[chunk * p.partial_row], next = sum + term;
      Real part = next - sum;
      rest += (sum - (next - part)) + (term - part);
      sum = next;
    }
  }
  // Where a sum became infinite or NaN its rest is inf - inf and means nothing.
  if (rest - rest == 0) sum += rest;
  __shared__ Real shared[block_threads];
  shared[threadIdx.x] = sum;
  for (unsigned half = 1u << reduced_lanes >> 1; half > 0; half >>= 1) {
    __syncthreads();
    if (reduced_lane < half) shared[threadIdx.x] += shared[threadIdx.x + (half << p.kept_lanes)];
  }
  if (reduced_lane == 0 && kept < p.kept) {
    int64_t offsets[1] = {0};
    advance(offsets, kept, 0, p.rank, p.dims, p.strides);
    Storage *out = static_cast<Storage *>(p.out) + offsets[0];
    sum = shared[threadIdx.x];
    Storage::store(out, p.accumulate ? sum + Storage::reload(out) : sum);
  }
}

// blocks_at_once is how many blocks of a summing kernel share a processor: sums stay in registers.
// Of those that have two forms, in half types, whose vectors are the longest, it is one less.
template <class Operation>
constexpr int blocks_at_once =
    (sizeof(typename Operation::Real) == sizeof(double) ? 4 : 5) - Operation::outputs - (has_plain<Operation> && Operation::Storage::width == 8);

}  // namespace epigrad

// EPG_COLUMNS makes the summing kernels with vectors along the kept dimension and with none, and
// EPG_ROWS that with vectors along the reduced one, of the operation that the rest of the arguments
// name.
#define EPG_SUMS(name, along, ...)                                                                           \
  extern "C" __global__ void __launch_bounds__(epigrad::block_threads, epigrad::blocks_at_once<__VA_ARGS__>) \
      name(const __grid_constant__ epigrad::Reduction<__VA_ARGS__::operands, __VA_ARGS__::outputs> p) {      \
    epigrad::reduce<epigrad::Vectors::along, __VA_ARGS__>(p);                                                \
  }                                                                                                          \
  EPG_REGISTER(name)
#define EPG_COLUMNS(name, ...) EPG_SUMS(name, along_kept, __VA_ARGS__) EPG_SUMS(name##_strided, none, __VA_ARGS__)
#define EPG_ROWS(name, ...) EPG_SUMS(name, along_reduced, __VA_ARGS__)
