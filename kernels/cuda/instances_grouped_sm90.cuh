// The grouped products, for Hopper (grouped_sm90.cuh). Each family and dtype is a source, so that
// they compile beside each other:
//
//   grouped_linear_sm90_<activation>_<dtype>_<form>
//   grouped_gated_linear_sm90_<gate>_<dtype>_<form>_<layout>
//   grouped_hidden_backward_sm90_<activation>_<dtype>_<form>
//   grouped_gated_hidden_backward_sm90_<gate>_<dtype>_<form>_<layout>
//   grouped_weight_gradient_sm90_<dtype>_<dtype of the result>[_turned]
//
// The form is how a weight lies: "nt" with a contiguous depth, "nn" with contiguous columns. The
// layout is that of value and gate: "halves", or "interleaved".
#pragma once

#include "grouped_epilogues_sm90.cuh"
#include "grouped_sm90.cuh"

#define GROUPED_KERNEL(name, ...)                                                                                                                     \
  extern "C" __global__ void __launch_bounds__(epigrad::sm90::threads, 1) name(const __grid_constant__ epigrad::sm90::grouped::GroupedParameters p) { \
    using namespace epigrad;                                                                                                                          \
    sm90::grouped::product<sm90::grouped::__VA_ARGS__>(p);                                                                                            \
  }
#define GROUPED_LINEAR_SM90(epilogue, activation, dtype, form)        \
  GROUPED_KERNEL(grouped_linear_sm90_##activation##_##dtype##_##form, \
                 OfRows<dtype, sm90::form, sm90::grouped::epilogue<dtype, activations::activation<dtype::Arithmetic>>>)
#define GROUPED_HIDDEN_BACKWARD_SM90(activation, dtype, form)                  \
  GROUPED_KERNEL(grouped_hidden_backward_sm90_##activation##_##dtype##_##form, \
                 OfRows<dtype, sm90::form, sm90::grouped::Sloped<dtype, activations::activation<dtype::Arithmetic>>>)
#define GROUPED_GATED_SM90(family, epilogue, gate, dtype, form, layout) \
  GROUPED_KERNEL(family##_##gate##_##dtype##_##form##_##layout, OfRows<dtype, sm90::form, sm90::grouped::epilogue<dtype, gates::gate<dtype::Arithmetic>>>)
#define GROUPED_GATED_LINEAR_SM90(epilogue, gate, dtype, form, layout) GROUPED_GATED_SM90(grouped_gated_linear_sm90, epilogue, gate, dtype, form, layout)
#define GROUPED_GATED_HIDDEN_BACKWARD_SM90(epilogue, gate, dtype, form, layout) \
  GROUPED_GATED_SM90(grouped_gated_hidden_backward_sm90, epilogue, gate, dtype, form, layout)
#define GROUPED_WEIGHT_GRADIENT_SM90(dtype)                                                            \
  GROUPED_KERNEL(grouped_weight_gradient_sm90_##dtype##_##dtype, OfDepth<dtype, false, false>)         \
  GROUPED_KERNEL(grouped_weight_gradient_sm90_##dtype##_##dtype##_turned, OfDepth<dtype, false, true>) \
  GROUPED_KERNEL(grouped_weight_gradient_sm90_##dtype##_f32, OfDepth<dtype, true, false>)
