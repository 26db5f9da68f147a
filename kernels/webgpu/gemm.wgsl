// out = act(a b + bias) for a step of the batch in each layer of the grid, in square tiles of 64 or
// 128 rows: 256 threads with 4 x 4 or 8 x 8 elements each, 16 deep.
//
// a is [batch, m, k], b is [batch, k, n], bias is [n], out and pre are [batch, m, n]; m, n, k and
// the batch are each any number of dimensions, walked as one. Sums are float32, in the order of k.
// KIND is the activation; out and pre are stored as their dtype has it, out from the sum before it
// is rounded. Where accumulate is set the sums are added to what is in out.
//
//   HALVES            the tile's parts of 64 rows and columns
//   A_ALONG, B_ALONG  how threads share the reads of an operand: neighbouring threads along k or
//                     across it, or four elements along k for each thread (DEEP)
//   DEEP              of an operand: four elements along k are neighbours in memory
//   K_FLAT            k is one dimension
//   STEPS             the steps of k in a tile if the loop is written out, `all` if it is not
//   ENDS              the operand that says where the groups of rows end. The batch are the groups
//                     then, from split on, with ends that are row elements apart. m are the
//                     rows from terms to run; or, with DOWN, k are.
//   SUM_OF_SUMS       64 terms are added at a time, since the error of a sum grows with its length:
//                     4096 terms would have nine times the error of PyTorch on a CPU
//
// Loops over a thread's elements are written out: drivers keep arrays that a loop indexes in
// memory, which made products six times slower on an H200. Tiles have a dimension for each part of
// an index. So a bound is checked once for all steps, and the compiler knows each place as an
// offset.
#include numbers
#include storage
#include activation
#include loops

// The operands' tiles, [k][m / 4] and [k][n / 4]. A row has one more than it needs, so that
// neighbours in k are in different banks.
#for J in $A $B
var<workgroup> tile$J: array<array<vec4<f32>, $WIDTH>, 16>;
#end

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

#for J in $A $B
// Where four neighbours are, in m or n, or in k where DEEP says so. Those beyond the last in m or n
// are read from there; their sums are not stored.
fn places$J(first: u32, size: u32, begin: u32, end: u32) -> vec4<u32> {
  let last = size - 1u;
#if ${DEEP$J}
  return vec4<u32>(offset$J(min(first, last), begin, end));
#elif ${QUAD$J}
  return vec4<u32>(offset$J(min(first, size - 4u), begin, end));
#else
  return vec4<u32>(offset$J(min(first, last), begin, end), offset$J(min(first + 1u, last), begin, end),
                   offset$J(min(first + 2u, last), begin, end), offset$J(min(first + 3u, last), begin, end));
#end
}

// The four at one k, or from one on; zeros from the end of k on.
fn fetch$J(places: vec4<u32>, k: u32, depth: u32) -> vec4<f32> {
  let ends = params.ends;
  if (k >= depth) { return vec4<f32>(); }
#if $K_FLAT
  let at = places + k * params.operands[$J].strides[ends.y >> 2u][ends.y & 3u];
#else
  let at = places + offset$J(k, ends.y, ends.z);
#end
#if ${QUAD$J}
  return quad$J(at.x);
#else
  return vec4<f32>(decode_${CODE$J}(bits$J(at.x)), decode_${CODE$J}(bits$J(at.y)), decode_${CODE$J}(bits$J(at.z)), decode_${CODE$J}(bits$J(at.w)));
#end
}
#end

#for J in $A $B
// Puts four into a tile, at one k or from one on.
fn keep$J(k: u32, across: u32, x: vec4<f32>) {
#if ${DEEP$J}
#for I in 0 1 2 3
  tile$J[k + $Iu][across >> 2u][across & 3u] = x[$I];
#end
#else
  tile$J[k][across >> 2u] = x;
#end
}
#end

// What a thread fills of 64 rows or columns of a tile: how deep, and how far across. The deep ones
// are so spread that a warp reads whole sectors and writes to all banks.
fn along_k(lane: u32) -> vec2<u32> { return vec2<u32>(lane & 15u, (lane >> 4u) << 2u); }
fn across_k(lane: u32) -> vec2<u32> { return vec2<u32>(lane >> 4u, (lane & 15u) << 2u); }
fn deep(lane: u32) -> vec2<u32> {
  return vec2<u32>(((lane & 1u) | ((lane >> 4u) & 2u)) << 2u, ((lane >> 1u) & 15u) | ((lane >> 6u) << 4u));
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  var m = params.sizes.x;
  let n = params.sizes.y;
  var depth = params.sizes.z;
  let ends = params.ends;
  let first_row = group.y * $TILE;
  let first_column = group.x * $TILE;
  var at = start();
  advance(&at, group.z + params.sizes.w, ends.z, ends.w);
#for J in $ENDS
  // the group's rows, as they are counted here
  var begin_of_group = params.terms;
  if (params.split + group.z > 0u) { begin_of_group = bits$J(at[$J] - params.row); }
  begin_of_group = clamp(begin_of_group, params.terms, params.run) - params.terms;
  let rows = clamp(bits$J(at[$J]), params.terms, params.run) - params.terms - begin_of_group;
#if $DOWN
  depth = rows;
#for I in $A $B
  at[$I] += offset$I(begin_of_group, ends.y, ends.z);
#end
#else
  m = rows;
  if (first_row >= m) { return; }
#for I in $A $OUTPUTS
  at[$I] += offset$I(begin_of_group, 0u, ends.x);
#end
#end
#end

  let fill_a = $A_ALONG(lane);
  let fill_b = $B_ALONG(lane);
#for H in $HALVES
  let rows_$H = at[$A] + places$A(first_row + $Hu * 64u + fill_a.y, m, 0u, ends.x);
  let columns_$H = at[$B] + places$B(first_column + $Hu * 64u + fill_b.y, n, ends.x, ends.y);
  var next_a_$H = fetch$A(rows_$H, fill_a.x, depth);
  var next_b_$H = fetch$B(columns_$H, fill_b.x, depth);
#end

  // A warp has 4 x 8 of the threads: what its threads read of a tile is the same for most.
  let row = ((lane >> 6u) << 2u) | ((lane >> 3u) & 3u);
  let column = ((lane >> 2u) & 8u) | (lane & 7u);
#for H in $HALVES
  let row_$H = $Hu * 16u + row;
  let column_$H = $Hu * 16u + column;
#end
#if $SUM_OF_SUMS
#for H in $HALVES
#for I in 0 1 2 3
#for G in $HALVES
  var total_$H$I_$G = vec4<f32>();
#end
#end
#end
#end
#if $SUM_OF_SUMS
  for (var begin = 0u; begin < depth; begin += 64u) {
    let end = min(begin + 64u, depth);
#else
  let begin = 0u;
  let end = depth;
#end
#for H in $HALVES
#for I in 0 1 2 3
#for G in $HALVES
    var sum_$H$I_$G = vec4<f32>();
#end
#end
#end
    for (var k = begin; k < end; k += 16u) {
#for H in $HALVES
      keep$A(fill_a.x, $Hu * 64u + fill_a.y, next_a_$H);
      keep$B(fill_b.x, $Hu * 64u + fill_b.y, next_b_$H);
#end
      workgroupBarrier();
#for H in $HALVES
      next_a_$H = fetch$A(rows_$H, k + 16u + fill_a.x, depth);
      next_b_$H = fetch$B(columns_$H, k + 16u + fill_b.x, depth);
#end
#for U in $STEPS
#if $U == all
      // a compiler that knew how often would unroll it, and take twice the time
      for (var step = k; step < k + 16u; step++) {
        let i = step & 15u;
#else
      {
        let i = $Uu;
#end
#for H in $HALVES
        let left_$H = tile$A[i][row_$H];
        let right_$H = tile$B[i][column_$H];
#end
#for H in $HALVES
#for I in 0 1 2 3
#for G in $HALVES
        sum_$H$I_$G = fma(vec4<f32>(left_$H[$I]), right_$G, sum_$H$I_$G);
#end
#end
#end
      }
#end
      workgroupBarrier();
    }
#if $SUM_OF_SUMS
#for H in $HALVES
#for I in 0 1 2 3
#for G in $HALVES
    total_$H$I_$G += sum_$H$I_$G;
#end
#end
#end
  }
#end
  var sums: array<array<vec4<f32>, $PARTS>, 4u * $PARTS>; // of the thread's rows
#for H in $HALVES
#for I in 0 1 2 3
#for G in $HALVES
#if $SUM_OF_SUMS
  sums[$Hu * 4u + $Iu][$G] = total_$H$I_$G;
#else
  sums[$Hu * 4u + $Iu][$G] = sum_$H$I_$G;
#end
#end
#end
#end
  for (var i = 0u; i < 4u * $PARTS; i++) {
    let to_row = first_row + (i >> 2u) * 64u + row * 4u + (i & 3u);
    if (to_row >= m) { break; }
#for J in $OUTPUTS
    let row$J = at[$J] + offset$J(to_row, 0u, ends.x);
#end
    for (var g = 0u; g < $PARTS; g++) {
      let to_column = first_column + g * 64u + column * 4u;
      if (to_column >= n) { break; }
#for J in $OUTPUTS
#if ${QUAD$J}
      let at$J = row$J + offset$J(to_column, ends.x, ends.y);
      var four$J = vec4<f32>();
#if $ACCUMULATES
      let before$J = quad$J(at$J);
#end
#end
#end
      for (var c = 0u; c < min(n - to_column, 4u); c++) {
        var sum = sums[i][g][c];
#for J in $BIASES
        sum += decode_${CODE$J}(bits$J(at[$J] + offset$J(to_column + c, ends.x, ends.y)));
#end
#for J in $OUTPUTS
#if ${PLACE$J} == 0
        var value$J = value_$KIND(sum);
#else
        var value$J = sum;
#end
#if ${QUAD$J}
#if $ACCUMULATES
        if (params.accumulate != 0u) { value$J += before$J[c]; }
#end
        four$J[c] = value$J;
#else
        let at$J = row$J + offset$J(to_column + c, ends.x, ends.y);
#if $ACCUMULATES
        if (params.accumulate != 0u) { value$J += decode_${CODE$J}(bits$J(at$J)); }
#end
        put$J(at$J, encode_${CODE$J}(value$J));
#end
#end
      }
#for J in $OUTPUTS
#if ${QUAD$J}
      put_quad$J(at$J, four$J);
#end
#end
    }
  }
}
