// The activations: for each row NAME of go/activation
//
//   value_NAME(x)                     act(x)
//   gradient_NAME(g, x)               g act'(x)
//   gradient_from_output_NAME(g, y)   the same from y = act(x), where act'(x) is a function of y
//
// The formulas are those of kernels/portable/activation.go, in float32. They are right to a few
// units in the last place of the result, tails included. NaN gives NaN. Infinities follow PyTorch:
// NaN where its formula has inf*0.
//
// Products that are added to something are written as fma. Without it a compiler may fuse the two
// in one kernel and not in the next. A compiler may also round fma twice: code that must be exact
// is exact either way. APPROXIMATE says that results are stored in 16 bits: there 16 correct bits,
// tails included, are enough.
//
// To add one, add its functions. Its parameters are params.parameters, in the order of its row.
#include numbers
#include activation_table

// Decay is e^-v for v >= 0: m times scale, which is a power of two, or 16 bits' root. A result that
// falls towards zero with it is formed from m and scaled last, so that it is rounded once where it
// is denormal.
struct Decay { m: f32, scale: f32 }

fn whole(d: Decay) -> f32 { return d.m * d.scale; } // where 1 is added
fn one_and(d: Decay) -> f32 { return fma(d.m, d.scale, 1.0); }

#if $APPROXIMATE
// From where on the roots are zero.
const decay_limit = 220.0f;
const normal_limit = 21.0f;
const gelu_tanh_limit = 15.0f;

// exponential is 2^2p for p <= 0, as the square of its root: no power of two is needed to form what
// is denormal.
fn exponential(p: f32) -> Decay {
  let root = exp2(p);
  return Decay(root, root);
}

fn decay(magnitude: f32) -> Decay { return exponential(limited(magnitude, decay_limit) * (-0.5 * log2_e)); }

fn normal_decay(magnitude: f32) -> Decay {
  let t = limited(magnitude, normal_limit);
  return exponential((t * t) * (-0.25 * log2_e));
}

fn gelu_tanh_decay(magnitude: f32) -> Decay {
  let t = limited(magnitude, gelu_tanh_limit);
  return exponential(t * fma(-0.5 * log2_e * gelu_tanh_c3, t * t, -0.5 * log2_e * gelu_tanh_c1));
}

// normal_tail is W(t) = Phi(-t) e^(t^2/2) for t >= 0, while it is not multiplied by zero.
fn normal_tail(magnitude: f32) -> f32 {
  let r = 1.0 / (limited(magnitude, normal_limit) + rough_normal_centre);
  return rough_normal_tail_times(r) * r;
}
#else
// From where on these are zero after rounding: t e^-t, t e^(-t^2/2), and t e^-v with gelu_tanh's v.
const decay_limit = 110.0f;
const normal_limit = 15.0f;
const gelu_tanh_limit = 11.0f;

// exponential is 2^h e^r for |r| <= ln2/2; nothing where it would be below 2^-158.
fn exponential(h: Whole, r: f32, nothing: bool) -> Decay {
  let deep = h.whole < -100;
  let m = power_of_two(select(h.whole, h.whole + 64, deep)) * (1.0 + fma(r * r, exp_rest(r), r));
  return Decay(select(m, 0.0, nothing), select(1.0, 0x1p-64f, deep));
}

fn decay(magnitude: f32) -> Decay {
  let t = limited(magnitude, decay_limit);
  let h = nearest_whole(t * -log2_e);
  let r = fma(-h.x, ln2_high, -t); // exact, as ln2_high has few bits
  return exponential(h, fma(-h.x, ln2_rest, r), t >= decay_limit);
}

// normal_decay is e^(-t^2/2). The square is formed in two parts: rounding an exponent v costs v
// units in the last place.
fn normal_decay(magnitude: f32) -> Decay {
  let t = limited(magnitude, normal_limit);
  let high = head(t);
  let low = (t - high) * (t + high);
  let h = nearest_whole((t * t) * (-0.5 * log2_e));
  let r = fma(-h.x, ln2_high, -0.5 * (high * high));
  return exponential(h, fma(-0.5, low, fma(-h.x, ln2_rest, r)), t >= normal_limit);
}

// gelu_tanh_decay is e^-v for v = c1 t + c3 t^3 = t (c1 + c3 t^2), each factor in two parts.
fn gelu_tanh_decay(magnitude: f32) -> Decay {
  let t = limited(magnitude, gelu_tanh_limit);
  let t_high = head(t);
  let square = t * t;
  let q_high = head(square);
  let q_low = fma(t - t_high, t + t_high, fma(t_high, t_high, -q_high));
  let s = fma(gelu_tanh_c3, square, gelu_tanh_c1);
  let s_high = head(s);
  let s_low = fma(gelu_tanh_c3_high, q_high, gelu_tanh_c1_high - s_high) + fma(gelu_tanh_c3_high, q_low, fma(gelu_tanh_c3_low, square, gelu_tanh_c1_low));
  let product = t_high * s_high;
  let rest = fma(t_high, s_low, (t - t_high) * s);
  let h = nearest_whole((t * s) * -log2_e);
  let r = fma(-h.x, ln2_high, -product);
  return exponential(h, fma(-h.x, ln2_rest, r) - rest, t >= gelu_tanh_limit);
}

// normal_tail is W(t) = Phi(-t) e^(t^2/2) for 0 <= t <= 15.
fn normal_tail(magnitude: f32) -> f32 {
  let t = limited(magnitude, normal_limit);
  let sum = t + normal_centre;
  let r = 1.0 / sum;
  return quotient(normal_tail_times(quotient(t - normal_centre, sum, r)), sum, r);
}
#end

fn value_none(x: f32) -> f32 { return x; }
fn gradient_none(g: f32, x: f32) -> f32 { return g; }

// relu is max(x, 0); -0 and NaN pass. Its gradient is g where x > 0 or x is NaN, else 0; the output
// serves as x equally well.
fn value_relu(x: f32) -> f32 { return select(x, 0.0, is_negative(x)); }
fn gradient_relu(g: f32, x: f32) -> f32 { return select(0.0, g, is_positive(x) || is_nan(x)); }
fn gradient_from_output_relu(g: f32, y: f32) -> f32 { return gradient_relu(g, y); }

// leaky_relu is x where x > 0, else slope x, as for a NaN. Its gradient is g where x > 0, else
// slope g.
fn value_leaky_relu(x: f32) -> f32 { return gradient_leaky_relu(x, x); }
fn gradient_leaky_relu(g: f32, x: f32) -> f32 { return select(params.parameters.x * g, g, is_positive(x)); }

// relu2 is max(x, 0)^2. Its gradient is 2 g x where x > 0 or x is NaN, else 0.
fn value_relu2(x: f32) -> f32 { return value_relu(x) * value_relu(x); }
fn gradient_relu2(g: f32, x: f32) -> f32 { return gradient_relu(g * (2.0 * x), x); }

// gelu is x Phi(x), with Phi(-t) = e^(-t^2/2) W(t). Its slope is Phi(x) + x phi(x): on the left
//
//   e^(-t^2/2) (W(t) - t/sqrt(2 pi)),  t = |x|
//
// and on the right 1 minus that.
//
// On the left roundings add up to 9.6 x 2^-24 of the value at most, in float32: 2.4 of the decay
// (0.6 of its exponent, 0.8 of e^r - 1, 1 of the sum with 1), 5.2 of W (1.3 of t + c, 0.8 of the
// polynomial's argument, 2.1 of the polynomial, 1 of the quotient), and one of each product.
// Nothing else here has as many.
fn value_gelu(x: f32) -> f32 {
  let d = normal_decay(abs(x));
  let tail = d.m * normal_tail(abs(x));
  let y = select(x * fma(-tail, d.scale, 1.0), (x * tail) * d.scale, is_negative(x));
  return with_limits(x, y, nan_bits, infinity_bits);
}
fn gradient_gelu(g: f32, x: f32) -> f32 {
  let d = normal_decay(abs(x));
  let tail = d.m * fma(-limited(abs(x), normal_limit), inv_sqrt_2pi, normal_tail(abs(x)));
  return g * with_limits(x, select(fma(-tail, d.scale, 1.0), tail * d.scale, is_negative(x)), nan_bits, nan_bits);
}

// sigmoid is 1/(1+e) on the right and e/(1+e) on the left, e = e^-|x|: 1 - sigmoid without its
// cancellation. Its slope is e/(1+e)^2.
fn value_sigmoid(x: f32) -> f32 {
  let d = decay(abs(x));
  let left = is_negative(x);
  let y = divided(select(1.0, d.m, left), one_and(d)) * select(1.0, d.scale, left);
  return with_limits(x, y, 0u, one_bits);
}
fn gradient_sigmoid(g: f32, x: f32) -> f32 {
  let d = decay(abs(x));
  let slope = divided(d.m, square_of_1_plus(whole(d))) * d.scale;
  return g * with_limits(x, slope, 0u, 0u);
}
fn gradient_from_output_sigmoid(g: f32, y: f32) -> f32 { return g * (y * (1.0 - y)); }

// square_of_1_plus is (1+e)^2 = 1 + e (2+e).
fn square_of_1_plus(e: f32) -> f32 { return fma(e, 2.0 + e, 1.0); }

// sigmoid_product is x sigmoid(v) for a v with the sign of x, given e^-|v|.
fn sigmoid_product(x: f32, d: Decay) -> f32 {
  let left = is_negative(x);
  let y = divided(select(x, x * d.m, left), one_and(d)) * select(1.0, d.scale, left);
  return with_limits(x, y, nan_bits, infinity_bits);
}

// sigmoid_product_slope is its derivative for an odd v that grows with x, sigmoid(v) (1 + x v'
// sigmoid(-v)), over one denominator.
fn sigmoid_product_slope(x: f32, v_slope: f32, d: Decay) -> f32 {
  let numerator = fma(x, v_slope, 1.0);
  let e = whole(d);
  let left = is_negative(x);
  let slope = divided(select(fma(e, numerator, 1.0), d.m * (numerator + e), left), square_of_1_plus(e)) * select(1.0, d.scale, left);
  return with_limits(x, slope, nan_bits, nan_bits);
}

// silu is x sigmoid(x).
fn value_silu(x: f32) -> f32 { return sigmoid_product(x, decay(abs(x))); }
fn gradient_silu(g: f32, x: f32) -> f32 { return g * sigmoid_product_slope(x, 1.0, decay(abs(x))); }

// gelu_tanh is x (1 + tanh(u))/2 = x sigmoid(v) with v = 2u = c1 x + c3 x^3, c1 = 2 sqrt(2/pi) and
// c3 = 0.044715 c1.
fn value_gelu_tanh(x: f32) -> f32 { return sigmoid_product(x, gelu_tanh_decay(abs(x))); }
fn gradient_gelu_tanh(g: f32, x: f32) -> f32 {
  let t = limited(abs(x), gelu_tanh_limit);
  // no matter where e is zero, but x times it must not overflow
  let v_slope = select(fma(gelu_tanh_3c3, t * t, gelu_tanh_c1), 1.0, t >= gelu_tanh_limit);
  return g * sigmoid_product_slope(x, v_slope, gelu_tanh_decay(abs(x)));
}

// tanh is 1 - 2e/(1+e), e = e^(-2|x|), with the sign of x, and a polynomial near 0, where that
// cancels. Its slope is 4e/(1+e)^2.
fn value_tanh(x: f32) -> f32 {
  let t = limited(abs(x), decay_limit);
  let square = t * t;
  let near = fma(t, square * tanh_rest(square), t);
  let d = decay(2.0 * t);
  let far = 1.0 - divided(2.0 * whole(d), one_and(d));
  return with_limits(x, with_sign(select(near, far, t >= tanh_near), x), minus_one_bits, one_bits);
}
fn gradient_tanh(g: f32, x: f32) -> f32 {
  let d = decay(2.0 * limited(abs(x), decay_limit));
  let slope = divided(4.0 * d.m, square_of_1_plus(whole(d))) * d.scale;
  return g * with_limits(x, slope, 0u, 0u);
}
fn gradient_from_output_tanh(g: f32, y: f32) -> f32 { return g * ((1.0 - y) * (1.0 + y)); }
