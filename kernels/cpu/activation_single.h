// Single's activations of decays (activation_decay.h): swish and softcap in float, the others by
// wide's functions on both halves of a register; and wide's gelu. engine.h includes it.
#pragma once

#define FOR_EACH_IN_WIDE(macro) macro(elu) macro(softplus) macro(mish) macro(situ_gate)
#define FOR_EACH_IN_FLOAT(macro) macro(swish) macro(softcap) macro(gelu)

// gelu (activation.h) far from 0, where gradients of up to 2^128 make a slope of 1e-83 visible.
typedef struct {
  d_v tail;  // W(|x|)
  wide_decay_t decay;
} wide_gelu_t;
INLINE wide_gelu_t wide_gelu_parts(d_v x, numbers n) {
  const d_v t = d_min(d_set(wide_normal_last), d_abs(x)), r = d_set(1) / (t + d_set(wide_normal_centre));
  const d_v y = d_fma(d_set(-2 * wide_normal_centre), r, d_set(1));
  return (wide_gelu_t){wide_normal_tail(y) * r, wide_decay_at((d_size_t){x * x * d_set(0.5), d_set(0)})};
}
INLINE d_v wide_gelu_value(d_v x, wide_gelu_t p) {
  const d_v left = p.decay.e * p.tail;
  return x * d_select(d_less(x, d_set(0)), left, d_set(1) - left);
}
INLINE d_v wide_gelu_gradient(d_v g, d_v x, wide_gelu_t p) {
  const d_v left = p.decay.e * d_fma(d_abs(x), d_set(-wide_inv_sqrt_2pi), p.tail);
  return g * d_select(d_less(x, d_set(0)), left, d_set(1) - left);
}

INLINE d_v wide_gelu_curvature(d_v h, d_v x, wide_gelu_t p) {
  const d_v bend = d_select(d_at_most(p.decay.e, d_set(0)), x, d_fma(-x, x, d_set(2)));
  return h * (d_set(wide_inv_sqrt_2pi) * p.decay.e * bend);
}

// Wide's functions of floats, for lanes that are beyond the float formulas. They are calls, since
// such lanes are few.
#define WIDE_OF(act)                                                                                                              \
  TARGET static __attribute__((noinline, cold)) f_v wide_##act##_value_of(f_v x, numbers n) {                                     \
    const d_v low = d_low(x), high = d_high(x);                                                                                   \
    return f_rounded(wide_##act##_value(low, wide_##act##_parts(low, n)), wide_##act##_value(high, wide_##act##_parts(high, n))); \
  }                                                                                                                               \
  WIDE_TIMES(act, gradient)                                                                                                       \
  WIDE_TIMES(act, curvature)
#define WIDE_TIMES(act, of)                                                                                                                          \
  TARGET static __attribute__((noinline, cold)) f_v wide_##act##_##of##_of(f_v g, f_v x, numbers n) {                                                \
    const d_v low = d_low(x), high = d_high(x);                                                                                                      \
    return f_rounded(wide_##act##_##of(d_low(g), low, wide_##act##_parts(low, n)), wide_##act##_##of(d_high(g), high, wide_##act##_parts(high, n))); \
  }
FOR_EACH_IN_WIDE(WIDE_OF)
FOR_EACH_IN_FLOAT(WIDE_OF)

#define SINGLE_OF(act)                                                                                                                                         \
  typedef struct {                                                                                                                                             \
    wide_##act##_t low, high;                                                                                                                                  \
  } single_##act##_t;                                                                                                                                          \
  INLINE single_##act##_t single_##act##_parts(f_v x, numbers n) {                                                                                             \
    return (single_##act##_t){wide_##act##_parts(d_low(x), n), wide_##act##_parts(d_high(x), n)};                                                              \
  }                                                                                                                                                            \
  INLINE f_v single_##act##_value(f_v x, single_##act##_t p) { return f_rounded(wide_##act##_value(d_low(x), p.low), wide_##act##_value(d_high(x), p.high)); } \
  SINGLE_TIMES(act, gradient)                                                                                                                                  \
  SINGLE_TIMES(act, curvature)
#define SINGLE_TIMES(act, of)                                                                                        \
  INLINE f_v single_##act##_##of(f_v g, f_v x, single_##act##_t p) {                                                 \
    return f_rounded(wide_##act##_##of(d_low(g), d_low(x), p.low), wide_##act##_##of(d_high(g), d_high(x), p.high)); \
  }
FOR_EACH_IN_WIDE(SINGLE_OF)

// What a float leaves out of a number.
INLINE f_v single_low(double number) { return f_set(number - (float)number); }

typedef struct {
  f_logistic_t logistic;  // of v = beta x
  f_v v_low;
  numbers n;
} single_swish_t;
INLINE single_swish_t single_swish_parts(f_v x, numbers n) {
  const f_v beta = f_set(n.at[0]), v = beta * x, low = f_fma(single_low(n.at[0]), x, f_fma(beta, x, -v));
  f_logistic_t p = single_logistic_of(v, low);
  p.beyond = f_either(p.beyond, f_extraordinary(n.at[0]));
  return (single_swish_t){p, low, n};
}
INLINE f_v single_swish_value(f_v x, single_swish_t p) {
  const f_v y = f_logistic_value(x, p.logistic);
  return f_or_wide(p.logistic.beyond, wide_swish_value_of(x, p.n), y);
}
INLINE f_v single_swish_gradient(f_v g, f_v x, single_swish_t p) {
  const f_v y = single_product_slope(g, p.logistic.v, p.v_low, 1, p.logistic);
  return f_or_wide(p.logistic.beyond, wide_swish_gradient_of(g, x, p.n), y);
}
INLINE f_v single_swish_curvature(f_v h, f_v x, single_swish_t p) {
  const f_v y = single_logistic_slope(h, f_set(p.n.at[0]) * single_product_bend(p.logistic.v, p.logistic), p.logistic);
  return f_or_wide(p.logistic.beyond, wide_swish_curvature_of(h, x, p.n), y);
}

// tanh(q) is sigma(2q) - sigma(-2q), and its slope 4 sigma'(2q).
typedef struct {
  f_logistic_t logistic;  // of 2|q|, q = x/cap
  numbers n;
} single_softcap_t;
INLINE single_softcap_t single_softcap_parts(f_v x, numbers n) {
  const f_v size = f_abs(x), cap = f_set(n.at[0]), inverse = f_set(1 / n.at[0]), q = size * inverse;
  const f_v low = f_fma(-q, single_low(n.at[0]), f_fma(-q, cap, size)) * inverse;
  f_logistic_t p = single_logistic_of(q + q, low + low);
  p.beyond = f_either(p.beyond, f_extraordinary(n.at[0]));
  return (single_softcap_t){p, n};
}
// Near 0 it is x + x (tanh(q)/q - 1), of which x is exact.
INLINE f_v single_softcap_value(f_v x, single_softcap_t p) {
  const f_v size = f_abs(x), q = f_set(0.5f) * p.logistic.v, square = q * q, tanh = single_logistic_difference(p.logistic);
  const f_v near = f_fma(size, square * single_tanh_rest(square), size);
  const f_v far = f_fma(tanh, f_set(p.n.at[0]), tanh * single_low(p.n.at[0]));
  const f_v y = f_with_sign(f_select(f_less(q, f_set(single_tanh_near)), near, far), x);
  return f_or_wide(p.logistic.beyond, wide_softcap_value_of(x, p.n), y);
}
INLINE f_v single_softcap_gradient(f_v g, f_v x, single_softcap_t p) {
  const f_v y = single_logistic_slope(g, f_set(4), p.logistic);
  return f_or_wide(p.logistic.beyond, wide_softcap_gradient_of(g, x, p.n), y);
}
INLINE f_v single_softcap_curvature(f_v h, f_v x, single_softcap_t p) {
  const f_v bend = f_set(-8 / p.n.at[0]) * f_with_sign(single_logistic_difference(p.logistic), x);
  return f_or_wide(p.logistic.beyond, wide_softcap_curvature_of(h, x, p.n), single_logistic_slope(h, bend, p.logistic));
}
