// What the formulas need of numbers where WGSL lets an implementation assume that there is no NaN
// and no infinity, reassociate sums and round a fused multiply-add twice: decisions are made on
// bits, and what has to be exact is exact without fusing.

fn magnitude_bits(x: f32) -> u32 { return bitcast<u32>(x) & 0x7fffffffu; }

fn is_nan(x: f32) -> bool { return magnitude_bits(x) > 0x7f800000u; }

fn is_finite(x: f32) -> bool { return magnitude_bits(x) < 0x7f800000u; }

// is_negative is x < 0: not for -0 and not for NaN.
fn is_negative(x: f32) -> bool {
  let bits = bitcast<u32>(x);
  return bits > 0x80000000u && bits <= 0xff800000u;
}

// is_positive is x > 0.
fn is_positive(x: f32) -> bool {
  let bits = bitcast<u32>(x);
  return bits != 0u && bits <= 0x7f800000u;
}

// limited is the smaller one of a magnitude and a limit, and the limit for NaN.
fn limited(magnitude: f32, limit: f32) -> f32 {
  return bitcast<f32>(min(bitcast<u32>(magnitude), bitcast<u32>(limit)));
}

// with_sign is a magnitude with the sign of y.
fn with_sign(magnitude: f32, y: f32) -> f32 {
  return bitcast<f32>(magnitude_bits(magnitude) | (bitcast<u32>(y) & 0x80000000u));
}

// head is x with its last 12 bits zero: the product of two heads is exact, and so is x minus its
// head.
fn head(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) & 0xfffff000u); }

// Whole is a whole number in both forms.
struct Whole { x: f32, whole: i32 }

// nearest_whole rounds |x| < 2^22: it adds 1.5 x 2^23, where a float32 has the unit 1, and
// subtracts it again. GPUs add several times as fast as they convert. magnitude_bits changes
// nothing, since the sum is positive, but keeps a compiler from cancelling the sum against the
// difference.
fn nearest_whole(x: f32) -> Whole {
  let bits = magnitude_bits(x + 12582912.0);
  return Whole(bitcast<f32>(bits) - 12582912.0, i32(bits) - 0x4b400000);
}

// quotient is n / d, given about 1/d: WGSL lets a division be off by two and a half units in the
// last place.
fn quotient(n: f32, d: f32, reciprocal: f32) -> f32 {
  let q = n * reciprocal;
  return select(fma(fma(-q, d, n), reciprocal, q), q, q == 0.0); // which keeps the sign of zero
}
fn divided(n: f32, d: f32) -> f32 {
#if $APPROXIMATE
  return n / d;
#else
  return quotient(n, d, 1.0 / d);
#end
}

// power_of_two is 2^k for -126 <= k <= 127.
fn power_of_two(k: i32) -> f32 { return bitcast<f32>(u32(k + 127) << 23u); }

// Bits of what a formula has where its argument is not finite.
const nan_bits = 0x7fc00000u;
const infinity_bits = 0x7f800000u;
const one_bits = 0x3f800000u;
const minus_one_bits = 0xbf800000u;

// with_limits is y for a finite x, x where that is NaN, and else one of two numbers given by their
// bits.
fn with_limits(x: f32, y: f32, at_minus_infinity: u32, at_infinity: u32) -> f32 {
  if (is_finite(x)) { return y; }
  if (is_nan(x)) { return x; }
  return bitcast<f32>(select(at_infinity, at_minus_infinity, bitcast<u32>(x) >> 31u == 1u));
}
