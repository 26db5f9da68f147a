// Activations whose parameters are tensors: prelu_<dtype>, prelu_backward_<dtype>, and with
// _columns and _rows those that also sum gradients over the dimensions in which an operand was
// broadcast; the same of xielu.
//
//   prelu   x if x > 0 else weight x
//   xielu   a_p x^2 + beta x if x > 0 else a_n (e^x - 1 - x) + beta x
//           a_p = softplus(alpha_p),  a_n = beta + softplus(alpha_n)
//
// All operands have one shape, with stride 0 where they are broadcast. alpha_p and alpha_n have one
// element; beta is the parameter.
#include "reduce.cuh"

namespace epigrad {

// out; x, weight.
template <class Storage>
struct Prelu : Operands<Storage, 1, 2> {
  using Real = typename Storage::Real;

  template <unsigned wanted>
  static __device__ __forceinline__ void apply(const Parameters<Real> &, Real (&y)[1], const Real (&x)[2]) {
    y[0] = x[0] > 0 ? x[0] : x[1] * x[0];
  }
};

// grad_input, grad_weight; grad_output, x, weight, which may be null where grad_input is not asked
// for.
template <class Storage>
struct PreluBackward : Operands<Storage, 2, 3> {
  using Real = typename Storage::Real;
  static constexpr bool optional_inputs = true;

  template <unsigned wanted>
  static __device__ __forceinline__ void apply(const Parameters<Real> &, Real (&y)[2], const Real (&x)[3]) {
    const bool positive = x[1] > 0;
    y[0] = positive ? x[0] : x[2] * x[0];
    y[1] = positive ? Real(0) : x[0] * x[1];
  }
};

// Softplus is log(1 + e^x) = max(x, 0) + log(1 + e) with e = e^-|x|, and slope its derivative. With
// s = e/(2+e), log(1+e) is 2 atanh s. With the activation's formula, which has beta and a
// threshold, xielu's backward spills registers in double.
template <class A>
struct Softplus {
  using Real = typename A::Real;
  Real value, slope;
  __device__ __forceinline__ explicit Softplus(Real x) {
    const typename A::Decay decay = A::decay(magnitude(x));
    const Real r = A::reciprocal(Real(2) + decay.e), s = decay.e * r, square = s * s;
    const Real ratio = 2 * fused(r, square * A::Constants::atanh_rest(square), r), logistic = A::reciprocal(Real(1) + decay.e);
    value = x < 0 ? decay.scale(decay.m * ratio) : fused(decay.e, ratio, x);
    slope = x < 0 ? decay.scale(decay.m * logistic) : logistic;
  }
};

// Expm1 is e^x - 1 and e^x - 1 - x for x <= 0 and NaN. Near 0, where these cancel, they are x + q
// and q, with q = x^2 times the rest of the exponential's series.
template <class A>
struct Expm1 {
  using Real = typename A::Real;
  Real value, rest;
  __device__ __forceinline__ explicit Expm1(Real x) {
    const Real e = A::decay(magnitude(x)).e, q = x * x * A::Constants::exp_rest(x);
    const bool near = magnitude(x) < Real(0.34);  // half of log 2, where that polynomial ends
    value = near ? x + q : e - Real(1);
    rest = near ? q : (e - Real(1)) - x;
  }
};

// out; x, alpha_p, alpha_n.
template <class Storage>
struct Xielu : Operands<Storage, 1, 3> {
  using Real = typename Storage::Real;
  using A = typename Storage::Arithmetic;
  static constexpr unsigned uniform = 0b110;
  static constexpr int vectors = 2;

  template <unsigned wanted>
  static __device__ __forceinline__ void apply(const Parameters<Real> &p, Real (&y)[1], const Real (&x)[3]) {
    const Real beta = p[0], positive = Softplus<A>(x[1]).value, negative = beta + Softplus<A>(x[2]).value;
    y[0] = x[0] > 0 ? x[0] * fused(positive, x[0], beta) : fused(negative, Expm1<A>(x[0]).rest, beta * x[0]);
  }
};

// grad_input, grad_alpha_p, grad_alpha_n; grad_output, x, alpha_p, alpha_n, which may be null where
// only the other's gradient is asked for.
template <class Storage>
struct XieluBackward : Operands<Storage, 3, 4> {
  using Real = typename Storage::Real;
  using A = typename Storage::Arithmetic;
  static constexpr unsigned uniform = 0b1100;
  static constexpr bool optional_inputs = true;

  template <unsigned wanted>
  static __device__ __forceinline__ void apply(const Parameters<Real> &p, Real (&y)[3], const Real (&x)[4]) {
    const Real beta = p[0], g = x[0];
    const Softplus<A> positive(x[2]), negative(x[3]);
    const Expm1<A> power(x[1]);
    const bool right = x[1] > 0;
    y[0] = g * (right ? fused(2 * positive.value, x[1], beta) : fused(beta + negative.value, power.value, beta));
    y[1] = right ? g * (x[1] * x[1]) * positive.slope : Real(0);
    y[2] = right ? Real(0) : g * power.rest * negative.slope;
  }
};

}  // namespace epigrad

#define POINTWISE(name, Forward, Backward, dtype)                                 \
  EPG_ELEMENTWISE(name##_##dtype, epigrad::Forward<epigrad::dtype>)               \
  EPG_ELEMENTWISE(name##_backward_##dtype, epigrad::Backward<epigrad::dtype>)     \
  EPG_COLUMNS(name##_backward_columns_##dtype, epigrad::Backward<epigrad::dtype>) \
  EPG_ROWS(name##_backward_rows_##dtype, epigrad::Backward<epigrad::dtype>)
#define LEARNABLE(dtype, unused)                \
  POINTWISE(prelu, Prelu, PreluBackward, dtype) \
  POINTWISE(xielu, Xielu, XieluBackward, dtype)
EPG_FOR_EACH_DTYPE(LEARNABLE, )
