// The activations: for each row of go/activation its value, value_x(x), its gradient, gradient_x(g, x) = g act'(x), and where the derivative is a function
// of the output y the same from y, gradient_from_output_x(g, y). The formulas are those of kernels/portable/activation.go, in float32 to a few units in the last place
// of the result, tails included. NaN gives NaN; infinities follow PyTorch (NaN where its formula has inf*0).
//
// To add one, add its functions.
#include numbers
#include activation_table

// Decay is e^-v for v >= 0: m, times the power of two `scale`. A result that falls towards zero with it is formed from m and scaled last, so that it is rounded once where
// it is denormal. Where m is not the decay itself it is below 2^-35, so that it serves as such where 1 is added.
struct Decay { m: f32, scale: f32 }

// exponential is 2^h e^r for an integer h <= 0 and |r| <= ln2/2; nothing where it would be below 2^-158.
fn exponential(h: f32, r: f32, nothing: bool) -> Decay {
  let k = i32(h);
  let deep = k < -100;
  let m = power_of_two(select(k, k + 64, deep)) * (1.0 + (r + r * r * exp_rest(r)));
  return Decay(select(m, 0.0, nothing), select(1.0, 0x1p-64f, deep));
}

const decay_limit = 110.0f; // from where on t e^-t is zero after rounding

fn decay(magnitude: f32) -> Decay {
  let t = limited(magnitude, decay_limit);
  let h = round(t * -log2_e);
  let r = -t - h * ln2_high; // exact, as ln2_high has few bits
  return exponential(h, r - h * ln2_rest, t >= decay_limit);
}

const normal_limit = 15.0f; // likewise for t e^(-t^2/2)

// normal_decay is e^(-t^2/2). The square is formed in two parts: rounding an exponent v costs v units in the last place.
fn normal_decay(magnitude: f32) -> Decay {
  let t = limited(magnitude, normal_limit);
  let high = head(t);
  let low = (t - high) * (t + high);
  let h = round((t * t) * (-0.5 * log2_e));
  let r = -0.5 * (high * high) - h * ln2_high;
  return exponential(h, (r - h * ln2_rest) - 0.5 * low, t >= normal_limit);
}

const gelu_tanh_limit = 11.0f; // likewise for t e^-v

// gelu_tanh_decay is e^-v for v = c1 t + c3 t^3 = t (c1 + c3 t^2), each factor in two parts.
fn gelu_tanh_decay(magnitude: f32) -> Decay {
  let t = limited(magnitude, gelu_tanh_limit);
  let t_high = head(t);
  let square = t * t;
  let q_high = head(square);
  let q_low = (t_high * t_high - q_high) + (t - t_high) * (t + t_high);
  let s = gelu_tanh_c1 + gelu_tanh_c3 * square;
  let s_high = head(s);
  let s_low = ((gelu_tanh_c1_high - s_high) + gelu_tanh_c3_high * q_high) + (gelu_tanh_c3_high * q_low + (gelu_tanh_c3_low * square + gelu_tanh_c1_low));
  let product = t_high * s_high;
  let rest = t_high * s_low + (t - t_high) * s;
  let h = round((t * s) * -log2_e);
  let r = -product - h * ln2_high;
  return exponential(h, (r - h * ln2_rest) - rest, t >= gelu_tanh_limit);
}

// normal_tail is W(t) = Phi(-t) e^(t^2/2) for 0 <= t <= 15.
fn normal_tail(magnitude: f32) -> f32 {
  let t = limited(magnitude, normal_limit);
  let sum = t + normal_centre;
  return normal_tail_times((t - normal_centre) / sum) / sum;
}

fn value_none(x: f32) -> f32 { return x; }
fn gradient_none(g: f32, x: f32) -> f32 { return g; }

// relu is max(x, 0); -0 and NaN pass. Its gradient is g where x > 0 or x is NaN, else 0; the output serves as x equally well.
fn value_relu(x: f32) -> f32 { return select(x, 0.0, is_negative(x)); }
fn gradient_relu(g: f32, x: f32) -> f32 { return select(0.0, g, is_positive(x) || is_nan(x)); }
fn gradient_from_output_relu(g: f32, y: f32) -> f32 { return gradient_relu(g, y); }

// gelu is x Phi(x), Phi(-t) = e^(-t^2/2) W(t). Its slope is Phi(x) + x phi(x): e^(-t^2/2) (W(t) - t/sqrt(2 pi)) on the left and 1 minus that on the right.
fn value_gelu(x: f32) -> f32 {
  let d = normal_decay(abs(x));
  let tail = d.m * normal_tail(abs(x));
  let y = select(x * (1.0 - tail * d.scale), (x * tail) * d.scale, is_negative(x));
  return with_limits(x, y, nan_bits, infinity_bits);
}
fn gradient_gelu(g: f32, x: f32) -> f32 {
  let d = normal_decay(abs(x));
  let tail = (d.m * (normal_tail(abs(x)) - limited(abs(x), normal_limit) * inv_sqrt_2pi)) * d.scale;
  return g * with_limits(x, select(1.0 - tail, tail, is_negative(x)), nan_bits, nan_bits);
}

// sigmoid is 1/(1+e) on the right and e/(1+e) on the left, e = e^-|x|: 1 - sigmoid without its cancellation. Its slope is e/(1+e)^2.
fn value_sigmoid(x: f32) -> f32 {
  let d = decay(abs(x));
  let r = 1.0 / (1.0 + d.m);
  return with_limits(x, select(r, (d.m * r) * d.scale, is_negative(x)), 0u, one_bits);
}
fn gradient_sigmoid(g: f32, x: f32) -> f32 {
  let d = decay(abs(x));
  let slope = (d.m / square_of_1_plus(d.m)) * d.scale;
  return g * with_limits(x, slope, 0u, 0u);
}
fn gradient_from_output_sigmoid(g: f32, y: f32) -> f32 { return g * (y * (1.0 - y)); }

// square_of_1_plus is (1+e)^2 = 1 + e (2+e).
fn square_of_1_plus(e: f32) -> f32 { return 1.0 + e * (2.0 + e); }

// sigmoid_product is x sigmoid(v) for a v with the sign of x, given e^-|v|.
fn sigmoid_product(x: f32, d: Decay) -> f32 {
  let y = select(x / (1.0 + d.m), (x * d.m / (1.0 + d.m)) * d.scale, is_negative(x));
  return with_limits(x, y, nan_bits, infinity_bits);
}

// sigmoid_product_slope is its derivative for an odd v that grows with x, sigmoid(v) (1 + x v' sigmoid(-v)), over one denominator.
fn sigmoid_product_slope(x: f32, v_slope: f32, d: Decay) -> f32 {
  let numerator = 1.0 + x * v_slope;
  let denominator = square_of_1_plus(d.m);
  let slope = select((1.0 + d.m * numerator) / denominator, (d.m * (numerator + d.m) / denominator) * d.scale, is_negative(x));
  return with_limits(x, slope, nan_bits, nan_bits);
}

// silu is x sigmoid(x).
fn value_silu(x: f32) -> f32 { return sigmoid_product(x, decay(abs(x))); }
fn gradient_silu(g: f32, x: f32) -> f32 { return g * sigmoid_product_slope(x, 1.0, decay(abs(x))); }

// gelu_tanh is x (1 + tanh(u))/2 = x sigmoid(v) with v = 2u = c1 x + c3 x^3, c1 = 2 sqrt(2/pi) and c3 = 0.044715 c1.
fn value_gelu_tanh(x: f32) -> f32 { return sigmoid_product(x, gelu_tanh_decay(abs(x))); }
fn gradient_gelu_tanh(g: f32, x: f32) -> f32 {
  let t = limited(abs(x), gelu_tanh_limit);
  let v_slope = select(gelu_tanh_c1 + gelu_tanh_3c3 * (t * t), 1.0, t >= gelu_tanh_limit); // no matter where e is zero, but x times it must not overflow
  return g * sigmoid_product_slope(x, v_slope, gelu_tanh_decay(abs(x)));
}

// tanh is 1 - 2e/(1+e), e = e^(-2|x|), with the sign of x, and a polynomial near 0, where that cancels. Its slope is 4e/(1+e)^2.
fn value_tanh(x: f32) -> f32 {
  let t = limited(abs(x), decay_limit);
  let square = t * t;
  let near = t + t * (square * tanh_rest(square));
  let d = decay(2.0 * t);
  let far = 1.0 - 2.0 * d.m / (1.0 + d.m);
  return with_limits(x, with_sign(select(near, far, t >= tanh_near), x), minus_one_bits, one_bits);
}
fn gradient_tanh(g: f32, x: f32) -> f32 {
  let d = decay(2.0 * limited(abs(x), decay_limit));
  let slope = (4.0 * d.m / square_of_1_plus(d.m)) * d.scale;
  return g * with_limits(x, slope, 0u, 0u);
}
fn gradient_from_output_tanh(g: f32, y: f32) -> f32 { return g * ((1.0 - y) * (1.0 + y)); }
