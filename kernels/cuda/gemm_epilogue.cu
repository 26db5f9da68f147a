// The elementwise part of a product's backward: grad_preactivation_<activation>_<dtype> from the
// saved preactivation, grad_preactivation_from_output_<...> from the saved output, and both with
// _columns, which also sum the columns of the unrounded gradient (the bias gradient).
// finish_columns_<dtype> adds the partial sums.
//
//   grad_preactivation = grad_output act'(preactivation)
//   grad_bias = the sum of grad_preactivation over all dimensions but the last
//
// All operands have one shape; grad_preactivation may be grad_output or the saved tensor, and may
// be missing where there are sums.
#include "gemm_epilogue.cuh"
#include "reduce.cuh"

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
