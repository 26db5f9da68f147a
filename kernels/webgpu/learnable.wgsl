// What prelu and xielu are made of, for formulas.wgsl.
#include numbers
#include activation

// prelu is g where x > 0, else weight g; out is prelu of x itself.
fn prelu(g: f32, x: f32, weight: f32) -> f32 { return select(weight * g, g, is_positive(x)); }

// soft is log(1 + e^x) = max(x, 0) + log(1+e) with e = e^-|x|.
fn soft(x: f32) -> f32 {
  let d = decay(abs(x));
  let ratio = log_ratio(whole(d));
  return select(fma(whole(d), ratio, x), (d.m * ratio) * d.scale, is_negative(x));
}

// expm1 is e^x - 1, and expm1_rest e^x - 1 - x, for x <= 0: by the series' rest where they cancel.
// NaN stays, which decay takes for a number.
fn expm1(x: f32) -> f32 {
  let value = select(whole(decay(abs(x))) - 1.0, fma(x * x, exp_rest(x), x), abs(x) < 0.34);
  return select(value, x, is_nan(x));
}
fn expm1_rest(x: f32) -> f32 { return select((whole(decay(abs(x))) - 1.0) - x, x * x * exp_rest(x), abs(x) < 0.34); }

// xielu is a_p x^2 + beta x where x > 0, else a_n (e^x - 1 - x) + beta x, for a_p = soft(alpha_p),
// a_n = beta + soft(alpha_n).
fn xielu(x: f32, alpha_p: f32, alpha_n: f32) -> f32 {
  let beta = params.parameters.x;
  let left = fma(beta + soft(alpha_n), expm1_rest(x), beta * x);
  return select(left, x * fma(soft(alpha_p), x, beta), is_positive(x));
}

fn xielu_slope(x: f32, alpha_p: f32, alpha_n: f32) -> f32 {
  let beta = params.parameters.x;
  return select(fma(beta + soft(alpha_n), expm1(x), beta), fma(2.0 * soft(alpha_p), x, beta), is_positive(x));
}
