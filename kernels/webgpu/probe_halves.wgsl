// Whether WGSL's own conversions of float16 do what those of storage.wgsl do: an implementation may
// take denormals to be zero, round otherwise, and make infinity and NaN anything. Each thread takes
// a half, and what lies between it and the next one: if those are right that are on and beside the
// borders, then all are.
#include storage

// those that are not the same, and all
@group(0) @binding(0) var<storage, read_write> cell: array<atomic<u32>, 2>;

fn same_half(x: u32, y: u32) -> bool { return x == y || ((x & 0x7fffu) > 0x7c00u && (y & 0x7fffu) > 0x7c00u); }

fn same_number(x: u32, y: u32) -> bool { return x == y || ((x & 0x7fffffffu) > 0x7f800000u && (y & 0x7fffffffu) > 0x7f800000u); }

fn narrows(bits: u32) -> bool {
  let x = bitcast<f32>(bits);
  let want = encode_f16(x);
  let low = pack2x16float(vec2<f32>(x, 1.0));
  let high = pack2x16float(vec2<f32>(1.0, x));
  return same_half(low & 0xffffu, want) && low >> 16u == 0x3c00u && same_half(high >> 16u, want) && (high & 0xffffu) == 0x3c00u;
}

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let half = id.x;
  let sign = (half & 0x8000u) << 16u;
  let magnitude = half & 0x7fffu;
  let wide = bitcast<u32>(decode_f16(half));
  let low = unpack2x16float(half | 0x3c000000u);
  let high = unpack2x16float((half << 16u) | 0x3c00u);
  var good = same_number(bitcast<u32>(low.x), wide) && low.y == 1.0 && same_number(bitcast<u32>(high.y), wide) && high.x == 1.0;
  var border = sign | 0x477ff000u; // from where on it is infinity
  if (magnitude < 0x7bffu) { border = bitcast<u32>(0.5 * (decode_f16(half) + decode_f16(half + 1u))); }
  // NaN, and what is beyond every half
  if (magnitude >= 0x7c00u) { border = sign | (magnitude << 16u) | 0xffffu; }
  for (var i = 0u; i < 3u; i++) {
    good = good && narrows(wide + i - 1u) && narrows(border + i - 1u);
  }
  good = good && narrows(sign | (magnitude << 8u)); // denormals of float32
  if (!good) { atomicAdd(&cell[0], 1u); }
  atomicAdd(&cell[1], 1u);
}
