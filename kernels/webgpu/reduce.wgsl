// Sums of f(x), before it is rounded, over some of the dimensions. A thread adds up a run of terms for one kept index, and writes the sum, in float32, to
// partial[chunk, kept index], whose chunks are sizes.x elements apart; the same kernel then adds those up (f is the identity), until there is one chunk. Terms are added in
// eights, and at most 8 of those one after the other, in an order that follows from the shapes alone.
#include numbers
#include storage
#include activation
#include loops
#include formulas

// load reads the inputs of compute; those that are absent are zero.
fn load(at: Places) -> array<Real, 4> {
  var x: array<Real, 4>;
#for J in $INPUTS
  x[${PLACE$J}] = decode_${CODE$J}(bits$J(at[$J]));
#end
  return x;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let index = (group.y * params.row + group.x) * 256u + lane;
  let chunk = index / params.count;
  let kept = index - chunk * params.count;
  let end = min(params.terms - min(params.terms, chunk * params.run), params.run) + chunk * params.run;
  if (chunk * params.run >= params.terms) { return; }
  var row = start();
  advance(&row, kept, 0u, params.split);
  var sums: array<f32, 3>;
  for (var term = chunk * params.run; term < end; term += 8u) {
    var part = array<f32, 3>(); // said outright: naga does not zero a variable anew in every turn
    for (var i = term; i < min(term + 8u, end); i++) {
      var at = row;
      advance(&at, i, params.split, params.rank);
      let y = compute(load(at));
#for J in $OUTPUTS
      part[${PLACE$J}] += y[${PLACE$J}];
#end
    }
#for J in $OUTPUTS
    sums[${PLACE$J}] += part[${PLACE$J}];
#end
  }
#for J in $OUTPUTS
  put$J(row[$J] + chunk * params.sizes.x, bitcast<u32>(sums[${PLACE$J}]));
#end
}
