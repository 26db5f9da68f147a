// The activations, by the names of their rows in go/activation, with the formulas of
// kernels/portable/activation.go. A template with the parameter ARITHMETIC (arithmetic.h), which
// engine.h includes.
//
// An activation has these functions:
//
//   parts(x, n)                  what its value and its slope share: above all an exponential; n are
//                                the kind's numbers (go/activation/kernel.go)
//   value(x, parts)              act(x)
//   gradient(g, x, parts)        g act'(x)
//   curvature(h, x, parts)       h act''(x), for gradients of gradients
//   gradient_from_output(g, y)   g act'(x) from y = act(x), where act'(x) is a function of y
//   curvature_from_output(h, y)  h times the derivative of that function
//
// gradient is a selection where the activation is piecewise linear, so that relu'(x) = 0 also stops
// an infinite or NaN g. Results of smooth ones are V(or_exact): lanes that are beyond the float
// formulas come from exact's functions, those of gelu from wide's.
//
// NaN gives NaN. Infinities follow PyTorch: NaN where its formula has inf*0. So gelu, gelu_tanh and
// silu are NaN at -inf, and their slopes are NaN at both infinities.
//
// To add one, add its four functions, six where the slope follows from the output. `make
// generate` lists what has a row. One that is made of decays belongs into activation_decay.h.
#include "formulas.h"

// Real is a register of the arithmetic.
#define Real V(v)
#define Logistic V(logistic_t)
#define Normal A(normal_t)
#define C(x) V(set)(x)

// none is x.
INLINE int A(none_parts)(Real x, numbers n) { return 0; }
INLINE Real A(none_value)(Real x, int parts) { return x; }
INLINE Real A(none_gradient)(Real g, Real x, int parts) { return g; }
INLINE Real A(none_curvature)(Real h, Real x, int parts) { return C(0); }

// relu is max(x, 0); -0 and NaN pass. Its gradient is g where x > 0 or x is NaN, else 0; the output
// serves as x equally well.
INLINE int A(relu_parts)(Real x, numbers n) { return A(none_parts)(x, n); }
INLINE Real A(relu_value)(Real x, int parts) { return V(select)(V(less)(x, C(0)), C(0), x); }
INLINE Real A(relu_gradient_from_output)(Real g, Real y) { return V(select)(V(at_most)(y, C(0)), C(0), g); }
INLINE Real A(relu_gradient)(Real g, Real x, int parts) { return A(relu_gradient_from_output)(g, x); }
INLINE Real A(relu_curvature)(Real h, Real x, int parts) { return C(0); }
INLINE Real A(relu_curvature_from_output)(Real h, Real y) { return C(0); }

// leaky_relu is x where x > 0, else slope x, as for a NaN. Its gradient is g where x > 0, else
// slope g.
INLINE Real A(leaky_relu_parts)(Real x, numbers n) { return C(n.at[0]); }
INLINE Real A(leaky_relu_gradient)(Real g, Real x, Real slope) { return V(select)(V(less)(C(0), x), g, slope * g); }
INLINE Real A(leaky_relu_value)(Real x, Real slope) { return A(leaky_relu_gradient)(x, x, slope); }
INLINE Real A(leaky_relu_curvature)(Real h, Real x, Real slope) { return C(0); }

// relu2 is max(x, 0)^2. Its gradient is 2 g x where x > 0 or x is NaN, else 0.
INLINE int A(relu2_parts)(Real x, numbers n) { return A(none_parts)(x, n); }
INLINE Real A(relu2_value)(Real x, int parts) {
  const Real positive = A(relu_value)(x, parts);
  return positive * positive;
}
INLINE Real A(relu2_gradient)(Real g, Real x, int parts) { return A(relu_gradient)(g * (C(2) * x), x, parts); }
INLINE Real A(relu2_curvature)(Real h, Real x, int parts) { return A(relu_gradient)(C(2) * h, x, parts); }

// hardswish is x min(max(x+3, 0), 6)/6. Its gradient is 0 where x <= -3, g where x >= 3 or x is
// NaN, else g (2x+3)/6.
INLINE int A(hardswish_parts)(Real x, numbers n) { return A(none_parts)(x, n); }
INLINE Real A(hardswish_value)(Real x, int parts) {
  const Real inner = x * (x + C(3)) / C(6);
  return V(select)(V(at_most)(x, C(-3)), x * C(0), V(select)(V(at_most)(C(3), x), x, inner));
}
INLINE Real A(hardswish_gradient)(Real g, Real x, int parts) {
  const Real inner = g * (V(fma)(C(2), x, C(3)) / C(6));
  return V(select)(V(at_most)(x, C(-3)), C(0), V(select)(V(less)(x, C(3)), inner, g));
}
INLINE Real A(hardswish_curvature)(Real h, Real x, int parts) { return V(select)(V(less)(V(abs)(x), C(3)), h / C(3), C(0)); }

// hardsigmoid is min(max(x+3, 0), 6)/6. Its gradient is g/6 where -3 < x < 3, else 0.
INLINE int A(hardsigmoid_parts)(Real x, numbers n) { return A(none_parts)(x, n); }
INLINE Real A(hardsigmoid_value)(Real x, int parts) { return V(select)(V(at_most)(x, C(-3)), C(0), V(select)(V(at_most)(C(3), x), C(1), (x + C(3)) / C(6))); }
INLINE Real A(hardsigmoid_gradient)(Real g, Real x, int parts) { return V(select)(V(less)(V(abs)(x), C(3)), g / C(6), C(0)); }
INLINE Real A(hardsigmoid_curvature)(Real h, Real x, int parts) { return C(0); }

// hardtanh is min(max(x, low), high). Its gradient is 0 where x <= low or x >= high, else g.
typedef struct {
  Real low, high;
} A(hardtanh_t);
INLINE A(hardtanh_t) A(hardtanh_parts)(Real x, numbers n) { return (A(hardtanh_t)){C(n.at[0]), C(n.at[1])}; }
INLINE Real A(hardtanh_value)(Real x, A(hardtanh_t) p) { return V(select)(V(less)(x, p.low), p.low, V(select)(V(less)(p.high, x), p.high, x)); }
INLINE Real A(hardtanh_gradient)(Real g, Real x, A(hardtanh_t) p) { return V(select)(V(either)(V(at_most)(x, p.low), V(at_most)(p.high, x)), C(0), g); }
INLINE Real A(hardtanh_curvature)(Real h, Real x, A(hardtanh_t) p) { return C(0); }

// sigmoid is 1/(1+e^-x).
INLINE Logistic A(sigmoid_parts)(Real x, numbers n) { return A(logistic)(x); }
INLINE Real A(sigmoid_value)(Real x, Logistic p) {
  const Real y = V(logistic_value)(C(1), p);
  return V(or_exact)(p.beyond, exact_sigmoid_value_of(x), y);
}
INLINE Real A(sigmoid_gradient)(Real g, Real x, Logistic p) {
  const Real y = A(logistic_slope)(g, C(1), p);
  return V(or_exact)(p.beyond, exact_sigmoid_gradient_of(g, x), y);
}
INLINE Real A(sigmoid_curvature)(Real h, Real x, Logistic p) {
  const Real y = A(logistic_slope)(h, -V(with_sign)(A(logistic_difference)(p), x), p);
  return V(or_exact)(p.beyond, exact_sigmoid_curvature_of(h, x), y);
}
INLINE Real A(sigmoid_gradient_from_output)(Real g, Real y) { return g * (y * (C(1) - y)); }
INLINE Real A(sigmoid_curvature_from_output)(Real h, Real y) { return h * V(fma)(C(-2), y, C(1)); }

// silu is x sigmoid(x).
INLINE Logistic A(silu_parts)(Real x, numbers n) { return A(logistic)(x); }
INLINE Real A(silu_value)(Real x, Logistic p) {
  const Real y = V(logistic_value)(x, p);
  return V(or_exact)(p.beyond, exact_silu_value_of(x), y);
}
INLINE Real A(silu_gradient)(Real g, Real x, Logistic p) {
  const Real y = A(logistic_product_slope)(g, x, p);
  return V(or_exact)(p.beyond, exact_silu_gradient_of(g, x), y);
}
INLINE Real A(silu_curvature)(Real h, Real x, Logistic p) {
  const Real y = A(logistic_slope)(h, A(product_bend)(x, p), p);
  return V(or_exact)(p.beyond, exact_silu_curvature_of(h, x), y);
}

// gelu_tanh is
//
//   x (1 + tanh(u))/2 = x sigmoid(v)
//   v = 2u = c1 x + c3 x^3,  c1 = 2 sqrt(2/pi),  c3 = 0.044715 c1
INLINE Logistic A(gelu_tanh_parts)(Real x, numbers n) { return A(cubic_logistic)(x); }
INLINE Real A(gelu_tanh_value)(Real x, Logistic p) {
  const Real y = V(logistic_value)(x, p);
  return V(or_exact)(p.beyond, exact_gelu_tanh_value_of(x), y);
}
INLINE Real A(gelu_tanh_gradient)(Real g, Real x, Logistic p) {
  const Real y = A(cubic_product_slope)(g, x, p);
  return V(or_exact)(p.beyond, exact_gelu_tanh_gradient_of(g, x), y);
}
// Its curvature falls towards zero on both sides, as that of gelu does.
INLINE Real A(gelu_tanh_curvature)(Real h, Real x, Logistic p) {
  const Real y = A(logistic_slope)(h, A(cubic_bend)(x, p), p);
  const V(m) beyond = V(less)(C(cubic_last), V(abs)(x));
  return V(or_exact)(beyond, exact_gelu_tanh_curvature_of(h, x), y);
}

// gelu is x Phi(x), with Phi(-t) = e^(-t^2/2) W(t).
INLINE Normal A(gelu_parts)(Real x, numbers n) { return A(normal)(x); }
INLINE Real A(gelu_value)(Real x, Normal p) {
  const Real y = A(normal_product)(x, p);
  return V(or_wide)(p.beyond, wide_gelu_value_of(x, (numbers){{0}}), y);
}
INLINE Real A(gelu_gradient)(Real g, Real x, Normal p) {
  const Real y = A(normal_product_slope)(g, x, p);
  return V(or_wide)(p.beyond, wide_gelu_gradient_of(g, x, (numbers){{0}}), y);
}
INLINE Real A(gelu_curvature)(Real h, Real x, Normal p) {
  const Real y = A(normal_curvature)(h, x, p);
  const V(m) beyond = V(less)(C(normal_last), V(abs)(x));
  return V(or_wide)(beyond, wide_gelu_curvature_of(h, x, (numbers){{0}}), y);
}

// tanh(x) is sigmoid(2x) - sigmoid(-2x). Its slope is 4 sigmoid'(2x).
INLINE Logistic A(tanh_parts)(Real x, numbers n) { return A(logistic)(C(2) * V(abs)(x)); }
INLINE Real A(tanh_value)(Real x, Logistic p) {
  const Real y = V(with_sign)(A(logistic_difference)(p), x);
  return V(or_exact)(p.beyond, exact_tanh_value_of(x), y);
}
INLINE Real A(tanh_gradient)(Real g, Real x, Logistic p) {
  const Real y = A(logistic_slope)(g, C(4), p);
  return V(or_exact)(p.beyond, exact_tanh_gradient_of(g, x), y);
}
INLINE Real A(tanh_curvature)(Real h, Real x, Logistic p) {
  const Real y = A(logistic_slope)(h, C(-8) * V(with_sign)(A(logistic_difference)(p), x), p);
  return V(or_exact)(p.beyond, exact_tanh_curvature_of(h, x), y);
}
INLINE Real A(tanh_gradient_from_output)(Real g, Real y) { return g * ((C(1) - y) * (C(1) + y)); }
INLINE Real A(tanh_curvature_from_output)(Real h, Real y) { return h * (C(-2) * y); }

#undef ARITHMETIC
