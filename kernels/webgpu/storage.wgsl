// The dtypes: what lies in memory and the float32 that it is computed in. Widening is exact;
// narrowing rounds once, to nearest even, and keeps NaN. To add one, add its functions, for one
// element and for four neighbours; go/backend/webgpu has its size. Types of 16 bits lie two in a
// word, which needs nothing that an adapter could lack.

fn decode_f32(bits: u32) -> f32 { return bitcast<f32>(bits); }
fn encode_f32(x: f32) -> u32 { return bitcast<u32>(x); }
fn decode_four_f32(words: vec4<u32>) -> vec4<f32> { return bitcast<vec4<f32>>(words); }
fn encode_four_f32(x: vec4<f32>) -> vec4<u32> { return bitcast<vec4<u32>>(x); }

fn decode_bf16(bits: u32) -> f32 { return bitcast<f32>(bits << 16u); }
fn encode_bf16(x: f32) -> u32 { return rounded_bf16(x) >> 16u; }
fn decode_four_bf16(words: vec2<u32>) -> vec4<f32> {
  return bitcast<vec4<f32>>(vec4<u32>(words.x << 16u, words.x & 0xffff0000u, words.y << 16u, words.y & 0xffff0000u));
}
fn encode_four_bf16(x: vec4<f32>) -> vec2<u32> {
  return vec2<u32>(encode_bf16(x.x) | (rounded_bf16(x.y) & 0xffff0000u), encode_bf16(x.z) | (rounded_bf16(x.w) & 0xffff0000u));
}

// rounded_bf16 has the bfloat16 in its upper half.
fn rounded_bf16(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  return select(bits + 0x7fffu + ((bits >> 16u) & 1u), bits | 0x400000u, (bits & 0x7fffffffu) > 0x7f800000u);
}

#if $NATIVE_HALVES
// WGSL's own conversions, on adapters that do them to the last bit (probe_halves.wgsl).
fn decode_f16(bits: u32) -> f32 { return unpack2x16float(bits).x; }
fn encode_f16(x: f32) -> u32 { return pack2x16float(vec2<f32>(x, 0.0)) & 0xffffu; }
fn decode_four_f16(words: vec2<u32>) -> vec4<f32> { return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y)); }
fn encode_four_f16(x: vec4<f32>) -> vec2<u32> { return vec2<u32>(pack2x16float(x.xy), pack2x16float(x.zw)); }
#else
// The bits of 0.5, whose unit in the last place is the smallest denormal of float16: what is added
// to it is rounded as a denormal is, without a conversion, which GPUs are slow at.
const half_bits = 0x3f000000u;

fn decode_f16(bits: u32) -> f32 {
  let magnitude = bits & 0x7fffu;
  var wide = (magnitude << 13u) + 0x38000000u;
  if (magnitude >= 0x7c00u) { wide += 0x38000000u; } // infinity and NaN
  // denormal
  if (magnitude < 0x400u) { wide = bitcast<u32>(bitcast<f32>(half_bits | magnitude) - 0.5); }
  return bitcast<f32>(wide | ((bits & 0x8000u) << 16u));
}

fn encode_f16(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  let magnitude = bits & 0x7fffffffu;
  var narrow = (magnitude + 0xfffu + ((magnitude >> 13u) & 1u) - 0x38000000u) >> 13u;
  // denormal
  if (magnitude < 0x38800000u) { narrow = bitcast<u32>(bitcast<f32>(magnitude) + 0.5) - half_bits; }
  if (magnitude >= 0x477ff000u) { narrow = 0x7c00u; } // what rounds to infinity
  if (magnitude > 0x7f800000u) { narrow = 0x7e00u | ((magnitude >> 13u) & 0x3ffu); }
  return narrow | ((bits >> 16u) & 0x8000u);
}

fn decode_four_f16(words: vec2<u32>) -> vec4<f32> {
  let bits = decode_four_bits16(words);
  return vec4<f32>(decode_f16(bits.x), decode_f16(bits.y), decode_f16(bits.z), decode_f16(bits.w));
}
fn encode_four_f16(x: vec4<f32>) -> vec2<u32> {
  return encode_four_bits16(vec4<u32>(encode_f16(x.x), encode_f16(x.y), encode_f16(x.z), encode_f16(x.w)));
}
#end

// Bits of an element as they are, for copies: a NaN keeps its payload.
fn decode_bits32(bits: u32) -> u32 { return bits; }
fn encode_bits32(bits: u32) -> u32 { return bits; }
fn decode_four_bits32(words: vec4<u32>) -> vec4<u32> { return words; }
fn encode_four_bits32(bits: vec4<u32>) -> vec4<u32> { return bits; }

fn decode_bits16(bits: u32) -> u32 { return bits; }
fn encode_bits16(bits: u32) -> u32 { return bits; }
fn decode_four_bits16(words: vec2<u32>) -> vec4<u32> { return vec4<u32>(words.x & 0xffffu, words.x >> 16u, words.y & 0xffffu, words.y >> 16u); }
fn encode_four_bits16(bits: vec4<u32>) -> vec2<u32> { return bits.xz | (bits.yw << vec2<u32>(16u)); }
