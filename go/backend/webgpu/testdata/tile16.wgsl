// out = gelu(a b + bias) in tiles of 16 x 16, a thread to an element: the plain design that
// BenchmarkPlainTile measures epigrad's kernel against.
struct Params {
  loops: array<vec4<u32>, 2>,
  sizes: vec4<u32>, // m, n, k
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(0) @binding(2) var<storage, read> a: array<f32>;
@group(0) @binding(3) var<storage, read> b: array<f32>;
@group(0) @binding(4) var<storage, read> bias: array<f32>;

var<workgroup> tile_a: array<array<f32, 16>, 16>;
var<workgroup> tile_b: array<array<f32, 16>, 16>;

@compute @workgroup_size(16, 16)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_id) lane: vec3<u32>) {
  let n = params.sizes.y;
  let depth = params.sizes.z;
  var sum = bias[id.x];
  for (var k = 0u; k < depth; k += 16u) {
    tile_a[lane.y][lane.x] = a[id.y * depth + k + lane.x];
    tile_b[lane.y][lane.x] = b[(k + lane.y) * n + id.x];
    workgroupBarrier();
    for (var i = 0u; i < 16u; i++) { sum += tile_a[lane.y][i] * tile_b[i][lane.x]; }
    workgroupBarrier();
  }
  let u = 0.7978845608 * (sum + 0.044715 * sum * sum * sum);
  out[id.y * n + id.x] = 0.5 * sum * (1.0 + tanh(u));
}
