// The three ways to compute: Half for the half types (in float, to about 2^-16), Single and
// Exact<Double> (to the last places).
//
// What every activation is made of has one name in each: a decaying exponential, a reciprocal, and
// the normal distribution's tail. Formulas (activation.cuh) are written once on top of these.
#pragma once

#include "activation_table.cuh"
#include "intrinsics.cuh"

namespace epigrad {

constexpr int most_parameters = 4;  // of a formula (go/activation)

// Twofold is a number in two parts: high, and low, what that leaves out.
template <class Real>
struct Twofold {
  Real high, low;
};

// Parameters are a formula's numbers as Real has them, or lerp's weight. They stay in constant
// memory until a formula reads one.
template <class Real>
struct Parameters {
  const double *values;
  __device__ __forceinline__ explicit Parameters(const double *x) : values(x) {}
  __device__ __forceinline__ Real operator[](int i) const { return static_cast<Real>(values[i]); }

  // after are those behind the first n.
  __device__ __forceinline__ Parameters after(int n) const { return Parameters(values + n); }

  // low is what Real leaves out of one: nothing of infinity and NaN.
  __device__ __forceinline__ Real low(int i) const {
    const Real high = (*this)[i];
    return high - high == 0 ? static_cast<Real>(values[i] - static_cast<double>(high)) : Real(0);
  }

  __device__ __forceinline__ Twofold<Real> twofold(int i) const { return {(*this)[i], low(i)}; }

  // divisor is one, or the nearest that an arithmetic has a reciprocal of.
  __device__ __forceinline__ Twofold<Real> divisor(int i) const {
    const Real high = (*this)[i], limited = invertible(high);
    return {limited, limited == high ? low(i) : Real(0)};
  }
};

// product is x y, and quotient x/y, given the reciprocal of y. Where they are infinite, low is
// anything.
template <class Real>
__device__ __forceinline__ Twofold<Real> product(Real x, Twofold<Real> y) {
  const Real high = x * y.high;
  return {high, fused(x, y.low, fused(x, y.high, -high))};
}
template <class Real>
__device__ __forceinline__ Twofold<Real> quotient(Real x, Twofold<Real> y, Real reciprocal) {
  const Real high = x * reciprocal;
  return {high, fused(-high, y.low, fused(-high, y.high, x)) * reciprocal};
}

// Half computes with the machine's own approximations, whose error is far below the rounding to a
// half type. Exponentials are squares of their halves, which reach through float's denormals where
// the instruction flushes them.
struct Half {
  using Real = float;
  using Constants = Table<Half>;
  static constexpr bool approximate = true;

  // Decay is e^-|v|: e, and m with e = scale(m).
  struct Decay {
    Real m, e;
    __device__ __forceinline__ Real scale(Real x) const { return x; }
  };

  static __device__ __forceinline__ Decay decay(Real t) { return decay_by(t, -0.5f * Constants::log2_e); }

  // Where an exponent has two parts, the second is below what counts here.
  static __device__ __forceinline__ Decay decay(Twofold<Real> v) { return decay(magnitude(v.high)); }

  // Power is e^v for v of either sign. Where v is near 0, e^v - 1 is v (1 + growth).
  struct Power : Decay {
    Real growth;
    bool near;
  };

  static __device__ __forceinline__ Power power(Twofold<Real> v) {
    const Decay d = decay(-v.high);
    return {d, v.high * Constants::exp_rest(v.high), magnitude(v.high) < Real(0.34)};
  }

  // normal_decay is e^(-x^2/2).
  static __device__ __forceinline__ Decay normal_decay(Real x) { return decay_by(x * x, -0.25f * Constants::log2_e); }

  // gelu_tanh_decay is e^-|v|, v = c1 x + c3 x^3 (activation.cuh).
  static __device__ __forceinline__ Decay gelu_tanh_decay(Real x) {
    return decay(magnitude(x) * fused(Constants::gelu_tanh_c3, x * x, Constants::gelu_tanh_c1));
  }

  // reciprocal is 1/x for invertible x (intrinsics.cuh).
  static __device__ __forceinline__ Real reciprocal(Real x) { return reciprocal_approximately(x); }

  // reciprocal_of_1_plus is 1/(1+e) for 0 <= e <= 1.
  static __device__ __forceinline__ Real reciprocal_of_1_plus(Real e) { return reciprocal(Real(1) + e); }

  // normal_tail is W(t) = Phi(-t) e^(t^2/2) for t >= 0.
  static __device__ __forceinline__ Real normal_tail(Real t) {
    Real r = reciprocal_approximately(t + Constants::normal_centre);
    return Constants::normal_tail(r) * r;
  }

 private:
  static __device__ __forceinline__ Decay decay_by(Real t, Real factor) {
    Real root = exp2_approximately(t * factor);
    Real e = root * root;
    return {e, e};
  }
};

// Single is float, to the last places: no intermediate cancels or is rounded where it is denormal,
// and exponents are formed in two parts, since rounding an exponent v costs v units in the last
// place.
struct Single {
  using Real = float;
  using Constants = Table<Single>;
  static constexpr bool approximate = false;

  // Decay is e^-|v|: m and the power of two that takes m to it. A result that falls towards zero
  // with it is formed from m and scaled last, so that it is rounded once where it is denormal.
  // Where m is not e^-|v| itself it is below 2^-35, so that it serves as e where 1 is added.
  struct Decay {
    Real m, e, power;
    __device__ __forceinline__ Real scale(Real x) const { return x * power; }
  };

  static __device__ __forceinline__ Decay decay(Real t) { return decay(t, Real(0)); }

  static __device__ __forceinline__ Decay decay(Twofold<Real> v) { return decay(magnitude(v.high), v.high < 0 ? -v.low : v.low); }

  // Power is as Half's.
  struct Power : Decay {
    Real growth;
    bool near;
  };

  // power takes e^v for infinity where v is above power_limit.
  static __device__ __forceinline__ Power power(Twofold<Real> v) {
    constexpr Real limit = 1024, power_limit = 128;
    const bool beyond = magnitude(v.high) >= limit;
    const Real x = beyond ? with_sign(limit, v.high) : v.high;
    Real h = exponent(x, Constants::log2_e);
    Real u = fused(h, -Constants::ln2_rest, fused(h, -Constants::ln2_high, x)) + (beyond ? Real(0) : v.low);
    const bool deep = magnitude(h) > 100;
    Real two_to_h = power_of_two(deep ? h - with_sign(Real(64), h) : h), curve = Constants::exp_rest(u);
    Real m = x > power_limit ? power_of_two(limit) : fused(two_to_h, fused(u * u, curve, u), two_to_h);
    return {{m, m, deep ? power_of_two(with_sign(Real(64), h)) : Real(1)}, u * curve, h == 0};
  }

  static __device__ __forceinline__ Decay normal_decay(Real x) {
    Real t = minimum(magnitude(x), 64.0f);
    Real h = exponent(t * t, -0.5f * Constants::log2_e);
    // the product is exact, and so is what cancels
    Real twice = fused(-t, t, h * (-2 * Constants::ln2_high));
    return exponential(h, fused(0.5f, twice, h * -Constants::ln2_rest));
  }

  static __device__ __forceinline__ Decay gelu_tanh_decay(Real x) {
    Real t = minimum(magnitude(x), 64.0f), square = t * t;
    // c1 + c3 x^2 in two parts: c1_high has so few bits that its difference from the sum is exact.
    Real sum = fused(Constants::gelu_tanh_c3, square, Constants::gelu_tanh_c1_high);
    Real low = fused(Constants::gelu_tanh_c3, square, Constants::gelu_tanh_c1_high - sum) + Constants::gelu_tanh_c1_rest;
    low = fused(Constants::gelu_tanh_c3, fused(t, t, -square), low);
    low = fused(Constants::gelu_tanh_c3_low, square, low);
    Real h = exponent(t * sum, -Constants::log2_e);
    Real u = fused(-t, sum, h * -Constants::ln2_high);
    return exponential(h, fused(-t, low, fused(h, -Constants::ln2_rest, u)));
  }

  static __device__ __forceinline__ Real reciprocal(Real x) {
    Real r = reciprocal_approximately(x);
    return fused(r, fused(-x, r, 1.0f), r);
  }

  // reciprocal_of_1_plus is that of 1 + e itself, not of what it is rounded to.
  static __device__ __forceinline__ Real reciprocal_of_1_plus(Real e) {
    Real sum = 1 + e, low = e - (sum - 1), r = reciprocal_approximately(sum);
    return fused(r, fused(-r, low, fused(-sum, r, 1.0f)), r);
  }

  // normal_tail is W(t) = Phi(-t) e^(t^2/2) for t >= 0, while it is not multiplied by zero.
  static __device__ __forceinline__ Real normal_tail(Real t) {
    constexpr Real c = Constants::normal_centre;
    t = minimum(t, 64.0f);
    Real r = reciprocal_approximately(t + c);
    // of t + c itself, not of what it was rounded to
    Real r_low = r * fused(-r, t, fused(-r, c, 1.0f));
    Real p = Constants::normal_tail(fused(-2 * c, r + r_low, 1.0f));
    return fused(p, r, p * r_low);
  }

 private:
  // decay is e^-(t+low) for t >= 0 and |low| <= ulp(t).
  static __device__ __forceinline__ Decay decay(Real t, Real low) {
    constexpr Real limit = 1024;
    low = t < limit ? low : Real(0);
    t = minimum(t, limit);
    Real h = exponent(t, -Constants::log2_e);
    Real u = fused(h, -Constants::ln2_high, -t);  // exact
    return exponential(h, fused(h, -Constants::ln2_rest, u) - low);
  }

  // exponent is x factor, rounded to an integer.
  static __device__ __forceinline__ Real exponent(Real x, Real factor) {
    constexpr Real round = 0x1.8p23f;  // adding and subtracting it does so
    return fused(x, factor, round) - round;
  }

  // exponential is 2^h e^u for an integer h and |u| <= ln2/2.
  static __device__ __forceinline__ Decay exponential(Real h, Real u) {
    bool deep = h < -100;
    Real power = power_of_two(deep ? h + 64 : h);
    Real m = fused(power, fused(u * u, Constants::exp_rest(u), u), power);
    return {m, m, deep ? 0x1p-64f : 1.0f};
  }
};

// What Exact is made of for double.
struct Double {
  using Real = double;
  using Constants = Table<Double>;
  static constexpr bool approximate = false;
  static constexpr Real round_to_integer = 0x1.8p52;
  static constexpr Real decay_limit = 800;
  static constexpr Real tail_limit = 40;

  // Comparisons of doubles take the time of a sum, those of their bits as integers none. is_beyond
  // is t >= decay_limit for t >= 0, and false for NaN.
  static __device__ __forceinline__ uint32_t upper(Real t) { return static_cast<uint32_t>(__double2hiint(t)); }
  static __device__ __forceinline__ bool is_beyond(Real t) {
    constexpr uint64_t limit = 0x4089000000000000, infinity = 0x7ff0000000000000;  // of 800
    return static_cast<uint64_t>(__double_as_longlong(t)) - limit <= infinity - limit;
  }
  static __device__ __forceinline__ int low_integer(Real shifted) { return __double2loint(shifted); }
  static __device__ __forceinline__ Real power_of_two(int k) { return __hiloint2double((k + 1023) << 20, 0); }
  // __drcp_rn would branch, which keeps the compiler from computing elements side by side.
  static __device__ __forceinline__ Real reciprocal(Real x) {
    Real r = reciprocal_nearly(x);
    return fused(r, fused(-x, r, 1.0), r);
  }
  static __device__ __forceinline__ Real reciprocal_of_1_plus(Real e) { return reciprocal(Real(1) + e); }
  static __device__ __forceinline__ Real normal_tail(Real t) {
    // The polynomial amplifies an error of its variable: t + c and its reciprocal are carried in
    // two parts.
    constexpr Real c = Constants::normal_centre;
    constexpr uint32_t upper_limit = 0x40440000, upper_c = 0x40080000;  // of 40 and 3
    static_assert(c == 3 && tail_limit == 40);
    if (upper(t) >= upper_limit) t = tail_limit;
    const bool below = upper(t) < upper_c;
    Real sum = t + c, larger = below ? c : t, smaller = below ? t : c;
    Real sum_low = smaller - (sum - larger);
    Real r = reciprocal_nearly(sum);
    Real r_low = r * fused(-sum_low, r, fused(-sum, r, 1.0));
    Real y = fused(-2 * c, r_low, fused(-2 * c, r, 1.0));
    Real p = Constants::normal_tail(y);
    return fused(p, r, p * r_low);
  }

 private:
  // reciprocal_nearly is 1/x to two units in the last place.
  static __device__ __forceinline__ Real reciprocal_nearly(Real x) {
    Real r = reciprocal_approximately(x);
    Real error = fused(-x, r, 1.0);
    return fused(r, fused(error, error, error), r);
  }
};

// Exact makes of one of them what Half has, to the last places: no intermediate cancels or is
// rounded where it is denormal, and exponents are formed in two parts, since rounding an exponent v
// costs v units in the last place.
template <class Base>
struct Exact : Base {
  using Real = typename Base::Real;
  using Constants = typename Base::Constants;

  // Decay is m 2^k in three factors. A result that falls towards zero with it is formed from m and
  // scaled last, so that it is rounded once where it is denormal. m is 1 + r + r^2 curve.
  struct Decay {
    Real m, e, power1, power2, curve;
    __device__ __forceinline__ Real scale(Real x) const { return x * power1 * power2; }
  };

  static __device__ __forceinline__ Decay decay(Real t) { return decay(t, Real(0)); }

  static __device__ __forceinline__ Decay decay(Twofold<Real> v) { return decay(magnitude(v.high), negative(v.high) ? -v.low : v.low); }

  // Power is as Half's.
  struct Power : Decay {
    Real growth;
    bool near;
  };

  static __device__ __forceinline__ Power power(Twofold<Real> v) {
    const bool above = v.high > Base::decay_limit;
    const Decay d = decay(above ? -Base::decay_limit : -v.high, above ? Real(0) : -v.low);
    return {d, v.high * d.curve, magnitude(v.high) < Real(0.34)};
  }

  // decay returns e^-(t+low) for t >= -decay_limit and |low| <= ulp(t), 0 beyond decay_limit, NaN
  // for NaN, by
  //
  //   -t = r - n ln2,  |r| <= ln2/2
  static __device__ __forceinline__ Decay decay(Real t, Real low) {
    bool beyond = Base::is_beyond(t);
    if (beyond) t = Base::decay_limit;
    Real shifted = fused(t, Constants::log2_e, Base::round_to_integer);
    Real n = shifted - Base::round_to_integer;
    Real head = fused(n, Constants::ln2, -t);  // exact
    Real tail = fused(n, Constants::ln2_low, -low);
    Real r = head + tail, r_low = tail - (r - head);
    Real curve = Constants::exp_rest(r), m = Real(1) + (r + fused(r * r, curve, r_low));
    if (beyond) m = 0;
    int k = Base::low_integer(shifted), half = k >> 1;
    Decay d = {m, 0, Base::power_of_two(-half), Base::power_of_two(half - k), curve};
    d.e = d.scale(m);
    return d;
  }

  static __device__ __forceinline__ Decay normal_decay(Real x) {
    Real half = x * Real(0.5), t = half * x;
    return decay(t, fused(half, x, -t));
  }

  static __device__ __forceinline__ Decay gelu_tanh_decay(Real x) {
    Real t = magnitude(x), square = t * t;
    Real square_low = fused(t, t, -square);
    Real cubic = Constants::gelu_tanh_c3 * square;
    Real cubic_low = fused(Constants::gelu_tanh_c3, square, -cubic) + fused(Constants::gelu_tanh_c3, square_low, Constants::gelu_tanh_c3_low * square);
    // Either of the two may be the larger: a sum in two parts that holds for both (Knuth, The Art
    // of Computer Programming 2, 4.2.2).
    Real sum = Constants::gelu_tanh_c1 + cubic;
    Real part = sum - Constants::gelu_tanh_c1;
    Real sum_low = (Constants::gelu_tanh_c1 - (sum - part)) + (cubic - part) + (cubic_low + Constants::gelu_tanh_c1_low);
    Real v = t * sum;
    return decay(v, fused(t, sum_low, fused(t, sum, -v)));
  }
};

}  // namespace epigrad
