// The three ways to compute: Half for the half types (in float, to about 2^-16), Single and Double (to the last places).
//
// What every activation is made of has one name in each: a decaying exponential, a reciprocal, and the normal distribution's tail. Formulas
// (activation.cuh) are written once on top of these.
#pragma once

#include "activation_table.cuh"
#include "intrinsics.cuh"

namespace epigrad {

// Half computes with the machine's own approximations, whose error is far below the rounding to a half type. Exponentials are squares
// of their halves, which reach through float's denormals where the instruction flushes them.
struct Half {
  using Real = float;
  using Constants = Table<Half>;

  // Decay is e^-|v|: e, and m with e = scale(m).
  struct Decay {
    Real m, e;
    __device__ __forceinline__ Real scale(Real x) const { return x; }
  };

  static __device__ __forceinline__ Decay decay(Real t) { return decay_by(t, -0.5f * Constants::log2_e); }

  // normal_decay is e^(-x^2/2).
  static __device__ __forceinline__ Decay normal_decay(Real x) { return decay_by(x * x, -0.25f * Constants::log2_e); }

  // gelu_tanh_decay is e^-|v|, v = c1 x + c3 x^3 (activation.cuh).
  static __device__ __forceinline__ Decay gelu_tanh_decay(Real x) {
    return decay(magnitude(x) * fused(Constants::gelu_tanh_c3, x * x, Constants::gelu_tanh_c1));
  }

  // reciprocal is 1/x for x in [1, 4].
  static __device__ __forceinline__ Real reciprocal(Real x) { return reciprocal_approximately(x); }

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

// What float and double do not have in common.
struct Single {
  using Real = float;
  using Constants = Table<Single>;
  static constexpr Real round_to_integer = 0x1.8p23f;  // adding and subtracting it rounds to an integer
  static constexpr Real decay_limit = 112;             // e^-t times any factor met here is zero after rounding from here on
  static constexpr Real tail_limit = 16;               // and so is e^(-t^2/2)

  static __device__ __forceinline__ int low_integer(Real shifted) { return __float_as_int(shifted) - __float_as_int(round_to_integer); }
  static __device__ __forceinline__ Real power_of_two(int k) { return __int_as_float((k + 127) << 23); }
  static __device__ __forceinline__ Real reciprocal(Real x) {
    Real r = reciprocal_approximately(x);
    return fused(r, fused(-x, r, 1.0f), r);
  }
  static __device__ __forceinline__ Real normal_tail(Real t) {
    // What the rounding of t + c leaves out is given back to its reciprocal.
    constexpr Real c = Constants::normal_centre;
    t = fminf(t, tail_limit);
    Real sum = t + c, sum_low = t - (sum - c);
    Real r = reciprocal_approximately(sum);
    Real r_low = r * fused(-sum_low, r, fused(-sum, r, 1.0f));
    Real p = Constants::normal_tail(fused(-2 * c, r + r_low, 1.0f));
    return fused(p, r, p * r_low);
  }
};

struct Double {
  using Real = double;
  using Constants = Table<Double>;
  static constexpr Real round_to_integer = 0x1.8p52;
  static constexpr Real decay_limit = 800;
  static constexpr Real tail_limit = 40;

  static __device__ __forceinline__ int low_integer(Real shifted) { return __double2loint(shifted); }
  static __device__ __forceinline__ Real power_of_two(int k) { return __hiloint2double((k + 1023) << 20, 0); }
  static __device__ __forceinline__ Real reciprocal(Real x) { return __drcp_rn(x); }
  static __device__ __forceinline__ Real normal_tail(Real t) {
    // The polynomial amplifies an error of its variable: t + c and its reciprocal are carried in two parts.
    constexpr Real c = Constants::normal_centre;
    t = fmin(t, tail_limit);
    Real sum = t + c;
    Real part = sum - t;
    Real sum_low = (t - (sum - part)) + (c - part);
    Real r = reciprocal(sum);
    Real r_low = r * fused(-sum_low, r, fused(-sum, r, 1.0));
    Real y = fused(-2 * c, r_low, fused(-2 * c, r, 1.0));
    Real p = Constants::normal_tail(y);
    return fused(p, r, p * r_low);
  }
};

// Exact makes of one of them what Half has, to the last places: no intermediate cancels or is rounded where it is denormal, and exponents
// are formed in two parts, since rounding an exponent v costs v units in the last place.
template <class Base>
struct Exact : Base {
  using Real = typename Base::Real;
  using Constants = typename Base::Constants;

  // Decay is m 2^k in three factors. A result that falls towards zero with it is formed from m and scaled last, so that it is rounded once
  // where it is denormal.
  struct Decay {
    Real m, e, power1, power2;
    __device__ __forceinline__ Real scale(Real x) const { return x * power1 * power2; }
  };

  static __device__ __forceinline__ Decay decay(Real t) { return decay(t, Real(0)); }

  // decay returns e^-(t+low) for t >= 0 and |low| <= ulp(t), 0 beyond decay_limit, NaN for NaN: -t = r - n ln2 with |r| <= ln2/2.
  static __device__ __forceinline__ Decay decay(Real t, Real low) {
    bool beyond = t > Base::decay_limit;
    if (beyond) t = Base::decay_limit;
    Real shifted = fused(t, Constants::log2_e, Base::round_to_integer);
    Real n = shifted - Base::round_to_integer;
    Real head = fused(n, Constants::ln2, -t);  // exact
    Real tail = fused(n, Constants::ln2_low, -low);
    Real r = head + tail, r_low = tail - (r - head);
    Real m = Real(1) + (r + fused(r * r, Constants::exp_rest(r), r_low));
    if (beyond) m = 0;
    int k = Base::low_integer(shifted), half = k >> 1;
    Decay d = {m, 0, Base::power_of_two(-half), Base::power_of_two(half - k)};
    d.e = d.scale(m);
    return d;
  }

  static __device__ __forceinline__ Decay normal_decay(Real x) {
    Real square = x * x;
    return decay(square / 2, fused(x, x, -square) / 2);
  }

  static __device__ __forceinline__ Decay gelu_tanh_decay(Real x) {
    Real t = magnitude(x), square = t * t;
    Real square_low = fused(t, t, -square);
    Real cubic = Constants::gelu_tanh_c3 * square;
    Real cubic_low = fused(Constants::gelu_tanh_c3, square, -cubic) + fused(Constants::gelu_tanh_c3, square_low, Constants::gelu_tanh_c3_low * square);
    // Either of the two may be the larger: a sum in two parts that holds for both (Knuth, The Art of Computer Programming 2, 4.2.2).
    Real sum = Constants::gelu_tanh_c1 + cubic;
    Real part = sum - Constants::gelu_tanh_c1;
    Real sum_low = (Constants::gelu_tanh_c1 - (sum - part)) + (cubic - part) + (cubic_low + Constants::gelu_tanh_c1_low);
    Real v = t * sum;
    return decay(v, fused(t, sum_low, fused(t, sum, -v)));
  }
};

}  // namespace epigrad
