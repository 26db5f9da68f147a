// The activations, by the names of their rows in go/activation, with the formulas of
// kernels/portable/activation.go. engine.h includes it once for each arithmetic (arithmetic.h),
// with ARITHMETIC and REGISTERS set.
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
// an infinite or NaN g.
//
// NaN gives NaN. Infinities follow PyTorch: NaN where its formula has inf*0. So gelu, gelu_tanh and
// silu are NaN at -inf, and their slopes are NaN at both infinities.
//
// To add one, add its three functions, four where the slope follows from the output, and its name
// to a list.
#ifndef EPG_FOR_EACH_ACTIVATION
#define EPG_FOR_EACH_ACTIVATION_FROM_OUTPUT(macro) macro(relu) macro(sigmoid) macro(tanh)
#define EPG_FOR_EACH_ACTIVATION(macro)       \
  EPG_FOR_EACH_ACTIVATION_FROM_OUTPUT(macro) \
  macro(none) macro(gelu) macro(gelu_tanh) macro(silu) macro(leaky_relu) macro(relu2)
#endif

// Real is a register of the arithmetic, Decay its e^-v.
#define Real V(v)
#define Decay A(decay_t)
#define C(x) V(set)(x)
// The kind's parameters, of which most have none.
#define PARAMETERS __attribute__((unused)) const double *parameters

typedef struct {
  Decay decay;
  Real tail;
} A(gelu_parts_t);

// none is x.
INLINE int A(none_parts)(Real x, PARAMETERS) {
  (void)x;
  return 0;
}
INLINE Real A(none_value)(Real x, int parts) {
  (void)parts;
  return x;
}
INLINE Real A(none_gradient)(Real g, Real x, int parts) {
  (void)x, (void)parts;
  return g;
}

// relu is max(x, 0); -0 and NaN pass. Its gradient is g where x > 0 or x is NaN, else 0; the output
// serves as x equally well.
INLINE int A(relu_parts)(Real x, PARAMETERS) { return A(none_parts)(x, parameters); }
INLINE Real A(relu_value)(Real x, int parts) {
  (void)parts;
  return V(select)(V(less)(x, C(0)), C(0), x);
}
INLINE Real A(relu_gradient_from_output)(Real g, Real y) { return V(select)(V(at_most)(y, C(0)), C(0), g); }
INLINE Real A(relu_gradient)(Real g, Real x, int parts) {
  (void)parts;
  return A(relu_gradient_from_output)(g, x);
}

// leaky_relu is x where x > 0, else slope x, as for a NaN. Its gradient is g where x > 0, else
// slope g.
INLINE Real A(leaky_relu_parts)(Real x, PARAMETERS) {
  (void)x;
  return C(parameters[0]);
}
INLINE Real A(leaky_relu_gradient)(Real g, Real x, Real slope) { return V(select)(V(less)(C(0), x), g, slope * g); }
INLINE Real A(leaky_relu_value)(Real x, Real slope) { return A(leaky_relu_gradient)(x, x, slope); }

// relu2 is max(x, 0)^2. Its gradient is 2 g x where x > 0 or x is NaN, else 0.
INLINE int A(relu2_parts)(Real x, PARAMETERS) { return A(none_parts)(x, parameters); }
INLINE Real A(relu2_value)(Real x, int parts) {
  const Real positive = A(relu_value)(x, parts);
  return positive * positive;
}
INLINE Real A(relu2_gradient)(Real g, Real x, int parts) { return A(relu_gradient)(g * (C(2) * x), x, parts); }

// The square of 1 + e, which is 1 + e (2+e).
INLINE Real A(square_of_1_plus)(Real e) { return V(fma)(e, C(2) + e, C(1)); }

// gelu is x Phi(x), with Phi(-t) = e^(-t^2/2) W(t). Its slope is Phi(x) + x phi(x): on the left
//
//   e^(-t^2/2) (W(t) - t/sqrt(2 pi)),  t = |x|
//
// and on the right 1 minus that.
INLINE A(gelu_parts_t) A(gelu_parts)(Real x, PARAMETERS) { return (A(gelu_parts_t)){A(normal_decay)(x), A(tail)(V(abs)(x))}; }
INLINE Real A(gelu_value)(Real x, A(gelu_parts_t) p) {
  V(m) negative = V(less)(x, C(0));
  Real left = A(scaled)(negative, C(1), x * (p.decay.m * p.tail), p.decay), right = x * (C(1) - p.decay.e * p.tail);
  return V(select)(negative, left, right);
}
INLINE Real A(gelu_gradient)(Real g, Real x, A(gelu_parts_t) p) {
  V(m) negative = V(less)(x, C(0));
  Real tail = p.tail - V(abs)(x) * C(A(inv_sqrt_2pi));
  return V(select)(negative, A(scaled)(negative, g, p.decay.m * tail, p.decay), g * (C(1) - p.decay.e * tail));
}

// sigmoid is 1/(1+e) on the right and e/(1+e) on the left, e = e^-|x|: 1 - sigmoid without its
// cancellation. Its slope is e/(1+e)^2.
INLINE Decay A(sigmoid_parts)(Real x, PARAMETERS) { return A(decay)(V(abs)(x)); }
INLINE Real A(sigmoid_value)(Real x, Decay decay) {
  V(m) negative = V(less)(x, C(0));
  Real r = V(select)(negative, decay.m, C(1)) / (C(1) + decay.e);
  return V(select)(negative, A(scaled)(negative, C(1), r, decay), r);
}
INLINE Real A(sigmoid_gradient)(Real g, Real x, Decay decay) {
  (void)x;
  return A(scaled)(V(everywhere)(), g, decay.m / A(square_of_1_plus)(decay.e), decay);
}
INLINE Real A(sigmoid_gradient_from_output)(Real g, Real y) { return g * (y * (C(1) - y)); }

// sigmoid_product is x sigmoid(v) for a v with the sign of x, given e^-|v|.
INLINE Real A(sigmoid_product)(Real x, Decay decay) {
  V(m) negative = V(less)(x, C(0));
  Real product = V(select)(negative, x * decay.m, x) / (C(1) + decay.e);
  return V(select)(negative, A(scaled)(negative, C(1), product, decay), product);
}

// sigmoid_product_gradient is g times the derivative of x sigmoid(v), where v is odd and grows with
// x:
//
//   sigmoid(v) (1 + x v' sigmoid(-v))
//
// over one denominator. At infinities it is NaN: x e = inf*0.
INLINE Real A(sigmoid_product_gradient)(Real g, Real x, Real v_slope, Decay decay) {
  V(m) negative = V(less)(x, C(0));
  Real numerator = V(fma)(x, v_slope, C(1));
  Real left = decay.m * (numerator + decay.e), right = V(fma)(decay.e, numerator, C(1));
  Real slope = V(select)(negative, left, right) / A(square_of_1_plus)(decay.e);
  return V(select)(negative, A(scaled)(negative, g, slope, decay), g * slope);
}

// silu is x sigmoid(x).
INLINE Decay A(silu_parts)(Real x, PARAMETERS) { return A(decay)(V(abs)(x)); }
INLINE Real A(silu_value)(Real x, Decay decay) { return A(sigmoid_product)(x, decay); }
INLINE Real A(silu_gradient)(Real g, Real x, Decay decay) { return A(sigmoid_product_gradient)(g, x, C(1), decay); }

// gelu_tanh is
//
//   x (1 + tanh(u))/2 = x sigmoid(v)
//   v = 2u = c1 x + c3 x^3,  c1 = 2 sqrt(2/pi),  c3 = 0.044715 c1
INLINE Decay A(gelu_tanh_parts)(Real x, PARAMETERS) { return A(gelu_tanh_decay)(x); }
INLINE Real A(gelu_tanh_value)(Real x, Decay decay) { return A(sigmoid_product)(x, decay); }
INLINE Real A(gelu_tanh_gradient)(Real g, Real x, Decay decay) {
  // Where e is zero the slope is the limit, and NaN at infinities; the cube of a large x would
  // overflow to an infinity of its own.
  Real v_slope = V(fma)(C(A(gelu_tanh_3c3)), x * x, C(A(gelu_tanh_c1)));
  v_slope = V(select)(V(at_most)(decay.m, C(0)), C(1), v_slope);
  return A(sigmoid_product_gradient)(g, x, v_slope, decay);
}

// tanh is 1 - 2e/(1+e), e = e^(-2|x|), with the sign of x, and a polynomial near 0, where that
// cancels. Its slope is 4e/(1+e)^2.
INLINE Decay A(tanh_parts)(Real x, PARAMETERS) { return A(decay)(C(2) * V(abs)(x)); }
INLINE Real A(tanh_value)(Real x, Decay decay) {
  Real t = V(abs)(x), square = t * t;
  Real near = V(fma)(t, square * A(tanh_rest)(square), t);
  Real far = C(1) - C(2) * decay.e / (C(1) + decay.e);
  return V(with_sign)(V(select)(V(less)(t, C(A(tanh_near))), near, far), x);
}
INLINE Real A(tanh_gradient)(Real g, Real x, Decay decay) {
  (void)x;
  return A(scaled)(V(everywhere)(), g, C(4) * decay.m / A(square_of_1_plus)(decay.e), decay);
}
INLINE Real A(tanh_gradient_from_output)(Real g, Real y) { return g * ((C(1) - y) * (C(1) + y)); }

#undef Real
#undef Decay
#undef C
#undef PARAMETERS
