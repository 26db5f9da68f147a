// The gated kinds: gated(value, gate) and its gradients, where KIND is the formula of the gate.
#include numbers
#include activation

#if $KIND == situ
// situ is psi(value) phi(gate), for caps V and G:
//
//   psi(v) = V tanh(v/V)
//   phi(g) = G tanh(g/G) s(g)
//
// Its numbers are G, V, 1/G and 1/V.
fn gated(value: f32, gate: f32) -> f32 { return times_phi(psi(value), gate); }

fn gradient_of_value(g: f32, value: f32, gate: f32) -> f32 {
  return times_phi(g, gate) * capped_slope(value, number(3u));
}

fn gradient_of_gate(g: f32, value: f32, gate: f32) -> f32 { return times_phi_slope(g * psi(value), gate); }

fn psi(x: f32) -> f32 { return capped(x, number(1u), number(3u)); }

// times_phi is factor phi(x).
fn times_phi(factor: f32, x: f32) -> f32 {
  let p = decay_power(x);
  let t = capped(x, number(0u), number(2u));
  let left = is_negative(x);
  let y = over(select(t, multiplied(single(t), p), left), one_plus(p));
  return select(factor * y, scaled_by(factor, y, p), left);
}

// times_phi_slope is factor phi'(x). With e = e^-|x| and c = 1 - tanh(x/G)^2, phi'(x) is
//
//   (c (1+e) + e G tanh(x/G)) / (1+e)^2    on the right
//   e (c (1+e) + G tanh(x/G)) / (1+e)^2    on the left
fn times_phi_slope(factor: f32, x: f32) -> f32 {
  let p = decay_power(x);
  let e = whole_power(p);
  let t = capped(x, number(0u), number(2u));
  let left = is_negative(x);
  let n = fma(capped_slope(x, number(2u)), 1.0 + e, select(t * e, t, left));
  let y = over(select(n, multiplied(single(n), p), left), squared(one_plus(p)));
  return select(factor * y, scaled_by(factor, y, p), left);
}

// scaled_by is factor x, scaled. A large factor is scaled first, as the product may overflow.
fn scaled_by(factor: f32, x: f32, p: Power) -> f32 {
  return select(scaled(factor * x, p), scaled(factor, p) * x, abs(factor) > 0x1p64f);
}
#else
// The others are (clamp(value) + offset) phi(gate), for the activation phi, where limits clamp what
// phi and the product take:
//
//   gate    at most limit, then phi(gate) at most limit_after
//   value   within +-limit, then within +-limit_after
//
// NaN stays. Where something was clamped its gradient is 0, at the limit too. An offset of none is
// -0, with which every sum is the other term.
fn gated(value: f32, gate: f32) -> f32 { return shifted(value) * through(gate); }

fn gradient_of_value(g: f32, value: f32, gate: f32) -> f32 {
  let clamped = is_beyond(value, params.limits.x) || is_beyond(within(value, params.limits.x), params.limits.y);
  return select(g * through(gate), 0.0, clamped);
}

fn gradient_of_gate(g: f32, value: f32, gate: f32) -> f32 {
  let x = at_most(gate, params.limits.x);
  let clamped = is_at_least(gate, params.limits.x) || is_at_least(value_$KIND(x), params.limits.y);
  return select(gradient_$KIND(g * shifted(value), x), 0.0, clamped);
}

fn shifted(value: f32) -> f32 {
  return within(within(value, params.limits.x), params.limits.y) + params.offset;
}

fn through(gate: f32) -> f32 {
  return at_most(value_$KIND(at_most(gate, params.limits.x)), params.limits.y);
}

// Limits are numbers > 0, by their bits; those of none are larger than the bits of any number.
fn is_at_least(x: f32, limit: u32) -> bool {
  let bits = bitcast<u32>(x);
  return bits >= limit && bits <= infinity_bits;
}
fn is_beyond(x: f32, limit: u32) -> bool { return is_at_least(abs(x), limit); }

fn at_most(x: f32, limit: u32) -> f32 { return select(x, bitcast<f32>(limit), is_at_least(x, limit)); }
fn within(x: f32, limit: u32) -> f32 {
  return select(x, with_sign(bitcast<f32>(limit), x), is_beyond(x, limit));
}
#end
