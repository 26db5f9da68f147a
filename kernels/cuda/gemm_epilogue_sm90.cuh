// act(left right + bias) in one kernel, for Hopper. Each dtype is a source, so that they compile
// beside each other:
//
//   gemm_epilogue_sm90_<activation>_<dtype>_<form>_<columns>
//
// The form is how the right operand lies: "nt" with a contiguous depth, "nn" with contiguous
// columns. A tile has so many columns.
#pragma once

#include "product_sm90.cuh"

#define KERNEL(activation, dtype, form, columns)                                                                                   \
  extern "C" __global__ void __launch_bounds__(epigrad::sm90::threads, 1)                                                          \
      gemm_epilogue_sm90_##activation##_##dtype##_##form##_##columns(const __grid_constant__ epigrad::sm90::ProductParameters p) { \
    using Epilogue = epigrad::sm90::Forward<epigrad::dtype, epigrad::activations::activation<epigrad::dtype::Arithmetic>>;         \
    epigrad::sm90::product<epigrad::sm90::Product<epigrad::dtype, columns, epigrad::sm90::form, Epilogue>>(p);                     \
  }
#define GEMM_EPILOGUE_SM90(activation, dtype) \
  KERNEL(activation, dtype, nt, 128)          \
  KERNEL(activation, dtype, nt, 192)          \
  KERNEL(activation, dtype, nn, 128)          \
  KERNEL(activation, dtype, nn, 192)
