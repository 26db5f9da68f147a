// Interpolation: lerp_<dtype>, lerp_backward_<dtype>, and lerp_backward_columns_<dtype> and
// lerp_backward_rows_<dtype>, which also sum gradients over the dimensions in which an operand was
// broadcast.
//
//   out = start + weight (end - start)
//   grad_start = (1 - weight) grad_output
//   grad_end = weight grad_output
//   grad_weight = grad_output (end - start)
//
// out starts from the nearer end, as torch.lerp's, and is exact at both; the product is unrounded.
// All operands have one shape, with stride 0 where they are broadcast. The weight is the sum of the
// number in the parameters and the tensor: a null tensor stands for zeros, and beside a tensor the
// number is -0, which changes nothing.
#include "reduce.cuh"

namespace epigrad {

// out; start, end, weight.
template <class Storage>
struct Lerp : Operands<Storage, 1, 3> {
  using Real = typename Storage::Real;
  static constexpr bool optional_inputs = true;

  template <unsigned wanted>
  static __device__ __forceinline__ void apply(const Parameters<Real> &p, Real (&y)[1], const Real (&x)[3]) {
    Real weight = p[0] + x[2], difference = x[1] - x[0];
    bool near_start = magnitude(weight) < Real(0.5);
    y[0] = fused(near_start ? weight : weight - Real(1), difference, near_start ? x[0] : x[1]);
  }
};

// grad_start, grad_end, grad_weight; grad_output, start, end, weight. Start and end may be null
// where grad_weight is not asked for, and weight where nothing else is.
template <class Storage>
struct LerpBackward : Operands<Storage, 3, 4> {
  using Real = typename Storage::Real;
  static constexpr bool optional_inputs = true;

  template <unsigned wanted>
  static __device__ __forceinline__ void apply(const Parameters<Real> &p, Real (&y)[3], const Real (&x)[4]) {
    Real weight = p[0] + x[3];
    // Near 1 the difference has none of the digits of the number that Real left out.
    y[0] = ((Real(1) - weight) - p.low(0)) * x[0];
    y[1] = weight * x[0];
    y[2] = x[0] * (x[2] - x[1]);
  }
};

}  // namespace epigrad

#define LERP(dtype, unused)                                                         \
  EPG_ELEMENTWISE(lerp_##dtype, epigrad::Lerp<epigrad::dtype>)                      \
  EPG_ELEMENTWISE(lerp_backward_##dtype, epigrad::LerpBackward<epigrad::dtype>)     \
  EPG_COLUMNS(lerp_backward_columns_##dtype, epigrad::LerpBackward<epigrad::dtype>) \
  EPG_ROWS(lerp_backward_rows_##dtype, epigrad::LerpBackward<epigrad::dtype>)
EPG_FOR_EACH_DTYPE(LERP, )
