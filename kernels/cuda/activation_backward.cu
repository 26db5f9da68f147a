// The hidden layer of a block whose preactivation alone was kept:
// activation_backward_<activation>_<dtype>, and activation_backward_columns_<...>, which also sums
// the columns of the unrounded gradient (the bias gradient).
//
//   grad_input = grad_output act'(input)
//   out = act(input)
//   grad_bias = the sum of grad_input over all dimensions but the last
//
// All operands have one shape; grad_input may be grad_output. Value and slope share their
// exponential.
#include "activation.cuh"
#include "reduce.cuh"

namespace epigrad {

// grad_input, out; grad_output, input.
template <class Activation, class Storage>
struct ActivationBackward : Operands<Storage, 2, 2> {
  using Real = typename Storage::Real;
  static constexpr int sums = 1;

  template <unsigned wanted>
  static __device__ __forceinline__ void apply(const Parameters<Real> &p, Real (&y)[2], const Real (&x)[2]) {
    auto parts = Activation::parts(x[1], p);
    y[0] = Activation::gradient(x[0], x[1], parts);
    y[1] = Activation::value(x[1], parts);
  }
};

}  // namespace epigrad

#define FORMULA(activation, dtype) epigrad::activations::activation<epigrad::dtype::Arithmetic>, epigrad::dtype
#define BACKWARD(activation, dtype)                                                                                    \
  EPG_ELEMENTWISE(activation_backward_##activation##_##dtype, epigrad::ActivationBackward<FORMULA(activation, dtype)>) \
  EPG_COLUMNS(activation_backward_columns_##activation##_##dtype, epigrad::ActivationBackward<FORMULA(activation, dtype)>)
#define BACKWARD_ALL(dtype, unused) EPG_FOR_EACH_NONLINEAR_ACTIVATION(BACKWARD, dtype)
EPG_FOR_EACH_DTYPE(BACKWARD_ALL, )
