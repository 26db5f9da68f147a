// The kernels that are products and epilogues in one, from compute capability 8.0 on
// (product_sm80.cuh): of dense layers, and of groups. Each dtype is a source.
//
//   linear_sm80_<activation>_<dtype>_<form>                   act(x weight + bias)
//   hidden_backward_sm80_<activation>_<dtype>_<form>          (x weight) act'(pre), its column sums,
//                                                             and act(pre)
//   gated_linear_sm80_<gate>_<dtype>_<form>_<layout>          value act(gate), two products
//   gated_hidden_backward_sm80_<gate>_<dtype>_<form>_<layout> that of value act(gate), and it again
//   weight_gradient_sm80_<dtype>_<dtype of the result>       and with _tokens
//
// Form and layout are as in instances_sm90.cuh. float is multiplied in TF32.
#pragma once

#include "product_sm80.cuh"

#define KERNEL(name, ...)                                                                     \
  extern "C" __global__ void __launch_bounds__(epigrad::sm80::threads, epigrad::sm80::blocks) \
      name(const __grid_constant__ epigrad::sm80::ProductParameters p) {                      \
    using namespace epigrad;                                                                  \
    sm80::product<sm80::__VA_ARGS__>(p);                                                      \
  }                                                                                           \
  EPG_REGISTER(name)
#define OF_ROWS(family, epilogue, formulas, formula, dtype, form, ...) \
  KERNEL(family##_##formula##_##dtype##_##form##__VA_ARGS__, OfRows<dtype, sm80::form, products::epilogue<dtype, formulas::formula<dtype::Arithmetic>>>)

#define LINEAR_SM80(activation, dtype)                                \
  OF_ROWS(linear_sm80, Forward, activations, activation, dtype, nt, ) \
  OF_ROWS(linear_sm80, Forward, activations, activation, dtype, nn, )
#define ACTIVATION_SM80(activation, dtype)                                    \
  LINEAR_SM80(activation, dtype)                                              \
  OF_ROWS(hidden_backward_sm80, Sloped, activations, activation, dtype, nt, ) \
  OF_ROWS(hidden_backward_sm80, Sloped, activations, activation, dtype, nn, )
#define GATE_SM80(gate, dtype)                                                      \
  OF_ROWS(gated_linear_sm80, Gated, gates, gate, dtype, nt, _halves)                \
  OF_ROWS(gated_linear_sm80, Gated, gates, gate, dtype, nn, _halves)                \
  OF_ROWS(gated_hidden_backward_sm80, GatedSloped, gates, gate, dtype, nt, _halves) \
  OF_ROWS(gated_hidden_backward_sm80, GatedSloped, gates, gate, dtype, nn, _halves)
#define WEIGHT_GRADIENT_SM80(dtype, result)                                      \
  KERNEL(weight_gradient_sm80_##dtype##_##result, OfDepth<dtype, result, false>) \
  KERNEL(weight_gradient_sm80_##dtype##_##result##_tokens, OfDepth<dtype, result, true>)
// Products and their gradients, and what models with experts use beside one activation or gate.
#define PRODUCTS_SM80(dtype)                                                                         \
  LINEAR_SM80(none, dtype)                                                                           \
  OF_ROWS(gated_linear_sm80, GatedInterleaved, gates, swish, dtype, nn, _interleaved)                \
  OF_ROWS(gated_hidden_backward_sm80, GatedSlopedInterleaved, gates, swish, dtype, nt, _interleaved) \
  WEIGHT_GRADIENT_SM80(dtype, f32)
