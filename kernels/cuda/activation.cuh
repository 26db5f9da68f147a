// The activations: one struct each, by the name of its row in go/activation, with the formulas of
// kernels/portable/activation.go.
//
// An activation has these functions:
//
//   parts(x, parameters)         what its value and its slope share: above all an exponential,
//                                and the parameters
//   value(x, parts)              act(x)
//   gradient(g, x, parts)        g act'(x)
//   gradient_from_output(g, y)   the same from y = act(x), where act'(x) is a function of y
//
// gradient is a selection where the activation is piecewise linear, so that relu'(x) = 0 also stops
// an infinite or NaN g. cheap says that a GPU computes it while it waits for memory.
//
// NaN gives NaN. Infinities follow PyTorch: NaN where its formula has inf*0. So gelu, gelu_tanh and
// silu are NaN at -inf, and their slopes are NaN at both infinities.
//
// To add one, add a struct and its name to the list.
#pragma once

#include "arithmetic.cuh"

#define EPG_FOR_EACH_ACTIVATION_FROM_OUTPUT(macro, ...) macro(relu, __VA_ARGS__) macro(sigmoid, __VA_ARGS__) macro(tanh, __VA_ARGS__)
#define EPG_FOR_EACH_NONLINEAR_ACTIVATION(macro, ...)     \
  EPG_FOR_EACH_ACTIVATION_FROM_OUTPUT(macro, __VA_ARGS__) \
  macro(gelu, __VA_ARGS__) macro(gelu_tanh, __VA_ARGS__) macro(silu, __VA_ARGS__) macro(leaky_relu, __VA_ARGS__) macro(relu2, __VA_ARGS__)
#define EPG_FOR_EACH_ACTIVATION(macro, ...) macro(none, __VA_ARGS__) EPG_FOR_EACH_NONLINEAR_ACTIVATION(macro, __VA_ARGS__)

namespace epigrad::activations {

// A is one of Half, Single and Exact<Double>.
#define EPG_FORMULA static __device__ __forceinline__

// square_of_1_plus is (1+e)^2 = 1 + e (2+e).
template <class Real>
__device__ __forceinline__ Real square_of_1_plus(Real e) {
  return fused(e, Real(2) + e, Real(1));
}

template <class A>
struct none {
  using Real = typename A::Real;
  static constexpr bool cheap = true;
  struct Parts {};
  EPG_FORMULA Parts parts(Real, const Parameters<Real> &) { return {}; }
  EPG_FORMULA Real value(Real x, Parts) { return x; }
  EPG_FORMULA Real gradient(Real g, Real, Parts) { return g; }
};

// relu is max(x, 0); -0 and NaN pass. Its gradient is g where x > 0 or x is NaN, else 0; the output
// serves as x equally well.
template <class A>
struct relu {
  using Real = typename A::Real;
  static constexpr bool cheap = true;
  struct Parts {};
  EPG_FORMULA Parts parts(Real, const Parameters<Real> &) { return {}; }
  EPG_FORMULA Real value(Real x, Parts) { return x < 0 ? Real(0) : x; }
  EPG_FORMULA Real gradient(Real g, Real x, Parts) { return gradient_from_output(g, x); }
  EPG_FORMULA Real gradient_from_output(Real g, Real y) { return y <= 0 ? Real(0) : g; }
};

// leaky_relu is x where x > 0, else slope x, as for a NaN. Its gradient is g where x > 0, else
// slope g.
template <class A>
struct leaky_relu {
  using Real = typename A::Real;
  static constexpr bool cheap = true;
  struct Parts {
    Real slope;
  };
  EPG_FORMULA Parts parts(Real, const Parameters<Real> &p) { return {p[0]}; }
  EPG_FORMULA Real value(Real x, Parts parts) { return gradient(x, x, parts); }
  EPG_FORMULA Real gradient(Real g, Real x, Parts parts) { return x > 0 ? g : parts.slope * g; }
};

// relu2 is max(x, 0)^2. Its gradient is 2 g x where x > 0 or x is NaN, else 0.
template <class A>
struct relu2 : relu<A> {
  using Real = typename A::Real;
  using Parts = typename relu<A>::Parts;
  EPG_FORMULA Real value(Real x, Parts parts) {
    const Real positive = relu<A>::value(x, parts);
    return positive * positive;
  }
  EPG_FORMULA Real gradient(Real g, Real x, Parts parts) { return relu<A>::gradient(g * (2 * x), x, parts); }
};

// gelu is x Phi(x), with Phi(-t) = e^(-t^2/2) W(t). Its slope is Phi(x) + x phi(x): on the left
//
//   e^(-t^2/2) (W(t) - t/sqrt(2 pi)),  t = |x|
//
// and on the right 1 minus that.
template <class A>
struct gelu {
  using Real = typename A::Real;
  static constexpr bool cheap = false;
  struct Parts {
    typename A::Decay decay;
    Real tail;
  };
  EPG_FORMULA Parts parts(Real x, const Parameters<Real> &) { return {A::normal_decay(x), A::normal_tail(magnitude(x))}; }
  EPG_FORMULA Real value(Real x, const Parts &p) {
    Real tail = p.decay.m * p.tail;
    Real scaled = p.decay.scale(negative(x) ? x * tail : tail);
    return negative(x) ? scaled : x * (Real(1) - scaled);
  }
  EPG_FORMULA Real gradient(Real g, Real x, const Parts &p) {
    Real tail = p.decay.scale(p.decay.m * (p.tail - magnitude(x) * A::Constants::inv_sqrt_2pi));
    return g * (negative(x) ? tail : Real(1) - tail);
  }
};

// sigmoid is 1/(1+e) on the right and e/(1+e) on the left, e = e^-|x|: 1 - sigmoid without its
// cancellation. Its slope is e/(1+e)^2.
template <class A>
struct sigmoid {
  using Real = typename A::Real;
  static constexpr bool cheap = A::approximate;
  using Parts = typename A::Decay;
  EPG_FORMULA Parts parts(Real x, const Parameters<Real> &) { return A::decay(magnitude(x)); }
  EPG_FORMULA Real value(Real x, const Parts &decay) {
    Real r = A::reciprocal(Real(1) + decay.e);
    return negative(x) ? decay.scale(decay.m * r) : r;
  }
  EPG_FORMULA Real gradient(Real g, Real, const Parts &decay) { return g * decay.scale(decay.m * A::reciprocal(square_of_1_plus(decay.e))); }
  EPG_FORMULA Real gradient_from_output(Real g, Real y) { return g * (y * (Real(1) - y)); }
};

// sigmoid_product is x sigmoid(v) for a v with the sign of x, given e^-|v|.
template <class A>
__device__ __forceinline__ typename A::Real sigmoid_product(typename A::Real x, const typename A::Decay &decay) {
  using Real = typename A::Real;
  Real product = (negative(x) ? x * decay.m : x) * A::reciprocal(Real(1) + decay.e);
  return negative(x) ? decay.scale(product) : product;
}

// sigmoid_product_slope is its derivative for an odd v that grows with x, sigmoid(v) (1 + x v'
// sigmoid(-v)), over one denominator. At infinities it is NaN: x e = inf*0.
template <class A>
__device__ __forceinline__ typename A::Real sigmoid_product_slope(typename A::Real x, typename A::Real v_slope, const typename A::Decay &decay) {
  using Real = typename A::Real;
  Real numerator = fused(x, v_slope, Real(1));
  Real left = decay.m * (numerator + decay.e), right = fused(decay.e, numerator, Real(1));
  Real slope = (negative(x) ? left : right) * A::reciprocal(square_of_1_plus(decay.e));
  return negative(x) ? decay.scale(slope) : slope;
}

// silu is x sigmoid(x).
template <class A>
struct silu {
  using Real = typename A::Real;
  static constexpr bool cheap = A::approximate;
  using Parts = typename A::Decay;
  EPG_FORMULA Parts parts(Real x, const Parameters<Real> &) { return A::decay(magnitude(x)); }
  EPG_FORMULA Real value(Real x, const Parts &decay) { return sigmoid_product<A>(x, decay); }
  EPG_FORMULA Real gradient(Real g, Real x, const Parts &decay) { return g * sigmoid_product_slope<A>(x, Real(1), decay); }
};

// gelu_tanh is x (1 + tanh(u))/2 = x sigmoid(v) with v = 2u = c1 x + c3 x^3, c1 = 2 sqrt(2/pi) and
// c3 = 0.044715 c1.
template <class A>
struct gelu_tanh {
  using Real = typename A::Real;
  static constexpr bool cheap = false;
  using Parts = typename A::Decay;
  EPG_FORMULA Parts parts(Real x, const Parameters<Real> &) { return A::gelu_tanh_decay(x); }
  EPG_FORMULA Real value(Real x, const Parts &decay) { return sigmoid_product<A>(x, decay); }
  EPG_FORMULA Real gradient(Real g, Real x, const Parts &decay) {
    // Where e is zero the slope is the limit, and NaN at infinities; the cube of a large x would
    // overflow to an infinity of its own.
    Real v_slope = decay.m == 0 ? Real(1) : fused(A::Constants::gelu_tanh_3c3, x * x, A::Constants::gelu_tanh_c1);
    return g * sigmoid_product_slope<A>(x, v_slope, decay);
  }
};

// tanh is 1 - 2e/(1+e), e = e^(-2|x|), with the sign of x, and a polynomial near 0, where that
// cancels. Its slope is 4e/(1+e)^2.
template <class A>
struct tanh {
  using Real = typename A::Real;
  static constexpr bool cheap = false;
  using Parts = typename A::Decay;
  EPG_FORMULA Parts parts(Real x, const Parameters<Real> &) { return A::decay(2 * magnitude(x)); }
  EPG_FORMULA Real value(Real x, const Parts &decay) {
    Real t = magnitude(x), square = t * t;
    Real near = fused(t, square * A::Constants::tanh_rest(square), t);
    Real far = Real(1) - 2 * decay.e * A::reciprocal(Real(1) + decay.e);
    return with_sign(t >= A::Constants::tanh_near ? far : near, x);
  }
  EPG_FORMULA Real gradient(Real g, Real, const Parts &decay) { return g * decay.scale(4 * decay.m * A::reciprocal(square_of_1_plus(decay.e))); }
  EPG_FORMULA Real gradient_from_output(Real g, Real y) { return g * ((Real(1) - y) * (Real(1) + y)); }
};

#undef EPG_FORMULA

}  // namespace epigrad::activations
