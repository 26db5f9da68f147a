// The kernels that are products and epilogues in one, for Hopper (product_sm90.cuh). Each family
// and dtype is a source, so that they compile beside each other:
//
//   linear_sm90_<activation>_<dtype>_<form>_<rows>     act(x weight + bias)
//   hidden_backward_sm90_<activation>_<dtype>_<form>_<rows>   (x weight) act'(pre), its column sums,
//                                                             and act(pre)
//   gated_linear_sm90_<gate>_<dtype>_<form>_128               value act(gate), two products
//   gated_hidden_backward_sm90_<gate>_<dtype>_<form>_128      that of value act(gate), and it again
//
// and of groups
//
//   grouped_linear_sm90_<activation>_<dtype>_<form>
//   grouped_gated_linear_sm90_<gate>_<dtype>_<form>_<layout>
//   grouped_hidden_backward_sm90_<activation>_<dtype>_<form>
//   grouped_gated_hidden_backward_sm90_<gate>_<dtype>_<form>_<layout>
//   grouped_weight_gradient_sm90_<dtype>_<dtype of the result>[_turned]
//
// The form is how a weight lies: "nt" with a contiguous depth, "nn" with contiguous columns. The
// layout is that of value and gate: "halves", or "interleaved". A tile of a dense layer has so many
// rows.
#pragma once

#include "product_sm90.cuh"

#define KERNEL(name, ...)                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(epigrad::sm90::threads, 1) name(const __grid_constant__ epigrad::sm90::ProductParameters p) { \
    using namespace epigrad;                                                                                                                 \
    sm90::product<sm90::__VA_ARGS__>(p);                                                                                                     \
  }
#define DENSE(family, epilogue, formulas, formula, dtype, form, rows) \
  KERNEL(family##_##formula##_##dtype##_##form##_##rows,              \
         OfRows<dtype, sm90::form, products::epilogue<dtype, formulas::formula<dtype::Arithmetic>>, rows, false>)
#define LINEAR_SM90(activation, dtype)                                 \
  DENSE(linear_sm90, Forward, activations, activation, dtype, nt, 64)  \
  DENSE(linear_sm90, Forward, activations, activation, dtype, nn, 64)  \
  DENSE(linear_sm90, Forward, activations, activation, dtype, nt, 128) \
  DENSE(linear_sm90, Forward, activations, activation, dtype, nt, 192) \
  DENSE(linear_sm90, Forward, activations, activation, dtype, nn, 128) \
  DENSE(linear_sm90, Forward, activations, activation, dtype, nn, 192)
#define HIDDEN_BACKWARD_SM90(activation, dtype)                                \
  DENSE(hidden_backward_sm90, Sloped, activations, activation, dtype, nt, 128) \
  DENSE(hidden_backward_sm90, Sloped, activations, activation, dtype, nt, 192) \
  DENSE(hidden_backward_sm90, Sloped, activations, activation, dtype, nn, 128) \
  DENSE(hidden_backward_sm90, Sloped, activations, activation, dtype, nn, 192)
#define GATED_LINEAR_SM90(gate, dtype)                         \
  DENSE(gated_linear_sm90, Gated, gates, gate, dtype, nt, 64)  \
  DENSE(gated_linear_sm90, Gated, gates, gate, dtype, nn, 64)  \
  DENSE(gated_linear_sm90, Gated, gates, gate, dtype, nt, 128) \
  DENSE(gated_linear_sm90, Gated, gates, gate, dtype, nn, 128)
#define GATED_HIDDEN_BACKWARD_SM90(gate, dtype)                               \
  DENSE(gated_hidden_backward_sm90, GatedSloped, gates, gate, dtype, nt, 128) \
  DENSE(gated_hidden_backward_sm90, GatedSloped, gates, gate, dtype, nn, 128)

#define GROUPED(family, epilogue, formulas, formula, dtype, form, ...) \
  KERNEL(family##_##formula##_##dtype##_##form##__VA_ARGS__, OfRows<dtype, sm90::form, products::epilogue<dtype, formulas::formula<dtype::Arithmetic>>>)
#define GROUPED_LINEAR_SM90(epilogue, activation, dtype, form) GROUPED(grouped_linear_sm90, epilogue, activations, activation, dtype, form)
#define GROUPED_HIDDEN_BACKWARD_SM90(activation, dtype, form) GROUPED(grouped_hidden_backward_sm90, Sloped, activations, activation, dtype, form)
#define GROUPED_GATED_LINEAR_SM90(epilogue, gate, dtype, form, layout) GROUPED(grouped_gated_linear_sm90, epilogue, gates, gate, dtype, form, _##layout)
#define GROUPED_GATED_HIDDEN_BACKWARD_SM90(epilogue, gate, dtype, form, layout) \
  GROUPED(grouped_gated_hidden_backward_sm90, epilogue, gates, gate, dtype, form, _##layout)
#define GROUPED_WEIGHT_GRADIENT_SM90(dtype)                                                    \
  KERNEL(grouped_weight_gradient_sm90_##dtype##_##dtype, OfDepth<dtype, false, false>)         \
  KERNEL(grouped_weight_gradient_sm90_##dtype##_##dtype##_turned, OfDepth<dtype, false, true>) \
  KERNEL(grouped_weight_gradient_sm90_##dtype##_f32, OfDepth<dtype, true, false>)
