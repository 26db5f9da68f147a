// The activations that are made of decays (decay.h), by the names of their formulas in
// go/activation, with the functions that activation.h names. A template as that is, for half, wide
// and exact. Single's functions are in activation_single.h.
//
// NaN gives NaN. Infinities follow PyTorch: NaN where its formula has inf*0.

#define Decay A(decay_t)

// factor s(v), with s(v) = 1/(1+e^-v), from e^-|v|. On the left it is factor e/(1+e).
INLINE Real A(logistic_times)(Real factor, V(m) negative, Decay d) {
  return A(scaled_where)(negative, V(select)(negative, factor * d.m, factor) / (C(1) + d.e), d);
}

// swish is x s(v), v = beta x. Its slope is s(v) (1 + v s(-v)).
typedef struct {
  Real v;
  Decay decay;  // e^-|v|
  V(m) beyond;
  numbers n;
} A(swish_t);
INLINE A(swish_t) A(swish_parts)(Real x, numbers n) {
  const V(size_t) size = A(product)(x, n.at[0]);
  const V(m) beyond = V(either)(V(less)(C(float_last), size.t), V(extraordinary)(n.at[0]));
  return (A(swish_t)){C(n.at[0]) * x, A(decay_at)(size), beyond, n};
}
INLINE Real A(swish_value)(Real x, A(swish_t) p) {
  const Real y = A(logistic_times)(x, V(less)(p.v, C(0)), p.decay);
  return V(or_wide)(p.beyond, wide_swish_value_of(x, p.n), y);
}
INLINE Real A(swish_gradient)(Real g, Real x, A(swish_t) p) {
  const V(m) negative = V(less)(p.v, C(0));
  // Where e is zero, the slope is 0 or 1, also if v is infinite; but NaN if x is.
  const Real v = V(select)(V(at_most)(p.decay.m, C(0)), x, p.v), numerator = C(1) + v;
  const Real left = p.decay.m * (numerator + p.decay.e), right = V(fma)(p.decay.e, numerator, C(1));
  const Real slope = V(select)(negative, left, right) / V(fma)(p.decay.e, C(2) + p.decay.e, C(1));
  const Real y = g * A(scaled_where)(negative, slope, p.decay);
  return V(or_wide)(p.beyond, wide_swish_gradient_of(g, x, p.n), y);
}
// beta s'(v) (2 - v tanh(v/2)).
INLINE Real A(swish_curvature)(Real h, Real x, A(swish_t) p) {
  const Real one_plus = C(1) + p.decay.e, bend = V(fma)(-V(abs)(p.v), A(fall)(p.decay) / one_plus, C(2));
  const Real m = p.decay.m * V(select)(V(at_most)(p.decay.m, C(0)), x, bend) / (one_plus * one_plus);
  const Real y = h * A(scaled)(C(p.n.at[0]) * m, p.decay);
  return V(or_wide)(p.beyond, wide_swish_curvature_of(h, x, p.n), y);
}

// elu is scale x where x > 0, else c (e^q - 1), q = x/a. Its gradient is g scale where x > 0 or x
// is NaN, else g (c/a) e^q. A negative a makes e^q grow on the left: it is 1/e^-|q|.
typedef struct {
  Real t;  // |q|, 0 where x > 0
  Decay decay;
  V(m) beyond;
  numbers n;
} A(elu_t);
INLINE A(elu_t) A(elu_parts)(Real x, numbers n) {
  const V(size_t) size = A(quotient)(V(select)(V(less)(C(0), x), C(0), x), n.at[2]);
  V(m) beyond = V(either)(V(less)(C(float_last), size.t), V(extraordinary)(n.at[0]));
  beyond = V(either)(beyond, V(either)(V(extraordinary)(n.at[1]), V(extraordinary)(n.at[2])));
  return (A(elu_t)){size.t, A(decay_at)(size), beyond, n};
}
INLINE Real A(elu_value)(Real x, A(elu_t) p) {
  const Real fall = C(p.n.at[1]) * A(fall)(p.decay);
  Real left = -fall;
  if (p.n.at[2] < 0) left = A(unscaled)(fall / p.decay.m, p.decay);
  // Near 0 it is (c/a) x, also where x/a is denormal.
  left = V(select)(V(less)(p.t, C(0x1p-60f)), C(p.n.at[1] / p.n.at[2]) * x, left);
  const Real y = V(select)(V(less)(C(0), x), C(p.n.at[0]) * x, left);
  return V(or_wide)(p.beyond, wide_elu_value_of(x, p.n), y);
}
INLINE Real A(elu_gradient)(Real g, Real x, A(elu_t) p) {
  const Real ratio = C(p.n.at[1] / p.n.at[2]);
  Real slope = A(scaled)(ratio * p.decay.m, p.decay);
  if (p.n.at[2] < 0) slope = A(unscaled)(ratio / p.decay.m, p.decay);
  const Real y = g * V(select)(V(at_most)(x, C(0)), slope, C(p.n.at[0]));
  return V(or_wide)(p.beyond, wide_elu_gradient_of(g, x, p.n), y);
}
INLINE Real A(elu_curvature)(Real h, Real x, A(elu_t) p) {
  const Real ratio = C(p.n.at[1] / p.n.at[2] / p.n.at[2]);
  Real bend = A(scaled)(ratio * p.decay.m, p.decay);
  if (p.n.at[2] < 0) bend = A(unscaled)(ratio / p.decay.m, p.decay);
  const Real y = V(select)(V(at_most)(x, C(0)), h * bend, C(0));
  return V(or_wide)(p.beyond, wide_elu_curvature_of(h, x, p.n), y);
}

// softplus is x where v > threshold, v = beta x, else log(1+e^v)/beta. With e = e^-|v| it is
//
//   log(1+e)/beta where v < 0, else x + log(1+e)/beta
//   log(1+e) = 2 atanh(e/(2+e))
//
// Its gradient is g where v > threshold, else g s(v).
typedef struct {
  Real v;
  Decay decay;  // e^-|v|
  V(m) beyond;
  numbers n;
} A(softplus_t);
INLINE A(softplus_t) A(softplus_parts)(Real x, numbers n) {
  const Real v = C(n.at[0]) * x;
  return (A(softplus_t)){v, A(decay_at)(A(product)(x, n.at[0])), V(either)(V(less)(v, C(-float_last)), V(extraordinary)(n.at[0])), n};
}
INLINE Real A(softplus_value)(Real x, A(softplus_t) p) {
  const Real r = C(1) / (C(2) + p.decay.e), twice = r + r, s = p.decay.e * r, square = s * s;
  const double up = V(up)(p.n.at[0]);
  // log(1+e) / (e beta)
  const Real factor = V(fma)(twice, square * A(atanh_rest)(square), twice) * C(1 / (p.n.at[0] * up));
  const Real left = A(scaled)(p.decay.m * C(up) * factor, p.decay), right = V(fma)(p.decay.e * C(up), factor, x);
  const Real y = V(select)(V(less)(C(p.n.at[1]), p.v), x, V(select)(V(less)(p.v, C(0)), left, right));
  return V(or_wide)(p.beyond, wide_softplus_value_of(x, p.n), y);
}
INLINE Real A(softplus_gradient)(Real g, Real x, A(softplus_t) p) {
  const Real slope = A(logistic_times)(C(1), V(less)(p.v, C(0)), p.decay);
  const Real y = V(select)(V(less)(C(p.n.at[1]), p.v), g, g * slope);
  return V(or_wide)(p.beyond, wide_softplus_gradient_of(g, x, p.n), y);
}
INLINE Real A(softplus_curvature)(Real h, Real x, A(softplus_t) p) {
  const Real one_plus = C(1) + p.decay.e, bend = A(scaled)(C(p.n.at[0]) * p.decay.m / (one_plus * one_plus), p.decay);
  const V(m) straight = V(less)(C(p.n.at[1]), p.v), beyond = V(either)(p.beyond, V(less)(C(float_last), p.v));
  const Real y = V(select)(straight, C(0), h * bend);
  return V(or_wide)(beyond, wide_softplus_curvature_of(h, x, p.n), y);
}

// mish is x tanh(log(1+e^x)). With e = e^-|x| it is
//
//   x w/(w+2),  w = e (2+e)           where x < 0
//   x n/d,  n = 1+2e,  d = n+2e^2     elsewhere
//
// and its slopes are (e (2+e) (w+2) + 4 x e (1+e)) / (w+2)^2 and (n d + 4 x e^2 (1+e)) / d^2. With
// t = tanh(log(1+e^x)), its curvatures are
//
//   8e ((1+e) + x (1/2 - e t)) / (w+2)^2  and  8e^2 ((1+e) + x (e/2 - t)) / d^2
typedef struct {
  Decay decay;  // e^-|x|
  V(m) beyond;
} A(mish_t);
INLINE A(mish_t) A(mish_parts)(Real x, numbers n) {
  const V(m) beyond = V(either)(V(less)(x, C(-float_last)), V(less)(C(float_large), x));
  return (A(mish_t)){A(decay_at)((V(size_t)){V(abs)(x), C(0)}), beyond};
}
INLINE Real A(mish_value)(Real x, A(mish_t) p) {
  const V(m) negative = V(less)(x, C(0));
  const Real e = p.decay.e, top = C(2) + e, n = V(fma)(C(2), e, C(1));
  const Real numerator = V(select)(negative, p.decay.m * top, n), denominator = V(select)(negative, V(fma)(e, top, C(2)), V(fma)(e + e, e, n));
  const Real y = A(scaled_where)(negative, x * numerator / denominator, p.decay);
  return V(or_wide)(p.beyond, wide_mish_value_of(x, (numbers){{0}}), y);
}
INLINE Real A(mish_gradient)(Real g, Real x, A(mish_t) p) {
  const V(m) negative = V(less)(x, C(0));
  const Real e = p.decay.e, w = e * (C(2) + e), n = V(fma)(C(2), e, C(1)), square = e * e, d = V(fma)(square, C(2), n);
  // A quarter of the numerators, since 4x may overflow. The left one is 1+x and what e adds, and
  // its denominator 4 and what e adds: where e is small they round once.
  const Real left = p.decay.m * V(fma)(e, V(fma)(e, V(fma)(C(0.25f), e, C(1)), C(1.5f)) + x, C(1) + x);
  const Real right = V(fma)(square, V(fma)(x, e, x), C(0.25f) * n * d);
  const Real slope = C(4) * V(select)(negative, left, right) / V(select)(negative, V(fma)(w, w + C(4), C(4)), d * d);
  const Real y = g * A(scaled_where)(negative, slope, p.decay);
  return V(or_wide)(p.beyond, wide_mish_gradient_of(g, x, (numbers){{0}}), y);
}
INLINE Real A(mish_curvature)(Real h, Real x, A(mish_t) p) {
  const V(m) negative = V(less)(x, C(0));
  const Real e = p.decay.e, w = e * (C(2) + e), n = V(fma)(C(2), e, C(1)), d = V(fma)(e * e, C(2), n);
  const Real denominator = V(select)(negative, w + C(2), d), t = V(select)(negative, w, n) / denominator;
  const Real bend = V(select)(negative, V(fma)(-e, t, C(0.5f)), V(fma)(C(0.5f), e, -t));
  const Real once = A(scaled)(C(8) * p.decay.m * V(fma)(x, bend, C(1) + e) / (denominator * denominator), p.decay);
  const Real y = h * V(select)(negative, once, A(scaled)(p.decay.m * once, p.decay));
  const V(m) beyond = V(either)(p.beyond, V(less)(C(float_last), x));
  return V(or_wide)(beyond, wide_mish_curvature_of(h, x, (numbers){{0}}), y);
}

// softcap is cap tanh(q), q = x/cap. With e = e^-2|q| its size is cap (1-e)/(1+e), and its slope
// 4e/(1+e)^2.
typedef struct {
  Real t;       // |q|
  Decay decay;  // e^-2|q|
  V(m) beyond;
  numbers n;
} A(softcap_t);
INLINE A(softcap_t) A(softcap_parts)(Real x, numbers n) {
  const V(size_t) size = A(quotient)(x, n.at[0]);
  const Real twice = C(2) * size.t;
  const V(m) beyond = V(either)(V(less)(C(float_last), twice), V(extraordinary)(n.at[0]));
  return (A(softcap_t)){size.t, A(decay_at)((V(size_t)){twice, C(2) * size.low}), beyond, n};
}
// Near 0 it is x, also where x/cap is denormal.
INLINE Real A(softcap_of)(Real x, A(softcap_t) p) {
  const Real size = C(p.n.at[0]) * (A(fall)(p.decay) / (C(1) + p.decay.e));
  return V(with_sign)(V(select)(V(less)(p.t, C(0x1p-28f)), V(abs)(x), size), x);
}
INLINE Real A(softcap_slope)(A(softcap_t) p) { return A(scaled)(C(4) * p.decay.m / V(fma)(p.decay.e, C(2) + p.decay.e, C(1)), p.decay); }
INLINE Real A(softcap_value)(Real x, A(softcap_t) p) {
  const Real y = A(softcap_of)(x, p);
  return V(or_wide)(p.beyond, wide_softcap_value_of(x, p.n), y);
}
INLINE Real A(softcap_gradient)(Real g, Real x, A(softcap_t) p) {
  const Real y = g * A(softcap_slope)(p);
  return V(or_wide)(p.beyond, wide_softcap_gradient_of(g, x, p.n), y);
}
INLINE Real A(softcap_bend)(Real x, A(softcap_t) p) {
  const Real one_plus = C(1) + p.decay.e, cube = one_plus * one_plus * one_plus;
  return -V(with_sign)(A(scaled)(C(8 / p.n.at[0]) * p.decay.m * A(fall)(p.decay) / cube, p.decay), x);
}
INLINE Real A(softcap_curvature)(Real h, Real x, A(softcap_t) p) {
  const Real y = h * A(softcap_bend)(x, p);
  return V(or_wide)(p.beyond, wide_softcap_curvature_of(h, x, p.n), y);
}

// situ's gate is y s(x), y = cap tanh(x/cap). Its slope is
//
//   s(x) (y' + y s(-x))
//
// and its curvature s(x) (y'' + s(-x) (2y' - y tanh(x/2))).
typedef struct {
  A(softcap_t) cap;
  Decay decay;  // e^-|x|
  V(m) beyond;
} A(situ_gate_t);
INLINE A(situ_gate_t) A(situ_gate_parts)(Real x, numbers n) {
  const A(softcap_t) cap = A(softcap_parts)(x, n);
  return (A(situ_gate_t)){cap, A(decay_at)((V(size_t)){V(abs)(x), C(0)}), V(either)(cap.beyond, V(less)(C(float_last), V(abs)(x)))};
}
INLINE Real A(situ_gate_value)(Real x, A(situ_gate_t) p) {
  const Real y = A(logistic_times)(A(softcap_of)(x, p.cap), V(less)(x, C(0)), p.decay);
  return V(or_wide)(p.beyond, wide_situ_gate_value_of(x, p.cap.n), y);
}
INLINE Real A(situ_gate_gradient)(Real g, Real x, A(situ_gate_t) p) {
  const V(m) negative = V(less)(x, C(0));
  const Real r = C(1) / (C(1) + p.decay.e), other = V(select)(negative, r, p.decay.e * r);
  const Real sum = V(fma)(A(softcap_of)(x, p.cap), other, A(softcap_slope)(p.cap));
  const Real y = g * A(scaled_where)(negative, V(select)(negative, p.decay.m, C(1)) * (r * sum), p.decay);
  return V(or_wide)(p.beyond, wide_situ_gate_gradient_of(g, x, p.cap.n), y);
}
INLINE Real A(situ_gate_curvature)(Real h, Real x, A(situ_gate_t) p) {
  const V(m) negative = V(less)(x, C(0));
  const Real r = C(1) / (C(1) + p.decay.e), other = V(select)(negative, r, p.decay.e * r);
  const Real falling = V(fma)(-V(abs)(A(softcap_of)(x, p.cap)), A(fall)(p.decay) * r, C(2) * A(softcap_slope)(p.cap));
  const Real sum = V(fma)(falling, other, A(softcap_bend)(x, p.cap));
  const Real y = h * A(scaled_where)(negative, V(select)(negative, p.decay.m, C(1)) * (r * sum), p.decay);
  return V(or_wide)(p.beyond, wide_situ_gate_curvature_of(h, x, p.cap.n), y);
}

#undef ARITHMETIC
