// y = f(x) for each index, where f is compute() of formulas. A thread reads for all its turns
// before it computes.
//
//   TURNS  the turns of a thread
//   PER    the indices of a turn: four neighbours where every operand has them side by side or has
//          one element for all, otherwise one
//   EACH   the numbers of a turn's indices if the loop over them is written out, `all` if it is not
//   FLAT   there is one dimension
#include numbers
#include storage
#include activation
#include loops
#include formulas

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let first = (group.y * params.row + group.x) * $THREADS + lane;
  if (first >= params.count) { return; }
#for T in $TURNS
  let index_$T = first + $Tu * 256u;
  var at_$T = start();
#if $FLAT
#for J in $OPERANDS
  at_$T[$J] += min(index_$T, params.count - 1u) * params.operands[$J].strides[0][0];
#end
#else
  advance(&at_$T, min(index_$T, params.count - 1u), 0u, params.rank);
#end
#for J in $QUADS_READ
  let in$J_$T = quad$J(at_$T[$J]);
#end
#for J in $READ
  let in$J_$T = vec4<Real>(decode_${CODE$J}(bits$J(at_$T[$J])));
#end
#end
#for T in $TURNS
  if (index_$T < params.count) {
#for J in $OUTPUTS
    var out$J = vec4<Real>();
#end
#for U in $EACH
#if $U == all
    for (var i = 0u; i < $PER; i++) {
#else
    {
      let i = $Uu;
#end
      var x: array<Real, 4>; // those that are absent stay zero
#for J in $INPUTS
      x[${PLACE$J}] = in$J_$T[i];
#end
      let y = compute(x);
#for J in $OUTPUTS
      out$J[i] = y[${PLACE$J}];
#if $ACCUMULATES
      if (params.accumulate != 0u) { out$J[i] += in$J_$T[i]; }
#end
#end
    }
#end
#for J in $OUTPUTS
#if ${QUAD$J}
    put_quad$J(at_$T[$J], out$J);
#else
    put$J(at_$T[$J], encode_${CODE$J}(out$J.x));
#end
#end
  }
#end
}
