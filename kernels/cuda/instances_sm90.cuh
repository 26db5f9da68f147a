// The kernels that are products and epilogues in one, for Hopper. Each family and dtype is a
// source, so that they compile beside each other:
//
//   gemm_epilogue_sm90_<activation>_<dtype>_<form>_<columns>     act(left right + bias)
//   hidden_backward_sm90_<activation>_<dtype>_<form>_<columns>   (left right) act'(pre), its column
//                                                                sums, and act(pre)
//   gated_linear_sm90_<gate>_<dtype>_<form>_128                  value act(gate), two products
//   gated_hidden_backward_sm90_<gate>_<dtype>_<form>_128         that of value act(gate), and it
//                                                                again
//
// The form is how the right operand lies: "nt" with a contiguous depth, "nn" with contiguous
// columns. A tile has so many columns.
#pragma once

#include "product_sm90.cuh"

#define KERNEL(family, epilogue, formulas, formula, dtype, form, columns)                                             \
  extern "C" __global__ void __launch_bounds__(epigrad::sm90::threads, 1)                                             \
      family##_##formula##_##dtype##_##form##_##columns(const __grid_constant__ epigrad::sm90::ProductParameters p) { \
    using Epilogue = epigrad::sm90::epilogue<epigrad::dtype, epigrad::formulas::formula<epigrad::dtype::Arithmetic>>; \
    epigrad::sm90::product<epigrad::sm90::Product<epigrad::dtype, columns, epigrad::sm90::form, Epilogue>>(p);        \
  }
#define GEMM_EPILOGUE_SM90(activation, dtype)                                  \
  KERNEL(gemm_epilogue_sm90, Forward, activations, activation, dtype, nt, 128) \
  KERNEL(gemm_epilogue_sm90, Forward, activations, activation, dtype, nt, 192) \
  KERNEL(gemm_epilogue_sm90, Forward, activations, activation, dtype, nn, 128) \
  KERNEL(gemm_epilogue_sm90, Forward, activations, activation, dtype, nn, 192)
#define HIDDEN_BACKWARD_SM90(activation, dtype)                                 \
  KERNEL(hidden_backward_sm90, Sloped, activations, activation, dtype, nt, 128) \
  KERNEL(hidden_backward_sm90, Sloped, activations, activation, dtype, nt, 192) \
  KERNEL(hidden_backward_sm90, Sloped, activations, activation, dtype, nn, 128) \
  KERNEL(hidden_backward_sm90, Sloped, activations, activation, dtype, nn, 192)
#define GATED_LINEAR_SM90(gate, dtype)                          \
  KERNEL(gated_linear_sm90, Gated, gates, gate, dtype, nt, 128) \
  KERNEL(gated_linear_sm90, Gated, gates, gate, dtype, nn, 128)
#define GATED_HIDDEN_BACKWARD_SM90(gate, dtype)                                \
  KERNEL(gated_hidden_backward_sm90, GatedSloped, gates, gate, dtype, nt, 128) \
  KERNEL(gated_hidden_backward_sm90, GatedSloped, gates, gate, dtype, nn, 128)
