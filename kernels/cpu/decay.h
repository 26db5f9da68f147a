// The decay e^-t for t >= 0, for the formulas of activation_decay.h, in three arithmetics: half,
// exact, and wide, which computes in double for float32. Wide needs no second parts, and no lane is
// beyond its formulas: double has 29 bits more than float, and three more of the exponent.
//
// A decay has, for the formulas,
//
//   e              e^-t for sums with 1
//   m, scaled(x)   m and the power of two that scaled multiplies by, together e^-t, for results
//                  that fall towards zero with it; unscaled divides by that power
//   fall           1 - e^-t, without cancellation
//
// A decay that is far below the smallest number is zero, as it is in PyTorch, whatever it is
// multiplied by.
//
// product and quotient are the size t of x by a kind's number; exact also has what t leaves out.
#pragma once

#include "arithmetic.h"
#include "cpu.h"

// Numbers are those of a kind, by value: so stores do not change them, and what is made of them
// leaves the loops.
typedef struct {
  double at[EPG_MOST_PARAMETERS];
} numbers;

INLINE numbers numbers_at(const double *parameters) {
  numbers n;
  memcpy(&n, parameters, sizeof n);
  return n;
}

INLINE double size_of(double x) { return x < 0 ? -x : x; }

typedef struct {
  f_v t, low;
} f_size_t;
typedef struct {
  d_v t, low;
} d_size_t;

// A denormal divisor has no inverse: it and the dividend are multiplied by a power of two before.
// In half such numbers are extraordinary.
INLINE double d_up(double divisor) { return size_of(divisor) < 0x1p-1000 ? 0x1p200 : 1; }
INLINE double f_up(double divisor) { return 1; }

#define f_or_wide f_or_exact
#define d_or_wide d_or_exact

// Half.
typedef struct {
  f_v m, e, power, rest;  // m = e = power (1 + rest)
} half_decay_t;

INLINE half_decay_t half_decay_at(f_size_t x) {
  const f_v t = f_min(f_set(float_last), x.t), k = f_round(t * f_set(-single_log2_e));
  const f_v power = f_power_of_two(k), rest = half_rest(f_fma(k, f_set(-single_ln2), -t)), e = f_fma(power, rest, power);
  return (half_decay_t){e, e, power, rest};
}
INLINE f_v half_fall(half_decay_t d) { return f_fma(-d.power, d.rest, f_set(1) - d.power); }
INLINE f_v half_scaled(f_v x, half_decay_t d) { return x; }
INLINE f_v half_unscaled(f_v x, half_decay_t d) { return half_scaled(x, d); }
INLINE f_v half_scaled_where(f_m mask, f_v x, half_decay_t d) { return half_scaled(x, d); }
INLINE f_size_t half_product(f_v x, double factor) { return (f_size_t){f_abs(x) * f_set(size_of(factor)), f_set(0)}; }
INLINE f_size_t half_quotient(f_v x, double divisor) { return (f_size_t){f_abs(x) * f_set(1 / size_of(divisor)), f_set(0)}; }

// Kinds' numbers for which float formulas do not hold: every lane is left to wide.
INLINE f_m f_extraordinary(double number) {
  const double size = size_of(number);
  return f_less(f_set(0), f_set((size > 0x1p60) | ((size < 0x1p-60) & (size > 0))));
}

// Wide.
typedef struct {
  d_v m, e, power, rest;
} wide_decay_t;

enum { wide_last = 700 };
INLINE wide_decay_t wide_decay_at(d_size_t x) {
  const d_m beyond = d_less(d_set(wide_last), x.t);
  const d_v t = d_min(d_set(wide_last), x.t), k = d_round(t * d_set(-wide_log2_e)), r = d_fma(k, d_set(-wide_ln2), -t);
  const d_v power = d_scale_normal(d_set(1), k), rest = d_fma(r * r, wide_exp_rest(r), r), e = d_select(beyond, d_set(0), d_fma(power, rest, power));
  return (wide_decay_t){e, e, power, rest};
}
INLINE d_v wide_fall(wide_decay_t d) { return d_fma(-d.power, d.rest, d_set(1) - d.power); }
INLINE d_v wide_scaled(d_v x, wide_decay_t d) { return x; }
INLINE d_v wide_unscaled(d_v x, wide_decay_t d) { return wide_scaled(x, d); }
INLINE d_v wide_scaled_where(d_m mask, d_v x, wide_decay_t d) { return wide_scaled(x, d); }
INLINE d_size_t wide_product(d_v x, double factor) { return (d_size_t){d_abs(x) * d_set(size_of(factor)), d_set(0)}; }
// Where the divisor is denormal, its inverse may be infinite, and 0 times it NaN.
INLINE d_size_t wide_quotient(d_v x, double divisor) {
  const double inverse = 1 / size_of(divisor);
  return (d_size_t){d_abs(x) * d_set(inverse < 0x1p1022 ? inverse : 0x1p1022), d_set(0)};
}

// Exact.
INLINE exact_decay_t exact_decay_at(d_size_t x) { return exact_decay_of(x.t, x.low); }
INLINE d_v exact_fall(exact_decay_t d) { return d_fma(-d.power, d.rest, d_set(1) - d.power); }
INLINE d_v exact_scaled(d_v x, exact_decay_t d) { return d_scale(x, d.k); }
INLINE d_v exact_unscaled(d_v x, exact_decay_t d) { return d_scale(x, -d.k); }
INLINE d_v exact_scaled_where(d_m mask, d_v x, exact_decay_t d) { return d_select(mask, d_scale(x, d.k), x); }
// What is left out is nothing where the size is infinite, or beyond every decay.
INLINE d_size_t exact_size(d_v t, d_v low) { return (d_size_t){t, d_select(d_at_most(t, d_set(exact_last)), low, d_set(0))}; }
INLINE d_size_t exact_product(d_v x, double factor) {
  const d_v b = d_set(size_of(factor)), t = d_abs(x) * b;
  return exact_size(t, d_fma(d_abs(x), b, -t));
}
INLINE d_size_t exact_quotient(d_v x, double divisor) {
  const double up = d_up(divisor), size = size_of(divisor) * up;
  const d_v inverse = d_set(1 / size), dividend = d_abs(x) * d_set(up), t = dividend * inverse;
  return exact_size(t, d_fma(-t, d_set(size), dividend) * inverse);
}

// Wide and exact hold for all numbers.
INLINE d_m d_extraordinary(double number) { return d_less(d_set(0), d_set(0)); }
