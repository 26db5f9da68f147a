// Gated activations: gated_<activation>_<dtype>, gated_backward_<activation>_<dtype>, and
// gated_backward_columns_<activation>_<dtype>, which also sums the unrounded gradients.
//
//   out = value act(gate)
//   grad_value = grad_output act(gate),  grad_gate = (grad_output value) act'(gate)
//
// in the order of operations that PyTorch's autograd has, so that infinities meet zeros in the same
// places. All operands have one shape.
#include "activation.cuh"
#include "reduce.cuh"

namespace epigrad {

// out; value, gate.
template <class Activation, class Storage>
struct Gated {
  using Output = Storage;
  using Input = Storage;
  using Real = typename Storage::Real;
  static constexpr int outputs = 1, inputs = 2, operands = 3;
  static constexpr bool optional_inputs = false, selective = false;
  static constexpr int vectors = Activation::cheap ? 1 : 2;

  template <unsigned wanted>
  static __device__ __forceinline__ void apply(const Parameters<Real> &p, Real (&y)[1], const Real (&x)[2]) {
    y[0] = x[0] * Activation::value(x[1], Activation::parts(x[1], p));
  }
};

// grad_value, grad_gate; grad_output, value, gate.
template <class Activation, class Storage>
struct GatedBackward {
  using Output = Storage;
  using Input = Storage;
  using Real = typename Storage::Real;
  static constexpr int outputs = 2, inputs = 3, operands = 5, sums = 2;
  static constexpr bool optional_inputs = false, selective = true;
  static constexpr int vectors = 1;

  template <unsigned wanted>
  static __device__ __forceinline__ void apply(const Parameters<Real> &p, Real (&y)[2], const Real (&x)[3]) {
    auto parts = Activation::parts(x[2], p);
    if constexpr (wanted & 1) y[0] = x[0] * Activation::value(x[2], parts);
    if constexpr (wanted & 2) y[1] = Activation::gradient(x[0] * x[1], x[2], parts);
  }
};

}  // namespace epigrad

#define FORMULA(activation, dtype) epigrad::activations::activation<epigrad::dtype::Arithmetic>, epigrad::dtype
#define GATED(activation, dtype)                                                                             \
  EPG_ELEMENTWISE(gated_##activation##_##dtype, epigrad::Gated<FORMULA(activation, dtype)>)                  \
  EPG_ELEMENTWISE(gated_backward_##activation##_##dtype, epigrad::GatedBackward<FORMULA(activation, dtype)>) \
  EPG_COLUMNS(gated_backward_columns_##activation##_##dtype, epigrad::GatedBackward<FORMULA(activation, dtype)>)
#define GATED_ALL(dtype, unused) EPG_FOR_EACH_ACTIVATION(GATED, dtype)
EPG_FOR_EACH_DTYPE(GATED_ALL, )
