// Arithmetic in two parts, and powers of e, for the formulas that take numbers.
//
// A number has more digits than a float32, and rounding an exponent v costs v units in the last
// place: both have two parts. Nothing here is less exact where fma is rounded twice.
#include numbers
#include activation_table

// Number is the sum of its parts.
struct Number { high: f32, low: f32 }

fn single(x: f32) -> Number { return Number(x, 0.0); }

// number is one of the formula's.
fn number(place: u32) -> Number { return Number(params.parameters[place], params.lows[place]); }

// Power is e^v = two (1 + rest) root^2 for any v within +-exponent_limit. Both two and root are
// powers of two, or root has all of it. A result is scaled by root^2 last, as with Decay.
struct Power { two: f32, rest: f32, root: f32 }

// e^-200 times any float32 is zero after rounding, and e^200 times any but zero is infinite.
const exponent_limit = 200.0f;

#if $APPROXIMATE
fn product(x: f32, n: Number) -> Number { return Number(x * n.high, 0.0); }

fn power(v: Number) -> Power {
  let root = exp2(v.high * (0.5 * log2_e));
  return Power(1.0, 0.0, root);
}

fn plus(x: Number, y: f32) -> Number { return Number(x.high + y, 0.0); }
fn squared(x: Number) -> Number { return Number(x.high * x.high, 0.0); }
fn over(n: f32, d: Number) -> f32 { return n / d.high; }

fn times_less_1(n: Number, e: Power) -> f32 { return fma(n.high * e.root, e.root, -n.high); }
#else
// product is x n in two parts, of which the first is exact.
fn product(x: f32, n: Number) -> Number {
  let x_high = head(x);
  let n_high = head(n.high);
  return Number(x_high * n_high, fma(x_high, (n.high - n_high) + n.low, (x - x_high) * n.high));
}

fn power(v: Number) -> Power {
  let h = nearest_whole((v.high + v.low) * log2_e);
  let r = fma(-h.x, ln2_high, v.high) + fma(-h.x, ln2_rest, v.low);
  let far = abs(h.whole);
  let down = select(select(0, 64, far > 100), 180, far > 180) * sign(h.whole);
  return Power(power_of_two(h.whole - down), fma(r * r, exp_rest(r), r), power_of_two(down / 2));
}

// plus is x + y for a smaller y, both positive. magnitude_bits keeps a compiler from cancelling x.
fn plus(x: Number, y: f32) -> Number {
  let total = bitcast<f32>(magnitude_bits(x.high + y));
  return Number(total, (y - (total - x.high)) + x.low);
}

// squared is x^2.
fn squared(x: Number) -> Number {
  let high = head(x.high);
  return plus(single(high * high), fma(x.high - high, x.high + high, 2.0 * (x.high * x.low)));
}

// over is n / d, for a d > 0.
fn over(n: f32, d: Number) -> f32 {
  let r = 1.0 / d.high;
  let q = n * r;
  let q_high = head(q);
  let d_high = head(d.high);
  let rest = fma(-q_high, (d.high - d_high) + d.low, fma(-q_high, d_high, n)) - (q - q_high) * d.high;
  return select(fma(rest, r, q), q, q == 0.0); // which keeps the sign of zero
}

// times_less_1 is n (e^v - 1) for v >= -64.
fn times_less_1(n: Number, e: Power) -> f32 {
  return scaled(times(fma(e.two, e.rest, e.two - select(0.0, 1.0, e.root == 1.0)), n), e);
}
#end

// exponent is x n, within +-exponent_limit. x may be infinite or NaN.
fn exponent(x: f32, n: Number) -> Number {
  let v = x * n.high;
  if (magnitude_bits(v) > bitcast<u32>(exponent_limit)) { return Number(with_sign(exponent_limit, v), 0.0); }
  return product(x, n);
}

// decay_power is e^-|x|.
fn decay_power(x: f32) -> Power { return power(single(-limited(abs(x), exponent_limit))); }

// negative is -|v|.
fn negative(v: Number) -> Number {
  if (is_positive(v.high)) { return Number(-v.high, -v.low); }
  return v;
}

// multiplied is x e^v / root^2, rounded once. scaled is x root^2.
fn multiplied(x: Number, e: Power) -> f32 {
  let y = x.high * e.two;
  let low = x.low * e.two;
  return y + fma(y + low, e.rest, low);
}
fn scaled(x: f32, e: Power) -> f32 { return (x * e.root) * e.root; }
fn whole_power(e: Power) -> f32 { return scaled(multiplied(single(1.0), e), e); }
fn one_plus(e: Power) -> Number { return plus(single(1.0), whole_power(e)); }

// times is x n, rounded once.
fn times(x: f32, n: Number) -> f32 { return fma(n.high, x, n.low * x); }
