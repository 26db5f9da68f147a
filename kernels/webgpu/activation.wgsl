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
// To add one, add its functions. Its numbers are params.parameters, or with the digits beyond
// float32 number(0u) and so on. They are those of go/activation, unless
// go/backend/webgpu/numbers.go makes others of them.
#include numbers
#include activation_table
#include powers

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

// swish is x sigmoid(v), v = beta x. Its number is beta.
fn value_swish(x: f32) -> f32 {
  let v = exponent(x, number(0u));
  let e = power(negative(v));
  let left = is_negative(v.high);
  let y = over(select(x, multiplied(single(x), e), left), one_plus(e));
  let at_infinity = select(nan_bits, bitcast<u32>(x), is_positive(v.high) && number(0u).high != 0.0);
  return with_limits(x, select(y, scaled(y, e), left), at_infinity, at_infinity);
}
fn gradient_swish(g: f32, x: f32) -> f32 {
  let v = exponent(x, number(0u));
  let p = power(negative(v));
  let e = whole_power(p);
  let numerator = (v.high + 1.0) + v.low;
  let left = is_negative(v.high);
  let slope = over(select(fma(e, numerator, 1.0), multiplied(single(numerator + e), p), left), squared(one_plus(p)));
  return g * with_limits(x, select(slope, scaled(slope, p), left), nan_bits, nan_bits);
}

// elu has a polynomial of its own up to here, where e^v - 1 cancels.
const elu_near = 0.34f;

// elu is scale x where x > 0, else c (e^(x/a) - 1). Its gradient is g scale where x > 0 or x is
// NaN, else g (c/a) e^(x/a). Its numbers are scale, c, 1/a and c/a.
fn value_elu(x: f32) -> f32 {
  if (is_nan(x) || bitcast<u32>(x) == infinity_bits) { return x; }
  if (is_positive(x)) { return times(x, number(0u)); }
  let v = exponent(x, number(2u));
  let r = v.high + v.low;
  if (abs(r) < elu_near) { // (c/a) x (e^r - 1) / r
    let y = product(x, number(3u));
    return with_sign(y.high + fma(y.high + y.low, r * exp_rest(r), y.low), y.high);
  }
  if (v.high < -64.0) { return -number(1u).high; }
  return times_less_1(number(1u), power(v));
}
fn gradient_elu(g: f32, x: f32) -> f32 {
  if (is_positive(x) || is_nan(x)) { return g * number(0u).high; }
  let e = power(exponent(x, number(2u)));
  return g * scaled(multiplied(number(3u), e), e);
}

// softplus is x where v = beta x > threshold, else log(1 + e^v) / beta. Its gradient is g, or
// g sigmoid(v). Its numbers are beta, threshold and 1/beta.
fn value_softplus(x: f32) -> f32 {
  let v = exponent(x, number(0u));
  let e = power(negative(v));
  let ratio = log_ratio(whole_power(e));
  let y = scaled(multiplied(product(ratio, number(2u)), e), e);
  let below = select(y, x + y, is_positive(v.high));
  return with_limits(x, select(below, x, passes_softplus(x)), 0u, infinity_bits);
}
fn gradient_softplus(g: f32, x: f32) -> f32 {
  let v = exponent(x, number(0u));
  let e = power(negative(v));
  let left = is_negative(v.high);
  let y = over(select(1.0, multiplied(single(1.0), e), left), one_plus(e));
  let slope = with_limits(x, select(y, scaled(y, e), left), 0u, one_bits);
  return select(g * slope, g, passes_softplus(x));
}
fn passes_softplus(x: f32) -> bool {
  let v = product(x, number(0u));
  return is_positive((v.high - number(1u).high) + (v.low - number(1u).low));
}

// log_ratio is log(1+e) / e for 0 <= e <= 1: with s = e/(2+e) it is 2 atanh(s) / e.
fn log_ratio(e: f32) -> f32 {
  let d = plus(single(2.0), e);
  let s = over(e, d);
  return fma(-s, fma(-2.0 * (s / d.high), atanh_rest(s * s), 1.0), 1.0);
}

// mish is x tanh(log(1 + e^x)). With e = e^-|x| and d = (1+e)^2 + e^2 on the right, (1+e)^2 + 1 on
// the left, its value and its slope are
//
//   x (1 - 2e^2/d)         1 + (4x (1+e)/d - 2) e^2/d
//   x e (1 - e (1+e)/d)    e (1 + x - e (1 + e + x (4 + 8e + 4e^2 + e^3)/d)/d)
fn value_mish(x: f32) -> f32 {
  let p = decay_power(x);
  let e = whole_power(p);
  let left = is_negative(x);
  let rest = over(e * select(2.0 * e, 1.0 + e, left), mish_denominator(p, left));
  let y = with_sign(fma(-x, rest, x), x);
  return with_limits(x, select(y, scaled(multiplied(single(y), p), p), left), nan_bits, infinity_bits);
}
fn gradient_mish(g: f32, x: f32) -> f32 {
  let p = decay_power(x);
  let e = whole_power(p);
  let left = is_negative(x);
  let d = mish_denominator(p, left);
  let t = with_sign(limited(abs(x), exponent_limit), x);
  let right = fma(over(4.0 * (t * (1.0 + e)), d) - 2.0, over(e * e, d), 1.0);
  let rest = over(t * fma(e, fma(e, 4.0 + e, 8.0), 4.0), d);
  let y = fma(-e, over((1.0 + e) + rest, d), 1.0 + t);
  return g * with_limits(x, select(right, scaled(multiplied(single(y), p), p), left), nan_bits, nan_bits);
}
fn mish_denominator(p: Power, left: bool) -> Number {
  let e = whole_power(p);
  return plus(squared(one_plus(p)), select(e * e, 1.0, left));
}

const sixth = 0.16666667f;

// hardswish is x min(max(x+3, 0), 6) / 6. Its gradient is 0 where x <= -3, g (2x+3)/6 where x < 3,
// else g, as for a NaN.
fn value_hardswish(x: f32) -> f32 {
  let y = select(quotient(x * (x + 3.0), 6.0, sixth), with_sign(0.0, x), is_at_most(x, -3.0));
  return with_limits(x, select(y, x, is_at_most(3.0, x)), nan_bits, infinity_bits);
}
fn gradient_hardswish(g: f32, x: f32) -> f32 {
  let slope = quotient(fma(2.0, x, 3.0), 6.0, sixth);
  return select(select(g * slope, 0.0, is_at_most(x, -3.0)), g, is_at_most(3.0, x) || is_nan(x));
}

// hardsigmoid is min(max(x+3, 0), 6) / 6. Its gradient is g/6 where -3 < x < 3, else 0, as for a
// NaN.
fn value_hardsigmoid(x: f32) -> f32 {
  let y = select(quotient(x + 3.0, 6.0, sixth), 0.0, is_at_most(x, -3.0));
  return select(y, 1.0, is_at_most(3.0, x));
}
fn gradient_hardsigmoid(g: f32, x: f32) -> f32 {
  return select(g * sixth, 0.0, is_at_most(x, -3.0) || is_at_most(3.0, x) || is_nan(x));
}

// hardtanh is min(max(x, low), high). Its gradient is g where low < x < high or x is NaN, else 0.
// Its numbers are low and high.
fn value_hardtanh(x: f32) -> f32 {
  let low = params.parameters.x;
  let high = params.parameters.y;
  return select(select(x, low, is_negative(x - low)), high, is_positive(x - high));
}
fn gradient_hardtanh(g: f32, x: f32) -> f32 {
  return select(g, 0.0, is_at_most(x, params.parameters.x) || is_at_most(params.parameters.y, x));
}

// is_at_most is x <= y.
fn is_at_most(x: f32, y: f32) -> bool { return magnitude_bits(x - y) == 0u || is_negative(x - y); }

// softcap is cap tanh(x/cap), formed as tanh is. Its numbers are cap and 1/cap.
fn value_softcap(x: f32) -> f32 { return capped(x, number(0u), number(1u)); }
fn gradient_softcap(g: f32, x: f32) -> f32 { return g * capped_slope(x, number(1u)); }

fn capped(x: f32, cap: Number, inverse: Number) -> f32 {
  let t = x * inverse.high;
  let square = t * t;
  let near = fma(x, square * tanh_rest(square), x);
  let e = whole_power(double_decay(x, inverse));
  let far = cap.high + fma(-over(2.0 * e, plus(single(1.0), e)), cap.high, cap.low);
  let is_far = magnitude_bits(t) >= bitcast<u32>(tanh_near);
  return select(with_sign(select(near, far, is_far), x), x, is_nan(x));
}
fn capped_slope(x: f32, inverse: Number) -> f32 {
  let e = double_decay(x, inverse);
  let slope = over(multiplied(single(4.0), e), squared(one_plus(e)));
  return select(scaled(slope, e), x, is_nan(x));
}

// double_decay is e^(-2 |x| inverse).
fn double_decay(x: f32, inverse: Number) -> Power {
  return power(negative(exponent(x, Number(2.0 * inverse.high, 2.0 * inverse.low))));
}
