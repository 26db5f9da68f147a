// y = f(x) for each index, where f is compute() of formulas. A thread does PER indices: two where an output's dtype has 16 bits, which lie in one word if the output
// is contiguous (MODE is pair), and otherwise are put there one by one.
#include numbers
#include storage
#include activation
#include loops
#include formulas

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let first = ((group.y * params.row + group.x) * 256u + lane) * $PER;
  if (first >= params.count) { return; }
#for J in $PAIRS
  var word$J = 0u;
#end
  for (var i = 0u; i < $PER; i++) {
    if (first + i >= params.count) { break; }
    var at = start();
    advance(&at, first + i, 0u, params.rank);
    let y = compute(load(at));
#for J in $OUTPUTS
    var value$J = y[${PLACE$J}];
#if $ACCUMULATES
    if (params.accumulate != 0u) { value$J += decode_${CODE$J}(bits$J(at[$J])); }
#end
#if ${MODE$J} == pair
    word$J |= encode_${CODE$J}(value$J) << (i << 4u);
#else
    put$J(at[$J], encode_${CODE$J}(value$J));
#end
#end
  }
#for J in $PAIRS
  b$J[(params.operands[$J].base + first) >> 1u] = word$J;
#end
}
