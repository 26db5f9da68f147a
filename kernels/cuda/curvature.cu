// Gradients of gradients: curvature_<activation>_<dtype> and curvature_from_output_<...>, the
// backward of activation_backward, and gated_curvature_<gate>_<dtype>, that of gated_backward.
//
//   grad_grad_output = v act'(input),  grad_input = (v grad_output) act''(input)
//
// All operands have one shape. Slope and curvature share their exponential.
#include "gate.cuh"
#include "loops.cuh"

namespace epigrad {

// grad_grad_output, grad_input; v, the gradient to activation_backward's, grad_output, input.
template <class Activation, class Storage>
struct Curvature : Operands<Storage, 2, 3> {
  using Real = typename Storage::Real;

  template <unsigned wanted>
  static __device__ __forceinline__ void apply(const Parameters<Real> &p, Real (&y)[2], const Real (&x)[3]) {
    auto parts = Activation::parts(x[2], p);
    y[0] = Activation::gradient(x[0], x[2], parts);
    y[1] = Activation::curvature(x[0] * x[1], x[2], parts);
  }
};

// The same of the output in place of the input.
template <class Activation, class Storage>
struct CurvatureFromOutput : Operands<Storage, 2, 3> {
  using Real = typename Storage::Real;

  template <unsigned wanted>
  static __device__ __forceinline__ void apply(const Parameters<Real> &, Real (&y)[2], const Real (&x)[3]) {
    y[0] = Activation::gradient_from_output(x[0], x[2]);
    y[1] = Activation::curvature_from_output(x[0] * x[1], x[2]);
  }
};

// grad_grad_output, grad_value, grad_gate; the gradients to gated_backward's two, grad_output,
// value, gate.
template <class Gate, class Storage>
struct GatedCurvature : Operands<Storage, 3, 5> {
  using Real = typename Storage::Real;

  template <unsigned wanted>
  static __device__ __forceinline__ void apply(const Parameters<Real> &p, Real (&y)[3], const Real (&x)[5]) {
    const auto of = Gate::curvatures(x[0], x[1], x[2], Gate::parts(x[3], x[4], p));
    y[0] = of.grad_output;
    y[1] = of.value;
    y[2] = of.gate;
  }
};

}  // namespace epigrad

#define FORMULA(room, formula, dtype) epigrad::room::formula<epigrad::dtype::Arithmetic>, epigrad::dtype
#define CURVATURE(activation, dtype) EPG_ELEMENTWISE(curvature_##activation##_##dtype, epigrad::Curvature<FORMULA(activations, activation, dtype)>)
#define CURVATURE_FROM_OUTPUT(activation, dtype) \
  EPG_ELEMENTWISE(curvature_from_output_##activation##_##dtype, epigrad::CurvatureFromOutput<FORMULA(activations, activation, dtype)>)
#define GATED_CURVATURE(gate, dtype) EPG_ELEMENTWISE(gated_curvature_##gate##_##dtype, epigrad::GatedCurvature<FORMULA(gates, gate, dtype)>)
#define CURVATURE_ALL(dtype, unused)                                \
  EPG_FOR_EACH_ACTIVATION(CURVATURE, dtype)                         \
  EPG_FOR_EACH_ACTIVATION_FROM_OUTPUT(CURVATURE_FROM_OUTPUT, dtype) \
  EPG_FOR_EACH_GATE(GATED_CURVATURE, dtype)
EPG_FOR_EACH_DTYPE(CURVATURE_ALL, )
