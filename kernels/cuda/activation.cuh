// The activations: one struct each, by the name of its formula in go/activation, as in
// kernels/portable/activation.go.
//
// An activation has these functions:
//
//   parts(x, parameters)         what its value and its slope share: above all an exponential,
//                                and the parameters
//   value(x, parts)              act(x)
//   gradient(g, x, parts)        g act'(x)
//   curvature(h, x, parts)       h act''(x), for gradients of gradients
//   gradient_from_output(g, y)   g act'(x) from y = act(x), where act'(x) is a function of y
//   curvature_from_output(h, y)  h times the derivative of that function
//
// gradient is a selection where the activation is piecewise linear, so that relu'(x) = 0 also stops
// an infinite or NaN g. cheap says that a GPU computes it while it waits for memory.
//
// NaN gives NaN. Infinities follow PyTorch: NaN where its formula has inf*0. So gelu, gelu_tanh,
// silu and mish are NaN at -inf, and their slopes are NaN at both infinities.
//
// To add one, add a struct. `make generate` lists what has a row in go/activation.
#pragma once

#include "arithmetic.cuh"
#include "formulas.cuh"

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
  EPG_FORMULA Real curvature(Real, Real, Parts) { return Real(0); }
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
  EPG_FORMULA Real curvature(Real, Real, Parts) { return Real(0); }
  EPG_FORMULA Real curvature_from_output(Real, Real) { return Real(0); }
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
  EPG_FORMULA Real curvature(Real, Real, Parts) { return Real(0); }
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
  EPG_FORMULA Real curvature(Real h, Real x, Parts parts) { return relu<A>::gradient(2 * h, x, parts); }
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
  // phi(x) (2 - x^2); where phi is zero, x is what stays finite with it.
  EPG_FORMULA Real curvature(Real h, Real x, const Parts &p) {
    const Real bend = p.decay.m == 0 ? x : fused(-x, x, Real(2));
    return h * p.decay.scale(p.decay.m * A::Constants::inv_sqrt_2pi * bend);
  }
};

// logistic is 1/(1+e^-v), given e^-|v|: without the cancellation of 1 - logistic.
template <class A>
__device__ __forceinline__ typename A::Real logistic(bool left, const typename A::Decay &decay) {
  using Real = typename A::Real;
  Real r = A::reciprocal_of_1_plus(decay.e);
  return left ? decay.scale(decay.m * r) : r;
}

// rise is tanh(t) for t >= 0, given e^-2t.
template <class A>
__device__ __forceinline__ typename A::Real rise(typename A::Real t, const typename A::Decay &decay) {
  using Real = typename A::Real;
  const Real square = t * t, near = fused(t, square * A::Constants::tanh_rest(square), t);
  const Real far = Real(1) - 2 * decay.e * A::reciprocal(Real(1) + decay.e);
  return t >= A::Constants::tanh_near ? far : near;
}

// logistic_bend is h logistic'(v) times a factor, given e^-|v|.
template <class A>
__device__ __forceinline__ typename A::Real logistic_bend(typename A::Real h, typename A::Real factor, const typename A::Decay &decay) {
  return h * decay.scale(factor * decay.m * A::reciprocal(square_of_1_plus(decay.e)));
}

// product_bend is that factor in the second derivative of x logistic(x), 2 - |x| tanh(|x|/2).
template <class A>
__device__ __forceinline__ typename A::Real product_bend(typename A::Real size, const typename A::Decay &decay) {
  using Real = typename A::Real;
  return fused(-size, (Real(1) - decay.e) * A::reciprocal(Real(1) + decay.e), Real(2));
}

// sigmoid is 1/(1+e) on the right and e/(1+e) on the left, e = e^-|x|. Its slope is
// e/(1+e)^2.
template <class A>
struct sigmoid {
  using Real = typename A::Real;
  static constexpr bool cheap = A::approximate;
  using Parts = typename A::Decay;
  EPG_FORMULA Parts parts(Real x, const Parameters<Real> &) { return A::decay(magnitude(x)); }
  EPG_FORMULA Real value(Real x, const Parts &decay) { return logistic<A>(negative(x), decay); }
  EPG_FORMULA Real gradient(Real g, Real, const Parts &decay) { return g * decay.scale(decay.m * A::reciprocal(square_of_1_plus(decay.e))); }
  EPG_FORMULA Real curvature(Real h, Real x, const Parts &decay) { return logistic_bend<A>(h, -with_sign(rise<A>(magnitude(x) / 2, decay), x), decay); }
  EPG_FORMULA Real gradient_from_output(Real g, Real y) { return g * (y * (Real(1) - y)); }
  EPG_FORMULA Real curvature_from_output(Real h, Real y) { return h * fused(Real(-2), y, Real(1)); }
};

// sigmoid_product is x sigmoid(v), given e^-|v| and whether v < 0.
template <class A>
__device__ __forceinline__ typename A::Real sigmoid_product(typename A::Real x, bool left, const typename A::Decay &decay) {
  using Real = typename A::Real;
  Real product = (left ? x * decay.m : x) * A::reciprocal_of_1_plus(decay.e);
  return left ? decay.scale(product) : product;
}

// sigmoid_product_slope is its derivative for an odd v, sigmoid(v) (1 + x v' sigmoid(-v)), over one
// denominator, given 1 + x v'. At infinities it is NaN: x e = inf*0.
template <class A>
__device__ __forceinline__ typename A::Real sigmoid_product_slope(typename A::Real numerator, bool left, const typename A::Decay &decay) {
  using Real = typename A::Real;
  Real on_left = decay.m * (numerator + decay.e), on_right = fused(decay.e, numerator, Real(1));
  Real slope = (left ? on_left : on_right) * A::reciprocal(square_of_1_plus(decay.e));
  return left ? decay.scale(slope) : slope;
}

// silu is x sigmoid(x).
template <class A>
struct silu {
  using Real = typename A::Real;
  static constexpr bool cheap = A::approximate;
  using Parts = typename A::Decay;
  EPG_FORMULA Parts parts(Real x, const Parameters<Real> &) { return A::decay(magnitude(x)); }
  EPG_FORMULA Real value(Real x, const Parts &decay) { return sigmoid_product<A>(x, negative(x), decay); }
  EPG_FORMULA Real gradient(Real g, Real x, const Parts &decay) { return g * sigmoid_product_slope<A>(x + Real(1), negative(x), decay); }
  EPG_FORMULA Real curvature(Real h, Real x, const Parts &decay) { return logistic_bend<A>(h, product_bend<A>(magnitude(x), decay), decay); }
};

// gelu_tanh is x (1 + tanh(u))/2 = x sigmoid(v) with v = 2u = c1 x + c3 x^3, c1 = 2 sqrt(2/pi) and
// c3 = 0.044715 c1.
template <class A>
struct gelu_tanh {
  using Real = typename A::Real;
  static constexpr bool cheap = false;
  using Parts = typename A::Decay;
  EPG_FORMULA Parts parts(Real x, const Parameters<Real> &) { return A::gelu_tanh_decay(x); }
  EPG_FORMULA Real value(Real x, const Parts &decay) { return sigmoid_product<A>(x, negative(x), decay); }
  EPG_FORMULA Real gradient(Real g, Real x, const Parts &decay) {
    // Where e is zero the slope is the limit, and NaN at infinities; the cube of a large x would
    // overflow to an infinity of its own.
    Real v_slope = decay.m == 0 ? Real(1) : fused(A::Constants::gelu_tanh_3c3, x * x, A::Constants::gelu_tanh_c1);
    return g * sigmoid_product_slope<A>(fused(x, v_slope, Real(1)), negative(x), decay);
  }
  // The factor is 2v' + x v'' - x v'^2 tanh(v/2).
  EPG_FORMULA Real curvature(Real h, Real x, const Parts &decay) {
    const Real square = x * x, v_slope = fused(A::Constants::gelu_tanh_3c3, square, A::Constants::gelu_tanh_c1);
    const Real rest = (Real(1) - decay.e) * A::reciprocal(Real(1) + decay.e);
    const Real rising = fused(4 * A::Constants::gelu_tanh_3c3, square, 2 * A::Constants::gelu_tanh_c1);
    const Real bend = fused(-magnitude(x) * v_slope * v_slope, rest, rising);
    return logistic_bend<A>(h, decay.m == 0 ? x : bend, decay);
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
  EPG_FORMULA Real value(Real x, const Parts &decay) { return with_sign(rise<A>(magnitude(x), decay), x); }
  EPG_FORMULA Real gradient(Real g, Real, const Parts &decay) { return g * decay.scale(4 * decay.m * A::reciprocal(square_of_1_plus(decay.e))); }
  EPG_FORMULA Real curvature(Real h, Real x, const Parts &decay) { return logistic_bend<A>(h, -8 * value(x, decay), decay); }
  EPG_FORMULA Real gradient_from_output(Real g, Real y) { return g * ((Real(1) - y) * (Real(1) + y)); }
  EPG_FORMULA Real curvature_from_output(Real h, Real y) { return h * (-2 * y); }
};

// swish is x sigmoid(v), v = beta x. Where e^-|v| is zero its slope is the limit, as gelu_tanh's.
template <class A>
struct swish {
  using Real = typename A::Real;
  static constexpr bool cheap = A::approximate;
  struct Parts {
    typename A::Decay decay;
    Twofold<Real> beta;  // v' of the slope
    bool left;
  };
  EPG_FORMULA Parts parts(Real x, const Parameters<Real> &p) {
    const Twofold<Real> beta = p.twofold(0), v = product(x, beta);
    const typename A::Decay decay = A::decay(v);
    return {decay, decay.m == 0 ? Twofold<Real>{1, 0} : beta, negative(v.high)};
  }
  EPG_FORMULA Real value(Real x, const Parts &p) { return sigmoid_product<A>(x, p.left, p.decay); }
  EPG_FORMULA Real gradient(Real g, Real x, const Parts &p) {
    const Real one = A::approximate ? Real(1) : fused(x, p.beta.low, Real(1));
    return g * sigmoid_product_slope<A>(fused(x, p.beta.high, one), p.left, p.decay);
  }
  EPG_FORMULA Real curvature(Real h, Real x, const Parts &p) {
    return logistic_bend<A>(h, p.beta.high * product_bend<A>(magnitude(x * p.beta.high), p.decay), p.decay);
  }
};

// elu is scale x where x > 0, else c (e^(x/a) - 1). Its gradient is scale g where x > 0 or x is
// NaN, else g (c/a) e^(x/a).
template <class A>
struct elu {
  using Real = typename A::Real;
  static constexpr bool cheap = false;
  struct Parts {
    typename A::Power power;
    Real scale, c, c_over_a, reciprocal;
  };
  EPG_FORMULA Parts parts(Real x, const Parameters<Real> &p) {
    const Twofold<Real> a = p.divisor(2), c = p.twofold(1);
    const Real reciprocal = A::reciprocal(a.high);
    const Twofold<Real> ratio = quotient(c.high, a, reciprocal);
    const Real low = A::approximate ? Real(0) : fused(c.low, reciprocal, ratio.low);
    return {A::power(quotient(x, a, reciprocal)), p[0], c.high, ratio.high + low, reciprocal};
  }
  // At 0 the left side would lose the sign.
  EPG_FORMULA Real value(Real x, const Parts &p) {
    const Real line = p.c_over_a * x;
    return x >= 0 ? p.scale * x : p.power.near ? fused(line, p.power.growth, line) : p.c * (p.power.scale(p.power.m) - 1);
  }
  EPG_FORMULA Real gradient(Real g, Real x, const Parts &p) { return g * (x <= 0 ? p.power.scale(p.c_over_a * p.power.m) : p.scale); }
  EPG_FORMULA Real curvature(Real h, Real x, const Parts &p) { return x <= 0 ? h * p.power.scale(p.c_over_a * p.reciprocal * p.power.m) : Real(0); }
};

// softplus is log(1 + e^v)/beta with v = beta x, and x where v > threshold. With e = e^-|v| and
// s = e/(2+e), log(1+e)/e is
//
//   2 (atanh s)/e = (1 - s)(1 + s^2 ...)
//
// which e is a factor of on the left, and which is added to v on the right. The gradient is
// g sigmoid(v), and g beyond the threshold.
template <class A>
struct softplus {
  using Real = typename A::Real;
  static constexpr bool cheap = false;
  struct Parts {
    typename A::Decay decay;
    Real beta, reciprocal;
    bool left, beyond;
  };
  EPG_FORMULA Parts parts(Real x, const Parameters<Real> &p) {
    const Twofold<Real> beta = p.divisor(0), v = product(x, beta), threshold = p.twofold(1);
    // In half types what is left out of v is below what counts, and forming it takes a tenth more.
    const bool above = !A::approximate && v.high == threshold.high && v.low > threshold.low;
    const bool beyond = v.high > threshold.high || above;
    return {A::decay(v), beta.high, A::reciprocal(beta.high), negative(v.high), beyond};
  }
  EPG_FORMULA Real value(Real x, const Parts &p) {
    const Real r = A::reciprocal(Real(2) + p.decay.e), s = p.decay.e * r;
    const Real ratio = fused(-s, fused(-2 * r, s * A::Constants::atanh_rest(s * s), Real(1)), Real(1));
    const Real over_e = ratio * p.reciprocal;
    return p.beyond ? x : p.left ? p.decay.scale(p.decay.m * over_e) : fused(p.decay.e, over_e, x);
  }
  EPG_FORMULA Real gradient(Real g, Real, const Parts &p) { return p.beyond ? g : g * logistic<A>(p.left, p.decay); }
  EPG_FORMULA Real curvature(Real h, Real, const Parts &p) { return p.beyond ? Real(0) : logistic_bend<A>(h, p.beta, p.decay); }
};

// mish is x t with t = tanh(log(1 + e^x)), and its slope t + x s (1 - t^2) with s = sigmoid(x).
// With e = e^-|x| these are
//
//   left:   t = e (1 - q),  q = e (1+e)/(2 + 2e + e^2),  s = e/(1+e)
//   right:  t = 1 - q,      q = 2e^2/(1 + 2e + 2e^2),    s = 1/(1+e),  1 - t^2 = q (2 - q)
template <class A>
struct mish {
  using Real = typename A::Real;
  static constexpr bool cheap = false;
  struct Parts {
    typename A::Decay decay;
    Real q;
    bool left;
  };
  EPG_FORMULA Parts parts(Real x, const Parameters<Real> &) {
    const typename A::Decay decay = A::decay(magnitude(x));
    const Real e = decay.e, twice = 2 * e;
    const bool left = negative(x);
    const Real numerator = left ? fused(e, e, e) : twice * e;
    const Real denominator = left ? fused(e, e, Real(2) + twice) : fused(twice, e, Real(1) + twice);
    return {decay, numerator * A::reciprocal(denominator), left};
  }
  EPG_FORMULA Real value(Real x, const Parts &p) {
    const Real product = (p.left ? x * p.decay.m : x) * (Real(1) - p.q);
    return p.left ? p.decay.scale(product) : product;
  }
  EPG_FORMULA Real gradient(Real g, Real x, const Parts &p) {
    const Real e = p.decay.e, rest = Real(1) - p.q, t = e * rest;
    const Real bend = p.left ? fused(-t, t, Real(1)) : p.q * (Real(2) - p.q);
    const Real slope = fused(x * A::reciprocal(Real(1) + e), bend, rest);
    return g * (p.left ? p.decay.scale(p.decay.m * slope) : slope);
  }
  // 8e ((1+e) + x (1/2 - e t))/(2 + 2e + e^2)^2 on the left, where t is e (1 - q), and
  // 8e^2 ((1+e) + x (e/2 - t))/(1 + 2e + 2e^2)^2 on the right.
  EPG_FORMULA Real curvature(Real h, Real x, const Parts &p) {
    const Real e = p.decay.e, twice = 2 * e, rest = Real(1) - p.q, half = Real(0.5);
    const Real r = A::reciprocal(p.left ? fused(e, e, Real(2) + twice) : fused(twice, e, Real(1) + twice));
    const Real bend = fused(x, p.left ? fused(-e * e, rest, half) : fused(half, e, -rest), Real(1) + e);
    const Real once = p.decay.scale(8 * p.decay.m * bend * r * r);
    return h * (p.left ? once : p.decay.scale(p.decay.m * once));
  }
};

// hardswish is x hardsigmoid(x). Its gradient is a selection: 0 where x <= -3, g where x >= 3 or x
// is NaN, else g (2x + 3)/6.
template <class A>
struct hardswish {
  using Real = typename A::Real;
  static constexpr bool cheap = true;
  struct Parts {};
  EPG_FORMULA Parts parts(Real, const Parameters<Real> &) { return {}; }
  EPG_FORMULA Real value(Real x, Parts) { return x <= -3 ? x * Real(0) : x >= 3 ? x : x * (x + 3) * (Real(1) / 6); }
  EPG_FORMULA Real gradient(Real g, Real x, Parts) { return x <= -3 ? Real(0) : x < 3 ? g * (fused(Real(2), x, Real(3)) * (Real(1) / 6)) : g; }
  EPG_FORMULA Real curvature(Real h, Real x, Parts) { return magnitude(x) < 3 ? h * (Real(1) / 3) : Real(0); }
};

// hardsigmoid is min(max(x + 3, 0), 6)/6. Its gradient is g/6 where -3 < x < 3, else 0.
template <class A>
struct hardsigmoid {
  using Real = typename A::Real;
  static constexpr bool cheap = true;
  struct Parts {};
  EPG_FORMULA Parts parts(Real, const Parameters<Real> &) { return {}; }
  EPG_FORMULA Real value(Real x, Parts) { return x <= -3 ? Real(0) : x >= 3 ? Real(1) : (x + 3) * (Real(1) / 6); }
  EPG_FORMULA Real gradient(Real g, Real x, Parts) { return magnitude(x) < 3 ? g * (Real(1) / 6) : Real(0); }
  EPG_FORMULA Real curvature(Real, Real, Parts) { return Real(0); }
};

// hardtanh is min(max(x, low), high). Its gradient is 0 at and beyond both, else g, as for a NaN.
template <class A>
struct hardtanh {
  using Real = typename A::Real;
  static constexpr bool cheap = true;
  struct Parts {
    Real low, high;
  };
  EPG_FORMULA Parts parts(Real, const Parameters<Real> &p) { return {p[0], p[1]}; }
  EPG_FORMULA Real value(Real x, Parts p) { return x < p.low ? p.low : x > p.high ? p.high : x; }
  EPG_FORMULA Real gradient(Real g, Real x, Parts p) { return x <= p.low || x >= p.high ? Real(0) : g; }
  EPG_FORMULA Real curvature(Real, Real, Parts) { return Real(0); }
};

// softcap is cap tanh(x/cap), as tanh is formed; near 0 it is x and a correction.
template <class A>
struct softcap {
  using Real = typename A::Real;
  static constexpr bool cheap = false;
  struct Parts {
    typename A::Decay decay;
    Real t, cap;
  };
  EPG_FORMULA Parts parts(Real x, const Parameters<Real> &p) {
    const Twofold<Real> cap = p.divisor(0), v = quotient(x, cap, A::reciprocal(cap.high));
    return {A::decay(Twofold<Real>{2 * v.high, 2 * v.low}), magnitude(v.high), cap.high};
  }
  EPG_FORMULA Real value(Real x, const Parts &p) {
    const Real square = p.t * p.t, size = magnitude(x);
    const Real near = fused(size, square * A::Constants::tanh_rest(square), size);
    const Real far = p.cap * (Real(1) - 2 * p.decay.e * A::reciprocal(Real(1) + p.decay.e));
    return with_sign(p.t >= A::Constants::tanh_near ? far : near, x);
  }
  EPG_FORMULA Real gradient(Real g, Real, const Parts &p) { return g * slope(p); }
  EPG_FORMULA Real curvature(Real h, Real x, const Parts &p) { return logistic_bend<A>(h, bend(x, p), p.decay); }
  EPG_FORMULA Real bend(Real x, const Parts &p) { return with_sign(rise<A>(p.t, p.decay), x) * (-8 * A::reciprocal(p.cap)); }
  EPG_FORMULA Real slope(const Parts &p) { return p.decay.scale(4 * p.decay.m * A::reciprocal(square_of_1_plus(p.decay.e))); }
};

// other is one of the list of others: which, a number behind the parameters says. Its functions are
// no part of a kernel that calls them, which suits one that does so a few times.
template <class A>
struct other {
  using Real = typename A::Real;
  using Parts = Parameters<Real>;
  static constexpr bool cheap = false;
  EPG_FORMULA Parts parts(Real, const Parameters<Real> &p) { return p; }
  static __device__ __noinline__ Real value(Real x, Parts p) {
    switch (number(p)) {
#define EPG_CASE(activation, unused) \
  case Number::activation:           \
    return activations::activation<A>::value(x, activations::activation<A>::parts(x, p));
      EPG_FOR_EACH_OTHER_ACTIVATION(EPG_CASE, )
#undef EPG_CASE
    }
    return x;
  }
  static __device__ __noinline__ Real gradient(Real g, Real x, Parts p) {
    switch (number(p)) {
#define EPG_CASE(activation, unused) \
  case Number::activation:           \
    return activations::activation<A>::gradient(g, x, activations::activation<A>::parts(x, p));
      EPG_FOR_EACH_OTHER_ACTIVATION(EPG_CASE, )
#undef EPG_CASE
    }
    return g;
  }

 private:
#define EPG_NUMBER(activation, unused) activation,
  enum class Number { EPG_FOR_EACH_OTHER_ACTIVATION(EPG_NUMBER, ) };
#undef EPG_NUMBER
  EPG_FORMULA Number number(const Parts &p) { return static_cast<Number>(static_cast<int>(p.values[most_parameters])); }
};

#undef EPG_FORMULA

}  // namespace epigrad::activations
