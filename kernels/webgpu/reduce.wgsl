// Sums of f(x), before it is rounded, over some of the dimensions. Four threads add up a run of
// terms for one kept index. One of them writes the sum, in float32, to
//
//   partial[chunk, kept index]
//
// whose chunks are sizes.x elements apart. The same kernel then adds those up, with the identity
// for f, until there is one chunk. A thread adds four of each 16 terms of a run, and 16 times four
// at most. This order follows from the loops alone.
//
// With NEIGHBOURS the four are neighbouring threads, and the next four add the next run. This suits
// terms that are neighbours in memory. Without it neighbouring threads have neighbouring kept
// indices. With SUBGROUPS neighbouring threads exchange sums without the group's memory. Neither
// changes a bit of the result.
#if $SUBGROUPS == enabled
enable subgroups;
#end
#include numbers
#include storage
#include activation
#include loops
#include formulas

#if $SUBGROUPS
// of_four is the sum over four neighbours.
fn of_four(x: f32, lane: u32) -> f32 {
  let pair = x + subgroupShuffleXor(x, 1u);
  return pair + subgroupShuffleXor(pair, 2u);
}
#else
var<workgroup> sums_of_threads: array<f32, 256>;

// of_four is the sum over the four threads that share a run.
fn of_four(x: f32, lane: u32) -> f32 {
  workgroupBarrier();
  sums_of_threads[lane] = x;
  workgroupBarrier();
  let first = lane & ~(3u * $APART);
  let two = sums_of_threads[first] + sums_of_threads[first + $APART];
  return two + (sums_of_threads[first + 2u * $APART] + sums_of_threads[first + 3u * $APART]);
}
#end

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let first_unit = (group.y * params.row + group.x) * 64u;
  let chunks = params.sizes.y;
#if $NEIGHBOURS
  let part = lane & 3u;
  let unit = first_unit + (lane >> 2u);
  let kept = unit / chunks;
  let chunk = unit - kept * chunks;
#else
  let part = lane >> 6u;
  let unit = first_unit + (lane & 63u);
  let chunk = unit / params.count;
  let kept = unit - chunk * params.count;
#end
  // Threads beyond the last have no terms, and go on: those who share a run meet.
  let is_there = chunk < chunks && kept < params.count;
  let begin = chunk * params.run;
  let end = select(begin, min(begin + params.run, params.terms), is_there);
  var row = start();
  advance(&row, kept, 0u, params.split);
  var sums: array<f32, 3>;
  for (var term = begin + part * 4u; term < end; term += 16u) {
    var four = array<f32, 3>(); // said outright: naga does not zero a variable anew in every turn
#if $QUADS_READ
    var at = row;
    advance(&at, term, params.split, params.rank);
#end
#for J in $QUADS_READ
    let in$J = quad$J(at[$J]);
#end
    for (var i = 0u; i < 4u; i++) {
      if (term + i >= end) { break; }
#if $QUADS_READ
#else
      var at = row;
      advance(&at, term + i, params.split, params.rank);
#end
      var x: array<Real, 4>; // those that are absent stay zero
#for J in $INPUTS
#if ${QUAD$J}
      x[${PLACE$J}] = in$J[i];
#else
      x[${PLACE$J}] = decode_${CODE$J}(bits$J(at[$J]));
#end
#end
      let y = compute(x);
#for J in $OUTPUTS
      four[${PLACE$J}] += y[${PLACE$J}];
#end
    }
#for J in $OUTPUTS
    sums[${PLACE$J}] += four[${PLACE$J}];
#end
  }
#for J in $OUTPUTS
  let sum$J = of_four(sums[${PLACE$J}], lane);
  if (is_there && part == 0u) { put$J(row[$J] + chunk * params.sizes.x, bitcast<u32>(sum$J)); }
#end
}
