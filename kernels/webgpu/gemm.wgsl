// out = act(a b + bias) for a step of the batch in each layer of the grid, in tiles of 64 x 64 elements: 256 threads with 4 x 4 each, 16 deep.
//
// a is [batch, m, k], b is [batch, k, n], bias is [n], out and pre are [batch, m, n]; m, n, k and the batch are each any number of dimensions, walked as one. Sums are
// float32. KIND is the activation; out and pre are stored as their dtype has it, out from the sum before it is rounded. Where MODE is pair, neighbouring elements of a
// row share a word. What a thread has four of is written out: drivers keep arrays that a loop indexes in memory, which made products six times slower on an H200. Where accumulate is set the sums are added to what is in out.
//
// A_ALONG and B_ALONG are the dimension along which neighbouring threads read; K_FLAT says that k is one dimension.
#include numbers
#include storage
#include activation
#include loops

var<workgroup> tile_a: array<f32, 1088>; // [k][m], 68 apart: neighbours in k are in different banks
var<workgroup> tile_b: array<f32, 1088>; // [k][n]

// offset of an index over the dimensions from first to last, in one operand.
#for J in $OPERANDS
fn offset$J(index: u32, first: u32, last: u32) -> u32 {
  var rest = index;
  var offset = 0u;
  for (var d = first; d < last; d++) {
    var here = rest;
    if (d + 1u < last) {
      let size = params.shape[d >> 2u][d & 3u];
      rest = rest / size;
      here -= rest * size;
    }
    offset += here * params.operands[$J].strides[d >> 2u][d & 3u];
  }
  return offset;
}
#end

// The place in a tile that a thread fills in its i-th turn: how deep, and how far across.
fn turn_along_k(i: u32, lane: u32) -> vec2<u32> {
  let e = lane + i * 256u;
  return vec2<u32>(e & 15u, e >> 4u);
}
fn turn_across_k(i: u32, lane: u32) -> vec2<u32> {
  let e = lane + i * 256u;
  return vec2<u32>(e >> 6u, e & 63u);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let m = params.sizes.x;
  let n = params.sizes.y;
  let depth = params.sizes.z;
  let ends = params.ends;
  let first_row = group.y * 64u;
  let first_column = group.x * 64u;
  var at = start();
  advance(&at, group.z + params.sizes.w, ends.z, ends.w);

  // Rows and columns beyond the last one are read from it; their sums are not stored.
#for I in 0 1 2 3
  let row_$I = at[$A] + offset$A(min(first_row + turn_$A_ALONG($Iu, lane).y, m - 1u), 0u, ends.x);
  let column_$I = at[$B] + offset$B(min(first_column + turn_$B_ALONG($Iu, lane).y, n - 1u), ends.x, ends.y);
#end
#if $K_FLAT
  let step_a = params.operands[$A].strides[ends.y >> 2u][ends.y & 3u];
  let step_b = params.operands[$B].strides[ends.y >> 2u][ends.y & 3u];
#end

  let tile_row = (lane >> 4u) << 2u;
  let tile_column = (lane & 15u) << 2u;
#for I in 0 1 2 3
  var sums_$I = vec4<f32>();
#end
  for (var k = 0u; k < depth; k += 16u) {
#for I in 0 1 2 3
    {
      let to_a = turn_$A_ALONG($Iu, lane);
      let to_b = turn_$B_ALONG($Iu, lane);
      var value_a = 0.0;
      var value_b = 0.0;
#if $K_FLAT
      if (k + to_a.x < depth) { value_a = decode_${CODE$A}(bits$A(row_$I + (k + to_a.x) * step_a)); }
      if (k + to_b.x < depth) { value_b = decode_${CODE$B}(bits$B(column_$I + (k + to_b.x) * step_b)); }
#else
      if (k + to_a.x < depth) { value_a = decode_${CODE$A}(bits$A(row_$I + offset$A(k + to_a.x, ends.y, ends.z))); }
      if (k + to_b.x < depth) { value_b = decode_${CODE$B}(bits$B(column_$I + offset$B(k + to_b.x, ends.y, ends.z))); }
#end
      tile_a[to_a.x * 68u + to_a.y] = value_a;
      tile_b[to_b.x * 68u + to_b.y] = value_b;
    }
#end
    workgroupBarrier();
    for (var i = 0u; i < 16u; i++) {
      let p = i * 68u + tile_row;
      let q = i * 68u + tile_column;
      let right = vec4<f32>(tile_b[q], tile_b[q + 1u], tile_b[q + 2u], tile_b[q + 3u]);
#for I in 0 1 2 3
      sums_$I = fma(vec4<f32>(tile_a[p + $Iu]), right, sums_$I);
#end
    }
    workgroupBarrier();
  }

#for I in 0 1 2 3
  if (first_row + tile_row + $Iu < m) {
    let row = first_row + tile_row + $Iu;
#for J in $WRITTEN
    let row$J = at[$J] + offset$J(row, 0u, ends.x);
    var word$J = 0u;
#end
#for C in 0 1 2 3
    if (first_column + tile_column + $Cu < n) {
      let column = first_column + tile_column + $Cu;
      var sum = sums_$I[$C];
#for J in $BIASES
      sum += decode_${CODE$J}(bits$J(at[$J] + offset$J(column, ends.x, ends.y)));
#end
#for J in $WRITTEN
      let at$J = row$J + offset$J(column, ends.x, ends.y);
#if ${PLACE$J} == 0
      var value$J = value_$KIND(sum);
#else
      var value$J = sum;
#end
#if $ACCUMULATES
      if (params.accumulate != 0u) { value$J += decode_${CODE$J}(bits$J(at$J)); }
#end
#if ${MODE$J} == pair
      word$J = select(word$J, 0u, ($Cu & 1u) == 0u) | (encode_${CODE$J}(value$J) << (($Cu & 1u) << 4u));
      if (($Cu & 1u) == 1u) { b$J[at$J >> 1u] = word$J; }
#else
      put$J(at$J, encode_${CODE$J}(value$J));
#end
#end
    }
#end
  }
#end
}
