// y = f(x) for each index, where f is compute() of formulas. A thread does PER indices: four neighbours where all operands' lie side by side, or are one element, and
// otherwise one.
#include numbers
#include storage
#include activation
#include loops
#include formulas

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let index = (group.y * params.row + group.x) * 256u + lane;
  if (index >= params.count) { return; }
  var at = start();
  advance(&at, index, 0u, params.rank);
#for J in $QUADS_READ
  let in$J = quad$J(at[$J]);
#end
#for J in $READ
  let in$J = vec4<u32>(bits$J(at[$J]));
#end
#for J in $OUTPUTS
  var out$J = vec4<u32>();
#end
  for (var i = 0u; i < $PER; i++) {
    var x: array<Real, 4>; // those that are absent stay zero
#for J in $INPUTS
    x[${PLACE$J}] = decode_${CODE$J}(in$J[i]);
#end
    let y = compute(x);
#for J in $OUTPUTS
    var value$J = y[${PLACE$J}];
#if $ACCUMULATES
    if (params.accumulate != 0u) { value$J += decode_${CODE$J}(in$J[i]); }
#end
    out$J[i] = encode_${CODE$J}(value$J);
#end
  }
#for J in $OUTPUTS
#if ${QUAD$J}
  put_quad$J(at[$J], out$J);
#else
  put$J(at[$J], out$J.x);
#end
#end
}
