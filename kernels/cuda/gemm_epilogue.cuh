// grad_preactivation = grad_output act'(preactivation), one element at a time: operations for
// loops.cuh, reduce.cuh and the products of gemm_epilogue_small.cu.
#pragma once

#include "activation.cuh"
#include "loops.cuh"

namespace epigrad {

// grad_preactivation; grad_output, preactivation.
template <class Activation, class Storage>
struct GradPreactivation : Operands<Storage, 1, 2> {
  using Real = typename Storage::Real;
  static constexpr int vectors = Activation::cheap ? 1 : 2;

  template <unsigned wanted>
  static __device__ __forceinline__ void apply(const Parameters<Real> &p, Real (&y)[1], const Real (&x)[2]) {
    y[0] = Activation::gradient(x[0], x[1], Activation::parts(x[1], p));
  }
};

// grad_preactivation; grad_output, output.
template <class Activation, class Storage>
struct GradPreactivationFromOutput : GradPreactivation<Activation, Storage> {
  using Real = typename Storage::Real;
  static constexpr int vectors = 1;

  template <unsigned wanted>
  static __device__ __forceinline__ void apply(const Parameters<Real> &p, Real (&y)[1], const Real (&x)[2]) {
    y[0] = Activation::gradient_from_output(x[0], x[1]);
  }
};

// grad_preactivation of no activation, for its sums; grad_output.
template <class Storage>
struct GradPreactivationOfNone : Operands<Storage, 1, 1> {
  using Real = typename Storage::Real;

  template <unsigned wanted>
  static __device__ __forceinline__ void apply(const Parameters<Real> &p, Real (&y)[1], const Real (&x)[1]) {
    y[0] = x[0];
  }
};

}  // namespace epigrad
