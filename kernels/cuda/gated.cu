// Gated activations (gate.cuh): gated_<gate>_<dtype>, gated_backward_<gate>_<dtype>, and
// gated_backward_columns_<gate>_<dtype>, which also sums the unrounded gradients. Where values and
// gates take turns in memory, gated_pairs_... and gated_backward_pairs_... are the vector form.
//
//   out = value act(gate)
//   grad_value = grad_output act(gate),  grad_gate = (grad_output value) act'(gate)
//
// All operands have one shape.
#include <type_traits>

#include "gate.cuh"
#include "reduce.cuh"

namespace epigrad {

// out; value, gate.
template <class Gate, class Storage>
struct Gated : Operands<Storage, 1, 2> {
  using Real = typename Storage::Real;
  static constexpr int vectors = Gate::cheap ? 1 : 2;

  template <unsigned wanted>
  static __device__ __forceinline__ void apply(const Parameters<Real> &p, Real (&y)[1], const Real (&x)[2]) {
    y[0] = Gate::output(Gate::parts(x[0], x[1], p));
  }
};

// grad_value, grad_gate; grad_output, value, gate.
template <class Gate, class Storage>
struct GatedBackward : Operands<Storage, 2, 3> {
  using Real = typename Storage::Real;
  static constexpr bool selective = true;

  static __device__ __forceinline__ bool is_plain(const Parameters<Real> &p) { return Gate::is_plain(p); }

  template <unsigned wanted>
  static __device__ __forceinline__ void apply(const Parameters<Real> &p, Real (&y)[2], const Real (&x)[3]) {
    using Here = std::conditional_t<(wanted & plain) != 0, typename Gate::Plain, Gate>;
    auto parts = Here::parts(x[1], x[2], p);
    if constexpr (wanted & 1) y[0] = Here::grad_value(x[0], parts);
    if constexpr (wanted & 2) y[1] = Here::grad_gate(x[0], parts);
  }
};

// elementwise_pairs does one vector in each thread, where value and gate lie side by side, as
// grad_value and grad_gate do. All pointers of a pair are that of the first of both. Offsets in a
// pair count elements: they are twice those of the other operands.
template <class Operation>
__device__ __forceinline__ void elementwise_pairs(const Elementwise<Operation::operands> &p) {
  using Storage = typename Operation::Storage;
  using Real = typename Operation::Real;
  constexpr int width = Storage::width, outputs = Operation::outputs, inputs = Operation::inputs, operands = Operation::operands;
  constexpr int value = inputs - 2, gate = inputs - 1, pair = operands - 2;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * vector_threads + threadIdx.x;
  if (index >= p.count) return;
  const int64_t row = p.rank > 1 ? divide(index, p.dims[0]) : 0;
  const int64_t along = (index - row * p.dims[0].size) * width;
  int64_t offsets[operands];
#pragma unroll
  for (int i = 0; i < operands; i++) offsets[i] = along * p.strides[i][0];
  if (p.rank > 1) advance(offsets, row, 1, p.rank, p.dims, p.strides);

  const auto vectors_at = [&](int i) { return reinterpret_cast<uint4 *>(static_cast<Storage *>(p.pointers[i]) + offsets[i]); };
  Real x[inputs][width], first[width], second[width];
  if constexpr (inputs > 2) Storage::unpack(x[0], __ldg(vectors_at(outputs)));
  Storage::unpack(first, __ldg(vectors_at(pair)));
  Storage::unpack(second, __ldg(vectors_at(pair) + 1));
#pragma unroll
  for (int e = 0; e < width; e++) {
    const Real *half = e < width / 2 ? first : second;
    const Real even = half[2 * e % width], odd = half[2 * e % width + 1];
    x[value][e] = p.gate_first ? odd : even;
    x[gate][e] = p.gate_first ? even : odd;
  }
  Real y[outputs][width];
  const Parameters<Real> parameters(p.parameters);
#pragma unroll
  for (int e = 0; e < width; e++) {
    Real in[inputs], out[outputs];
#pragma unroll
    for (int i = 0; i < inputs; i++) in[i] = x[i][e];
    Operation::template apply<(1u << outputs) - 1>(parameters, out, in);
#pragma unroll
    for (int i = 0; i < outputs; i++) y[i][e] = out[i];
  }
  if constexpr (outputs == 1) {
    *vectors_at(0) = Storage::pack(y[0]);
  } else {
#pragma unroll
    for (int e = 0; e < width; e++) {
      Real *half = e < width / 2 ? first : second;
      half[2 * e % width] = p.gate_first ? y[1][e] : y[0][e];
      half[2 * e % width + 1] = p.gate_first ? y[0][e] : y[1][e];
    }
    vectors_at(0)[0] = Storage::pack(first);
    vectors_at(0)[1] = Storage::pack(second);
  }
}

}  // namespace epigrad

#define PAIRS(name, ...)                                                                                                                              \
  extern "C" __global__ void __launch_bounds__(epigrad::vector_threads) name(const __grid_constant__ epigrad::Elementwise<__VA_ARGS__::operands> p) { \
    epigrad::elementwise_pairs<__VA_ARGS__>(p);                                                                                                       \
  }                                                                                                                                                   \
  EPG_REGISTER(name)
#define FORMULA(gate, dtype) epigrad::gates::gate<epigrad::dtype::Arithmetic>, epigrad::dtype
#define GATED(gate, dtype)                                                                       \
  PAIRS(gated_pairs_##gate##_##dtype, epigrad::Gated<FORMULA(gate, dtype)>)                      \
  PAIRS(gated_backward_pairs_##gate##_##dtype, epigrad::GatedBackward<FORMULA(gate, dtype)>)     \
  EPG_ELEMENTWISE(gated_##gate##_##dtype, epigrad::Gated<FORMULA(gate, dtype)>)                  \
  EPG_ELEMENTWISE(gated_backward_##gate##_##dtype, epigrad::GatedBackward<FORMULA(gate, dtype)>) \
  EPG_COLUMNS(gated_backward_columns_##gate##_##dtype, epigrad::GatedBackward<FORMULA(gate, dtype)>)
#define GATED_ALL(dtype, unused) EPG_FOR_EACH_GATE(GATED, dtype)
EPG_FOR_EACH_DTYPE(GATED_ALL, )
