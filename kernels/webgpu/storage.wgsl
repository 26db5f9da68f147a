// The dtypes: what lies in memory and the float32 that it is computed in. Widening is exact; narrowing rounds once, to nearest even, and keeps NaN. To add one, add
// a pair of functions; go/backend/webgpu has its size. Types of 16 bits lie two in a word, which needs nothing that an adapter could lack.

fn decode_f32(bits: u32) -> f32 { return bitcast<f32>(bits); }

fn encode_f32(x: f32) -> u32 { return bitcast<u32>(x); }

fn decode_bf16(bits: u32) -> f32 { return bitcast<f32>(bits << 16u); }

fn encode_bf16(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  let rounded = (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
  return select(rounded, (bits >> 16u) | 0x40u, (bits & 0x7fffffffu) > 0x7f800000u);
}

// The bits of 0.5, whose unit in the last place is the smallest denormal of float16: what is added to it is rounded as a denormal is, without a conversion, which GPUs are
// slow at.
const half_bits = 0x3f000000u;

fn decode_f16(bits: u32) -> f32 {
  let magnitude = bits & 0x7fffu;
  var wide = (magnitude << 13u) + 0x38000000u;
  if (magnitude >= 0x7c00u) { wide += 0x38000000u; } // infinity and NaN
  if (magnitude < 0x400u) { wide = bitcast<u32>(bitcast<f32>(half_bits | magnitude) - 0.5); } // denormal
  return bitcast<f32>(wide | ((bits & 0x8000u) << 16u));
}

fn encode_f16(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  let magnitude = bits & 0x7fffffffu;
  var narrow = (magnitude + 0xfffu + ((magnitude >> 13u) & 1u) - 0x38000000u) >> 13u;
  if (magnitude < 0x38800000u) { narrow = bitcast<u32>(bitcast<f32>(magnitude) + 0.5) - half_bits; } // denormal
  if (magnitude >= 0x477ff000u) { narrow = 0x7c00u; } // what rounds to infinity
  if (magnitude > 0x7f800000u) { narrow = 0x7e00u | ((magnitude >> 13u) & 0x3ffu); }
  return narrow | ((bits >> 16u) & 0x8000u);
}

// Bits of an element as they are, for copies: a NaN keeps its payload.
fn decode_bits(bits: u32) -> u32 { return bits; }
fn encode_bits(bits: u32) -> u32 { return bits; }
