// The elementwise part of a product's backward: grad_preactivation_<activation>_<dtype> from the saved preactivation, grad_preactivation_from_output_<...> from the
// saved output, and both with _columns, which also sum the columns of the unrounded gradient (the bias gradient). finish_columns_<dtype> adds the partial sums.
//
//   grad_preactivation = grad_output act'(preactivation),  grad_bias = the sum of it over all dimensions but the last
//
// All operands have one shape; grad_preactivation may be grad_output or the saved tensor, and may be missing where there are sums.
#include "activation.cuh"
#include "reduce.cuh"

namespace epigrad {

// grad_preactivation; grad_output, preactivation.
template <class Activation, class Storage>
struct GradPreactivation {
  using Output = Storage;
  using Input = Storage;
  using Real = typename Storage::Real;
  static constexpr int outputs = 1, inputs = 2, operands = 3, sums = 1;
  static constexpr bool optional_inputs = false, selective = false;
  static constexpr int vectors = Activation::cheap ? 1 : 2;

  template <unsigned wanted>
  static __device__ __forceinline__ void apply(Real, Real (&y)[1], const Real (&x)[2]) {
    y[0] = Activation::gradient(x[0], x[1], Activation::parts(x[1]));
  }
};

// grad_preactivation; grad_output, output.
template <class Activation, class Storage>
struct GradPreactivationFromOutput : GradPreactivation<Activation, Storage> {
  using Real = typename Storage::Real;
  static constexpr int vectors = 1;

  template <unsigned wanted>
  static __device__ __forceinline__ void apply(Real, Real (&y)[1], const Real (&x)[2]) {
    y[0] = Activation::gradient_from_output(x[0], x[1]);
  }
};

// grad_preactivation of no activation, for its sums; grad_output.
template <class Storage>
struct GradPreactivationOfNone {
  using Output = Storage;
  using Input = Storage;
  using Real = typename Storage::Real;
  static constexpr int outputs = 1, inputs = 1, operands = 2, sums = 1;
  static constexpr bool optional_inputs = false, selective = false;
  static constexpr int vectors = 1;

  template <unsigned wanted>
  static __device__ __forceinline__ void apply(Real, Real (&y)[1], const Real (&x)[1]) {
    y[0] = x[0];
  }
};

}  // namespace epigrad

#define FORMULA(activation, dtype) epigrad::activations::activation<epigrad::dtype::Arithmetic>, epigrad::dtype
#define GRADIENT(activation, dtype)                                                                                  \
  EPG_ELEMENTWISE(grad_preactivation_##activation##_##dtype, epigrad::GradPreactivation<FORMULA(activation, dtype)>) \
  EPG_COLUMNS(grad_preactivation_columns_##activation##_##dtype, epigrad::GradPreactivation<FORMULA(activation, dtype)>)
#define GRADIENT_FROM_OUTPUT(activation, dtype)                                                                                            \
  EPG_ELEMENTWISE(grad_preactivation_from_output_##activation##_##dtype, epigrad::GradPreactivationFromOutput<FORMULA(activation, dtype)>) \
  EPG_COLUMNS(grad_preactivation_from_output_columns_##activation##_##dtype, epigrad::GradPreactivationFromOutput<FORMULA(activation, dtype)>)
#define GRADIENT_ALL(dtype, unused)                                                                                            \
  EPG_FOR_EACH_NONLINEAR_ACTIVATION(GRADIENT, dtype)                                                                           \
  EPG_FOR_EACH_ACTIVATION_FROM_OUTPUT(GRADIENT_FROM_OUTPUT, dtype)                                                             \
  EPG_COLUMNS(grad_preactivation_columns_none_##dtype, epigrad::GradPreactivationOfNone<epigrad::dtype>)                       \
  EPG_KERNEL finish_columns_##dtype(const __grid_constant__ epigrad::Finish p) { epigrad::finish_columns<epigrad::dtype>(p); } \
  EPG_REGISTER(finish_columns_##dtype)
EPG_FOR_EACH_DTYPE(GRADIENT_ALL, )
