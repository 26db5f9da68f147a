// The three arithmetics, on the registers of one instruction set: half (float, for the half types),
// single (double, for float32) and exact (double, for float64). engine.h includes it. The formulas
// of activation.h are written on top of it, once for all three.
//
// What every activation is made of has one name in each: a decaying exponential and the normal
// distribution's tail. In half and single an element is rounded visibly once, to its storage; exact
// is good to a few units in the last place.
#pragma once

#include "activation_table.h"

// f_scale_product is a b 2^k, rounded once. It is fast on all processors, also where numbers are
// denormal.
INLINE f_v f_scale_product(f_v a, f_v b, f_v k) {
  return f_rounded(d_scale_normal(d_low(a) * d_low(b), d_low(k)), d_scale_normal(d_high(a) * d_high(b), d_high(k)));
}

// What is summed leaves as doubles.
INLINE void f_store_wide(double *p, f_v x) {
  d_store_real(p, d_low(x));
  d_store_real(p + d_lanes, d_high(x));
}

#define JOIN_NAMES(a, b) a##_##b
#define JOIN(a, b) JOIN_NAMES(a, b)
// V(fma) is f_fma or d_fma, A(decay) is half_decay, single_decay or exact_decay.
#define V(name) JOIN(REGISTERS, name)
#define A(name) JOIN(ARITHMETIC, name)

// A decay is e^-v for v >= 0. Its members are
//
//   e   for sums with 1; zero where it is far too small to change one
//   m   for results that fall towards zero with e^-v; zero where every such result underflows
//
// A formula makes an x from m, and scaled(where, g, x, decay) makes the result from x, times g.
// Lanes outside of the mask `where` are undefined.
//
// Intel's processors are slow where numbers are multiplied that are denormal or become so, and
// where a number is scaled to a denormal one, or to nothing; not where it is converted to one. So
// half takes m for e, unless a lane is far out; there m is e 2^-k, as it is everywhere in exact.
typedef struct {
  f_v m, e, k;
  int far;
} half_decay_t;
typedef struct {
  d_v m, e;
} single_decay_t;
typedef struct {
  d_v m, e, k;
} exact_decay_t;

// Half: float reaches as far down as bfloat16 and has 13 bits more than float16.
#define REGISTERS f
// e^-188, 2^-271, is too small for bfloat16 also times 2^128 and what comes with it; e^-69, 2^-100,
// is nothing beside 1, also times any number that comes with it. What is formed of an m is above
// 2^-6 in the tails, and so normal down to 2^-119.
enum { half_last = 188, half_beside_1 = 69, half_normal_exponent = -119 };
// A result is g x 2^k, rounded once, also where x 2^k is denormal.
INLINE f_v half_scaled(f_m where, f_v g, f_v x, half_decay_t d) {
  if (!d.far) return g * x;
  if (f_any(f_both(where, f_both(f_less(d.k, f_set(half_normal_exponent)), f_less(f_set(0), f_abs(x)))))) return f_scale_product(g, x, d.k);
  return g * f_scale_normal_where(where, x, d.k);
}
INLINE half_decay_t half_decay(f_v t) {
  const f_m near = f_within(t, half_beside_1);
  f_v k = f_round(t * f_set(-half_log2_e));
  f_v r = f_fma(k, f_set(-half_ln2), -t);
  f_v m = f_fma(r * r, half_exp_rest(r), r) + f_set(1), e = f_scale_normal_where(near, m, k);
  if (f_all(near)) return (half_decay_t){e, e, k, 0};
  const f_m beyond = f_less(f_set(half_last), t);
  return (half_decay_t){f_select(beyond, f_set(0), m), e, f_select(beyond, f_set(0), k), 1};
}
INLINE half_decay_t half_normal_decay(f_v x) { return half_decay(x * x * f_set(0.5f)); }
INLINE half_decay_t half_gelu_tanh_decay(f_v x) { return half_decay(f_abs(x) * f_fma(f_set(half_gelu_tanh_c3), x * x, f_set(half_gelu_tanh_c1))); }
INLINE f_v half_tail(f_v t) {
  t = f_min(f_set(64), t);
  f_v r = f_set(1) / (t + f_set(half_normal_centre));
  f_v y = f_fma(f_set(-2 * half_normal_centre), r, f_set(1));
  return half_normal_tail(y) * r;
}
#undef REGISTERS

// Single: no float32 is denormal or overflows here, so nothing needs two parts. Beyond the limit
// every result is zero.
#define REGISTERS d
INLINE d_v single_scaled(d_m where, d_v g, d_v x, single_decay_t d) {
  (void)where, (void)d;
  return g * x;
}
INLINE single_decay_t single_decay(d_v t) {
  const d_v limit = d_set(700);
  d_m beyond = d_less(limit, t);
  t = d_min(limit, t);
  d_v k = d_round(t * d_set(-single_log2_e));
  d_v r = d_fma(k, d_set(-single_ln2), -t);
  d_v e = d_scale_normal(d_fma(r * r, single_exp_rest(r), r) + d_set(1), k);
  e = d_select(beyond, d_set(0), e);
  return (single_decay_t){e, e};
}
INLINE single_decay_t single_normal_decay(d_v x) { return single_decay(x * x * d_set(0.5)); }
INLINE single_decay_t single_gelu_tanh_decay(d_v x) { return single_decay(d_abs(x) * d_fma(d_set(single_gelu_tanh_c3), x * x, d_set(single_gelu_tanh_c1))); }
INLINE d_v single_tail(d_v t) {
  t = d_min(d_set(64), t);
  d_v r = d_set(1) / (t + d_set(single_normal_centre));
  d_v y = d_fma(d_set(-2 * single_normal_centre), r, d_set(1));
  return single_normal_tail(y) * r;
}
#undef REGISTERS

// Exact: exponents are formed in two parts, since rounding an exponent v costs v units in the last
// place.
#define REGISTERS d
// t e^-t is below half of float64's smallest number from 753 on; e^-345, 2^-498, is nothing beside
// 1.
enum { exact_last = 760, exact_beside_1 = 345 };
INLINE d_v d_add(d_v a, d_v b) { return a + b; }
INLINE d_v exact_scaled(d_m where, d_v g, d_v x, exact_decay_t d) {
  (void)where;
  return g * d_scale(x, d.k);
}
// e^-(t+low) for |low| <= ulp(t): -t = r + k ln2 with |r| <= ln2/2.
INLINE exact_decay_t exact_decay_of(d_v t, d_v low) {
  const d_v limit = d_set(exact_last);
  const d_m beyond = d_less(limit, t);
  t = d_min(limit, t);
  d_v k = d_round(t * d_set(-exact_log2_e));
  d_v head = d_fma(k, d_set(-exact_ln2), -t);  // exact
  d_v tail = d_fma(k, d_set(-exact_ln2_low), -low);
  d_v r = head + tail, r_low = tail - (r - head);
  d_v m = d_set(1) + (r + d_fma(r * r, exact_exp_rest(r), r_low));
  m = d_select(beyond, d_set(0), m);
  return (exact_decay_t){m, d_scale_where(d_within(t, exact_beside_1), m, k), k};
}
INLINE exact_decay_t exact_decay(d_v t) { return exact_decay_of(t, d_set(0)); }
INLINE exact_decay_t exact_normal_decay(d_v x) {
  d_v square = x * x;
  return exact_decay_of(square * d_set(0.5), d_fma(x, x, -square) * d_set(0.5));
}
INLINE exact_decay_t exact_gelu_tanh_decay(d_v x) {
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
  return exact_decay_of(v, d_fma(t, sum_low, d_fma(t, sum, -v)));
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
#undef REGISTERS
