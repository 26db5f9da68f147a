// The three arithmetics, on the registers of one instruction set: half (float, for the half types),
// single (float, for float32) and exact (double, for float64). engine.h includes it. The formulas
// of activation.h are written on top of it, once for all three.
//
// Half rounds where a half type does not see it. Single is good to 2 units in the last place, and
// exact to 4, so both carry what roundings leave out where it would be seen: a _low belongs to the
// number of the same name.
//
// Smooth activations are made of two functions, whose names are the same in each:
//
//   logistic    sigma(v) = 1/(1+e^-v), for v = x or for gelu_tanh's v
//   normal      Phi(x), the normal distribution
//
// Each has its parts, which a value and a slope share.
#pragma once

#include "activation_table.h"

// What an element takes, of a dtype and of a register.
enum { f32_bytes = 4, f64_bytes = 8, bf16_bytes = 2, f16_bytes = 2, f_bytes = 4, d_bytes = 8 };

// f_scale_product is a b 2^k, rounded once. It is fast on all processors, also where numbers are
// denormal.
INLINE f_v f_scale_product(f_v a, f_v b, f_v k) {
  return f_rounded(d_scale_normal(d_low(a) * d_low(b), d_low(k)), d_scale_normal(d_high(a) * d_high(b), d_high(k)));
}

INLINE void f_store_wide(double *p, f_v x) {
  d_store_real(p, d_low(x));
  d_store_real(p + d_lanes, d_high(x));
}

// A template is a header that is included once for each value of its parameter, a macro, which it
// undefines. With the parameter ARITHMETIC, A(normal) is half_normal, single_normal or
// exact_normal, and V(fma) is f_fma or d_fma, of the arithmetic's registers.
#define JOIN_NAMES(a, b) a##_##b
#define JOIN(a, b) JOIN_NAMES(a, b)
#define A(name) JOIN(ARITHMETIC, name)
#define V(name) JOIN(A(registers), name)
#define half_registers f
#define single_registers f
#define wide_registers d
#define exact_registers d

// A(store_wide) stores results for sums, from the element i on. Those of float32 leave as doubles.
INLINE void half_store_wide(void *p, int64_t i, f_v x) { f_store_real((float *)p + i, x); }
INLINE void single_store_wide(void *p, int64_t i, f_v x) { f_store_wide((double *)p + i, x); }
INLINE void wide_store_wide(void *p, int64_t i, d_v x) { d_store_real((double *)p + i, x); }
INLINE void exact_store_wide(void *p, int64_t i, d_v x) { wide_store_wide(p, i, x); }

// Float formulas hold where no result is denormal: up to e^-69, 2^-100. Lanes beyond, infinities
// among them, are computed in double. A NaN is not beyond.
typedef struct {
  f_v v, power, rest;  // e^-v = power (1 + rest)
  f_m beyond;
} f_logistic_t;
typedef struct {
  f_v t, power, rest;  // t = |x|, e^(-t^2/2) = power (1 + rest)
  f_v tail;            // W(t) = Phi(-t) e^(t^2/2)
  f_m beyond;
} half_normal_t;
typedef struct {
  f_v piece, u;  // |x| is u behind the centre of its piece
  f_m beyond;
} single_normal_t;

#define f_or_exact(beyond, exact, result) (__builtin_expect(f_any(beyond), 0) ? f_select(beyond, exact, result) : (result))
#define d_or_exact(beyond, exact, result) (result)

enum { float_last = 69 };
// From here on v of gelu_tanh, and t^2/2 of gelu, come near to float_last.
static const float cubic_last = 9, normal_last = 11.5f;
// Beyond it are infinities and what is as good as one.
static const float float_large = 0x1p60f;

INLINE f_m f_outside(f_v x, float low, float high) { return f_either(f_less(x, f_set(low)), f_less(f_set(high), x)); }

INLINE f_v f_logistic_value(f_v factor, f_logistic_t p) { return factor / (f_fma(p.power, p.rest, f_set(1)) + p.power); }

// Half: float has 16 bits more than bfloat16 and 13 more than float16.
// e^u = 1 + rest for |u| <= ln2/2.
INLINE f_v half_rest(f_v u) { return f_fma(u * u, half_exp_rest(u), u); }
INLINE f_logistic_t half_logistic(f_v v) {
  const f_v k = f_round(v * f_set(-single_log2_e)), u = f_fma(k, f_set(-single_ln2), -v);
  return (f_logistic_t){v, f_power_of_two(k), half_rest(u), f_less(f_set(float_last), f_abs(v))};
}
INLINE f_logistic_t half_cubic_logistic(f_v x) {
  const f_v least = f_min(f_set(cubic_last), x);
  f_logistic_t p = half_logistic(least * f_fma(f_set(single_gelu_tanh_c3), least * least, f_set(single_gelu_tanh_c1)));
  p.beyond = f_outside(x, -cubic_last, float_large);
  return p;
}
// sigma(v) and sigma(-v).
typedef struct {
  f_v value, other;
} half_logistic_pair_t;
INLINE half_logistic_pair_t half_logistic_pair(f_logistic_t p) {
  const f_v e = f_fma(p.power, p.rest, p.power), value = f_set(1) / (f_set(1) + e);
  return (half_logistic_pair_t){value, e * value};
}
// tanh(v/2) = sigma(v) - sigma(-v), without cancellation: where v is small, power is 1.
INLINE f_v half_logistic_difference(f_logistic_t p) { return f_fma(-p.power, p.rest, f_set(1) - p.power) / f_fma(p.power, p.rest, f_set(1) + p.power); }
// g factor sigma'(v).
INLINE f_v half_logistic_slope(f_v g, f_v factor, f_logistic_t p) {
  const half_logistic_pair_t s = half_logistic_pair(p);
  return g * (factor * s.value * s.other);
}
// g sigma(v) (1 + x v' sigma(-v)).
INLINE f_v half_product_slope(f_v g, f_v x_v_slope, f_logistic_t p) {
  const half_logistic_pair_t s = half_logistic_pair(p);
  return g * (f_fma(x_v_slope, s.other, f_set(1)) * s.value);
}
INLINE f_v half_logistic_product_slope(f_v g, f_v x, f_logistic_t p) { return half_product_slope(g, x, p); }
INLINE f_v half_cubic_product_slope(f_v g, f_v x, f_logistic_t p) {
  x = f_min(f_set(cubic_last), x);
  return half_product_slope(g, x * f_fma(f_set(single_gelu_tanh_3c3), x * x, f_set(single_gelu_tanh_c1)), p);
}
// What sigma'(v) has as a factor in the second derivatives of x sigma(v): of v = x, and of
// gelu_tanh's v. x^2 is in the term that falls.
INLINE f_v half_product_bend(f_v x, f_logistic_t p) { return f_fma(-f_abs(x), f_abs(half_logistic_difference(p)), f_set(2)); }
INLINE f_v half_cubic_bend(f_v x, f_logistic_t p) {
  const f_v square = x * x, v_slope = f_fma(f_set(single_gelu_tanh_3c3), square, f_set(single_gelu_tanh_c1));
  const f_v rising = f_fma(f_set(4 * single_gelu_tanh_3c3), square, f_set(2 * single_gelu_tanh_c1));
  return f_fma(-f_abs(x) * v_slope * v_slope, f_abs(half_logistic_difference(p)), rising);
}

INLINE half_normal_t half_normal(f_v x) {
  const f_v t = f_min(f_set(normal_last), f_abs(x)), square = t * t;
  const f_v k = f_round(square * f_set(-0.5f * single_log2_e)), u = f_fma(k, f_set(-single_ln2), square * f_set(-0.5f));
  const f_v r = f_set(1) / (t + f_set(half_normal_centre)), y = f_fma(f_set(-2 * half_normal_centre), r, f_set(1));
  return (half_normal_t){t, f_power_of_two(k), half_rest(u), half_normal_tail(y) * r, f_outside(x, -normal_last, float_large)};
}
// x Phi(x) = max(x, 0) - t Phi(-t).
INLINE f_v half_normal_product(f_v x, half_normal_t p) {
  return f_fma(-(p.t * p.power), f_fma(p.rest, p.tail, p.tail), f_select(f_less(x, f_set(0)), f_set(0), x));
}
// Phi(x) + x phi(x) is on the left e^(-t^2/2) (W(t) - t/sqrt(2 pi)), and on the right 1 minus that.
INLINE f_v half_normal_product_slope(f_v g, f_v x, half_normal_t p) {
  const f_v difference = f_fma(-p.t, f_set(single_inv_sqrt_2pi), p.tail), left = f_fma(p.rest, difference, difference);
  return g * f_select(f_less(x, f_set(0)), p.power * left, f_fma(-p.power, left, f_set(1)));
}
// h phi(x) (2 - x^2).
INLINE f_v half_normal_curvature(f_v h, f_v x, half_normal_t p) {
  return h * (f_fma(p.power, p.rest, p.power) * f_set(single_inv_sqrt_2pi) * f_fma(-x, x, f_set(2)));
}

// Single: exponents are formed in two parts, since rounding an exponent v costs v units in the last
// place. ln2_high and gelu_tanh_c1_high have so few bits that products with an exponent, and
// differences, are exact.
INLINE f_v single_rest(f_v u) { return f_fma(u * u, single_exp_rest(u), u); }
// Of v + low.
INLINE f_logistic_t single_logistic_of(f_v v, f_v low) {
  const f_v k = f_round(v * f_set(-single_log2_e)), head = f_fma(k, f_set(-single_ln2_high), -v);
  return (f_logistic_t){v, f_power_of_two(k), single_rest(f_fma(k, f_set(-single_ln2_rest), head) - low), f_less(f_set(float_last), f_abs(v))};
}
INLINE f_logistic_t single_logistic(f_v v) { return single_logistic_of(v, f_set(0)); }
INLINE f_logistic_t single_cubic_logistic(f_v x) {
  const f_m beyond = f_outside(x, -cubic_last, float_large);
  const f_v c3 = f_set(single_gelu_tanh_c3), c1_high = f_set(single_gelu_tanh_c1_high);
  x = f_min(f_set(cubic_last), x);
  const f_v square = x * x, square_low = f_fma(x, x, -square), sum = f_fma(c3, square, c1_high);
  f_v low = f_fma(c3, square, c1_high - sum) + f_set(single_gelu_tanh_c1_rest);
  low = f_fma(f_set(single_gelu_tanh_c3_low), square, f_fma(c3, square_low, low));
  const f_v v = x * sum, k = f_round(v * f_set(-single_log2_e));
  const f_v head = f_fma(-x, sum, k * f_set(-single_ln2_high)), rest = f_fma(-x, low, k * f_set(-single_ln2_rest));
  return (f_logistic_t){v, f_power_of_two(k), single_rest(head + rest), beyond};
}
typedef struct {
  f_v value, value_low, other;
} single_logistic_pair_t;
INLINE single_logistic_pair_t single_logistic_pair(f_logistic_t p) {
  const f_v one = f_set(1), head = one + p.power, sum = f_fma(p.power, p.rest, head);
  const f_v sum_low = f_fma(p.power, p.rest, (head - sum) + (one - (head - p.power)));
  const f_v value = one / sum, value_low = value * f_fma(-value, sum_low, f_fma(-value, sum, one));
  return (single_logistic_pair_t){value, value_low, p.power * (value + f_fma(p.rest, value, f_fma(p.rest, value_low, value_low)))};
}
INLINE f_v single_logistic_difference(f_logistic_t p) {
  const f_v one = f_set(1), minus = one - p.power, plus = one + p.power;
  const f_v difference = f_fma(-p.power, p.rest, minus), difference_low = f_fma(-p.power, p.rest, minus - difference);
  const f_v sum = f_fma(p.power, p.rest, plus), sum_low = f_fma(p.power, p.rest, plus - sum);
  const f_v r = one / sum, quotient = difference * r;
  return f_fma(f_fma(-quotient, sum_low, f_fma(-quotient, sum, difference) + difference_low), r, quotient);
}
INLINE f_v single_logistic_slope(f_v g, f_v factor, f_logistic_t p) {
  const single_logistic_pair_t s = single_logistic_pair(p);
  return g * (factor * f_fma(s.other, s.value, s.other * s.value_low));
}
// g sigma(v) (1 + z sigma(-v)), where z = x v' has the sign of v. On the left the sum is
// 1 + z - z sigma(v), since sigma(-v) is near 1 there and sigma(v) has more digits. With `carried`,
// z has two parts, and the sum's rounding is carried too.
INLINE f_v single_product_slope(f_v g, f_v z, f_v z_low, int carried, f_logistic_t p) {
  const single_logistic_pair_t s = single_logistic_pair(p);
  const f_v zero = f_set(0), one = f_set(1), size = f_abs(z);
  const f_m negative = f_less(p.v, zero);
  const f_v tail = f_select(negative, s.value, s.other), head = f_select(negative, one + z, one);
  const f_v sum = f_fma(size, tail, head);
  f_v head_low = z - (head - one);
  if (carried) head_low += z_low;
  f_v sum_low = f_select(negative, head_low, zero);
  if (carried) sum_low += f_fma(size, tail, head - sum);
  return g * f_fma(sum, s.value, f_fma(sum, s.value_low, sum_low * s.value));
}
INLINE f_v single_logistic_product_slope(f_v g, f_v x, f_logistic_t p) { return single_product_slope(g, x, f_set(0), 0, p); }
INLINE f_v single_cubic_product_slope(f_v g, f_v x, f_logistic_t p) {
  const f_v c1 = f_set(single_gelu_tanh_c1), c3 = f_set(single_gelu_tanh_3c3);
  x = f_min(f_set(cubic_last), x);
  const f_v square = x * x, v_slope = f_fma(c3, square, c1);
  const f_v v_slope_low = f_fma(c3, f_fma(x, x, -square), f_fma(c3, square, c1 - v_slope));
  const f_v z = x * v_slope;
  return single_product_slope(g, z, f_fma(x, v_slope_low, f_fma(x, v_slope, -z)), 1, p);
}
INLINE f_v single_product_bend(f_v x, f_logistic_t p) { return f_fma(-f_abs(x), f_abs(single_logistic_difference(p)), f_set(2)); }
INLINE f_v single_cubic_bend(f_v x, f_logistic_t p) { return half_cubic_bend(x, p); }

// t Phi(-t) and its slope are polynomials of u in pieces, which round less than products with an
// exponential. A sum with 2^23 is an integer: a piece's number is its lowest bits.
INLINE single_normal_t single_normal(f_v x) {
  const f_v t = f_min(f_set(single_normal_last), f_abs(x));
  const f_v piece = f_fma(t, f_fma(t, f_set(single_normal_square), f_set(single_normal_bend)), f_set(0x1p23f));
  return (single_normal_t){piece, t - f_lookup(single_normal_centres, piece), f_outside(x, -single_normal_last, float_large)};
}
// start - y, where the polynomial y begins with its first number, and the difference with both.
INLINE f_v single_less_piece(f_v start, const float (*powers)[single_normal_pieces], single_normal_t p) {
  f_v y = f_lookup(powers[single_normal_degree], p.piece);
  UNROLL for (int power = single_normal_degree - 1; power; power--) y = f_fma(p.u, y, f_lookup(powers[power], p.piece));
  return f_fma(-p.u, y, start - f_lookup(powers[0], p.piece));
}
INLINE f_v single_normal_product(f_v x, single_normal_t p) {
  return single_less_piece(f_select(f_less(x, f_set(0)), f_set(0), x), single_normal_product_powers, p);
}
INLINE f_v single_normal_product_slope(f_v g, f_v x, single_normal_t p) {
  const f_m negative = f_less(x, f_set(0));
  return f_select(negative, -g, g) * single_less_piece(f_select(negative, f_set(0), f_set(1)), single_normal_slope_powers, p);
}
// The exponent -t^2/2 is formed in two parts.
INLINE f_v single_normal_curvature(f_v h, f_v x, single_normal_t p) {
  (void)p;
  const f_v t = f_min(f_set(normal_last), f_abs(x)), square = t * t, square_low = f_fma(t, t, -square);
  const f_v k = f_round(square * f_set(-0.5f * single_log2_e)), power = f_power_of_two(k);
  const f_v head = f_fma(k, f_set(-2 * single_ln2_high), -square), low = f_fma(k, f_set(-2 * single_ln2_rest), -square_low);
  const f_v rest = single_rest(f_set(0.5f) * (head + low));
  return h * (f_fma(power, rest, power) * f_set(single_inv_sqrt_2pi) * f_fma(-x, x, f_set(2)));
}

// Exact: a decay is e^-v for v >= 0. Its members are
//
//   e      for sums with 1; zero where it is far too small to change one
//   m, k   m 2^k, for results that fall towards zero with e^-v; m is zero where every such result
//          underflows
//   power, rest
//          e^-v = power (1 + rest); power is zero where e is
//
// Exponents are formed in two parts.
typedef struct {
  d_v m, e, k, power, rest;
} exact_decay_t;
typedef struct {
  d_v v;
  exact_decay_t decay;  // e^-|v|
} d_logistic_t;
typedef struct {
  exact_decay_t decay;
  d_v tail;
} exact_normal_t;
// t e^-t is below half of float64's smallest number from 753 on; e^-345, 2^-498, is nothing beside
// 1.
enum { exact_last = 760, exact_beside_1 = 345 };
INLINE d_v d_add(d_v a, d_v b) { return a + b; }
// e^-(t+low) for |low| <= ulp(t): -t = r + k ln2 with |r| <= ln2/2.
INLINE exact_decay_t exact_decay_of(d_v t, d_v low) {
  const d_v limit = d_set(exact_last);
  const d_m beyond = d_less(limit, t);
  t = d_min(limit, t);
  d_v k = d_round(t * d_set(-exact_log2_e));
  d_v head = d_fma(k, d_set(-exact_ln2), -t);  // exact
  d_v tail = d_fma(k, d_set(-exact_ln2_low), -low);
  d_v r = head + tail, r_low = tail - (r - head);
  d_v rest = r + d_fma(r * r, exact_exp_rest(r), r_low);
  d_v m = d_select(beyond, d_set(0), d_set(1) + rest);
  d_m beside_1 = d_within(t, exact_beside_1);
  return (exact_decay_t){m, d_scale_where(beside_1, m, k), k, d_select(beside_1, d_scale_normal(d_set(1), k), d_set(0)), rest};
}
INLINE d_logistic_t exact_logistic(d_v v) { return (d_logistic_t){v, exact_decay_of(d_abs(v), d_set(0))}; }
INLINE d_logistic_t exact_cubic_logistic(d_v x) {
  // Farther out the square would overflow; its decay is zero from 24 on.
  d_v t = d_min(d_set(64), d_abs(x)), square = t * t;
  d_v square_low = d_fma(t, t, -square);
  d_v cubic = d_set(exact_gelu_tanh_c3) * square;
  d_v cubic_low = d_fma(d_set(exact_gelu_tanh_c3), square, -cubic);
  cubic_low = cubic_low + d_fma(d_set(exact_gelu_tanh_c3), square_low, d_set(exact_gelu_tanh_c3_low) * square);
  // Either of the two may be the larger: a sum in two parts that holds for both (Knuth, The Art of
  // Computer Programming 2, 4.2.2).
  const d_v c1 = d_set(exact_gelu_tanh_c1);
  d_v sum = c1 + cubic, part = sum - c1;
  d_v sum_low = (c1 - (sum - part)) + (cubic - part) + (cubic_low + d_set(exact_gelu_tanh_c1_low));
  d_v v = t * sum;
  return (d_logistic_t){d_with_sign(v, x), exact_decay_of(v, d_fma(t, sum_low, d_fma(t, sum, -v)))};
}
// The square of 1 + e, which is 1 + e (2+e).
INLINE d_v exact_square_of_1_plus(d_v e) { return d_fma(e, d_set(2) + e, d_set(1)); }
// On the left sigma(v) is e/(1+e): 1 less the right without its cancellation.
INLINE d_v d_logistic_value(d_v factor, d_logistic_t p) {
  const d_m negative = d_less(p.v, d_set(0));
  const d_v value = d_select(negative, factor * p.decay.m, factor) / (d_set(1) + p.decay.e);
  return d_select(negative, d_scale(value, p.decay.k), value);
}
// tanh(|v|/2) is 1 - 2 sigma(-|v|), and a polynomial near 0, where that cancels.
INLINE d_v exact_logistic_difference(d_logistic_t p) {
  const d_v t = d_abs(p.v) * d_set(0.5), square = t * t;
  const d_v near = d_fma(t, square * exact_tanh_rest(square), t);
  const d_v far = d_set(1) - d_set(2) * p.decay.e / (d_set(1) + p.decay.e);
  return d_select(d_less(t, d_set(exact_tanh_near)), near, far);
}
INLINE d_v exact_logistic_slope(d_v g, d_v factor, d_logistic_t p) { return g * d_scale(factor * p.decay.m / exact_square_of_1_plus(p.decay.e), p.decay.k); }
// g sigma(v) (1 + x v' sigma(-v)), over one denominator. At infinities it is NaN: x e = inf*0.
INLINE d_v exact_product_slope(d_v g, d_v x, d_v v_slope, d_logistic_t p) {
  const d_m negative = d_less(p.v, d_set(0));
  const d_v numerator = d_fma(x, v_slope, d_set(1));
  const d_v left = p.decay.m * (numerator + p.decay.e), right = d_fma(p.decay.e, numerator, d_set(1));
  const d_v slope = d_select(negative, left, right) / exact_square_of_1_plus(p.decay.e);
  return g * d_select(negative, d_scale(slope, p.decay.k), slope);
}
INLINE d_v exact_logistic_product_slope(d_v g, d_v x, d_logistic_t p) { return exact_product_slope(g, x, d_set(1), p); }
INLINE d_v exact_cubic_product_slope(d_v g, d_v x, d_logistic_t p) {
  // Where e is zero the slope is the limit, and NaN at infinities; the cube of a large x would
  // overflow to an infinity of its own.
  const d_v v_slope = d_fma(d_set(exact_gelu_tanh_3c3), x * x, d_set(exact_gelu_tanh_c1));
  return exact_product_slope(g, x, d_select(d_at_most(p.decay.m, d_set(0)), d_set(1), v_slope), p);
}
INLINE d_v exact_product_bend(d_v x, d_logistic_t p) { return d_fma(-d_abs(x), exact_logistic_difference(p), d_set(2)); }
// Where e is zero, x is what stays finite with it.
INLINE d_v exact_cubic_bend(d_v x, d_logistic_t p) {
  const d_v square = x * x, v_slope = d_fma(d_set(exact_gelu_tanh_3c3), square, d_set(exact_gelu_tanh_c1));
  const d_v rising = d_fma(d_set(4 * exact_gelu_tanh_3c3), square, d_set(2 * exact_gelu_tanh_c1));
  return d_select(d_at_most(p.decay.m, d_set(0)), x, d_fma(-d_abs(x) * v_slope * v_slope, exact_logistic_difference(p), rising));
}

INLINE d_v exact_tail(d_v t) {
  // The polynomial amplifies an error of its variable: t + c and its reciprocal are carried in two
  // parts.
  const d_v c = d_set(exact_normal_centre), one = d_set(1);
  t = d_min(d_set(40), t);
  d_v sum = t + c, part = sum - t;
  d_v sum_low = (t - (sum - part)) + (c - part);
  d_v r = one / sum;
  d_v r_low = r * d_fma(-sum_low, r, d_fma(-sum, r, one));
  d_v y = d_fma(d_set(-2 * exact_normal_centre), r_low, d_fma(d_set(-2 * exact_normal_centre), r, one));
  d_v p = exact_normal_tail(y);
  return d_fma(p, r, p * r_low);
}
INLINE exact_normal_t exact_normal(d_v x) {
  const d_v square = x * x;
  return (exact_normal_t){exact_decay_of(square * d_set(0.5), d_fma(x, x, -square) * d_set(0.5)), exact_tail(d_abs(x))};
}
INLINE d_v exact_normal_product(d_v x, exact_normal_t p) {
  const d_v left = d_scale(x * (p.decay.m * p.tail), p.decay.k), right = x * (d_set(1) - p.decay.e * p.tail);
  return d_select(d_less(x, d_set(0)), left, right);
}
INLINE d_v exact_normal_product_slope(d_v g, d_v x, exact_normal_t p) {
  const d_v tail = p.tail - d_abs(x) * d_set(exact_inv_sqrt_2pi);
  const d_v left = g * d_scale(p.decay.m * tail, p.decay.k), right = g * (d_set(1) - p.decay.e * tail);
  return d_select(d_less(x, d_set(0)), left, right);
}
INLINE d_v exact_normal_curvature(d_v h, d_v x, exact_normal_t p) {
  const d_v bend = d_select(d_at_most(p.decay.m, d_set(0)), x, d_fma(-x, x, d_set(2)));
  return h * d_scale(d_set(exact_inv_sqrt_2pi) * p.decay.m * bend, p.decay.k);
}
