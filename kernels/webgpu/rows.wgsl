// What moves rows to the places that data names, and what finds these. MOVE says which.
//
// An index has four parts: the column, the slot of a token, the token or row, and last what data
// names, a row or a group. Operands have a stride for each. A thread has one index of the first
// three, whose sizes are those of shape. Names are 32 bits; a name that is none is negative.
//
// split, terms, run and sizes mean something else for each MOVE, which says it. But sizes.z are
// rows of which data names some: a name from there on is none.
#include numbers
#include storage
#include loops

#for J in $OPERANDS
fn at$J(i: vec4<u32>) -> u32 {
  let steps = i * params.operands[$J].strides[0];
  return params.operands[$J].base + steps.x + steps.y + steps.z + steps.w;
}
#end

const nothing = 0xffffffffu;

#if $MOVE == ends
// ends = offsets, where they make sense; else the nearest number that does. terms are the groups,
// sizes.x the rows. An offset of 64 bits has its upper half split words further on.
fn solve(i: vec4<u32>) {
  var before = 0u;
  for (var e = 0u; e < params.terms; e++) {
    let at = at$FROM(vec4<u32>(0u, 0u, 0u, e));
    let low = bits$FROM(at);
#if $WIDE
    let high = bits$FROM(at + params.split);
#else
    let high = select(0u, nothing, low > 0x7fffffffu);
#end
    let end = select(select(low, params.sizes.x, high != 0u || low > params.sizes.x), 0u, high > 0x7fffffffu);
    before = max(before, end);
    put$TO(at$TO(vec4<u32>(0u, 0u, 0u, e)), before);
  }
}
#elif $MOVE == scan
// before[chunk, group] = the slots of the group in the chunks before; ends[group] = those in all.
// terms are the chunks.
fn solve(i: vec4<u32>) {
  var sum = 0u;
  for (var chunk = 0u; chunk < params.terms; chunk++) {
    let here = vec4<u32>(i.x, 0u, 0u, chunk);
    put$TO(at$TO(here), sum);
    sum += bits$FROM(at$FROM(here));
  }
  put$TOTALS(at$TOTALS(i), sum);
}
#elif $MOVE == add
// ends = the sums of the totals so far, as far as there are rows. terms are the groups.
fn solve(i: vec4<u32>) {
  var sum = 0u;
  for (var e = 0u; e < params.terms; e++) {
    sum += bits$FROM(at$FROM(vec4<u32>(e, 0u, 0u, 0u)));
    put$TO(at$TO(vec4<u32>(0u, 0u, 0u, e)), min(sum, params.sizes.z));
  }
}
#elif $MOVE == scatter
// to[places[token, slot], column] = from[token, slot, column].
fn solve(i: vec4<u32>) {
  let row = bits$PLACES(at$PLACES(i));
  if (row >= params.sizes.z) { return; }
  let x = bits$FROM(at$FROM(i));
#if ${CODE$TO} == ${CODE$FROM}
  put$TO(at$TO(vec4<u32>(i.xyz, row)), x);
#else
  put$TO(at$TO(vec4<u32>(i.xyz, row)), encode_${CODE$TO}(decode_${CODE$FROM}(x)));
#end
}
#elif $MOVE == combine
// to[token, column] = the sum over slots of scale[token, slot] from[places[token, slot], column].
// terms are the slots.
fn solve(i: vec4<u32>) {
  var sum = 0.0;
  for (var j = 0u; j < params.terms; j++) {
    let slot = vec4<u32>(i.x, j, i.z, 0u);
    let row = bits$PLACES(at$PLACES(slot));
    if (row >= params.sizes.z) { continue; }
    let x = decode_${CODE$FROM}(bits$FROM(at$FROM(vec4<u32>(slot.xyz, row))));
#if $SCALE
    sum += decode_${CODE$SCALE}(bits$SCALE(at$SCALE(slot))) * x;
#else
    sum += x;
#end
  }
  put$TO(at$TO(i), encode_${CODE$TO}(sum));
}
#elif $MOVE == scale_gradient
// to[token, slot] = from[places[token, slot]] + <bias[index[token, slot]], grad[token]>, or 0 where
// the slot has no place. terms are the columns, which are added in runs of 64.
fn solve(i: vec4<u32>) {
  let row = bits$PLACES(at$PLACES(i));
  var sum = 0.0;
  if (row < 0x80000000u) {
    sum = decode_${CODE$FROM}(bits$FROM(at$FROM(vec4<u32>(i.xyz, row))));
#if $BIAS
    let group = bits$INDEX(at$INDEX(i));
    for (var begin = 0u; begin < params.terms; begin += 64u) {
      var part = 0.0;
      for (var c = begin; c < min(begin + 64u, params.terms); c++) {
        part += decode_${CODE$BIAS}(bits$BIAS(at$BIAS(vec4<u32>(c, i.yz, group)))) * decode_${CODE$GRAD}(bits$GRAD(at$GRAD(vec4<u32>(c, i.yzw))));
      }
      sum += part;
    }
#end
  }
  put$TO(at$TO(i), encode_${CODE$TO}(sum));
}
#elif $MOVE == zero
// to[row, column] = 0 from the last group's end on. terms are the groups.
fn solve(i: vec4<u32>) {
  if (i.z >= bits$FROM(at$FROM(vec4<u32>(0u, 0u, 0u, params.terms - 1u)))) { put$TO(at$TO(i), 0u); }
}
#else
// Slots are sorted in chunks of run slots; terms are all slots. A thread has a chunk and a group.
// sizes.x are the slots of a token, sizes.y the groups.
fn group_of(slot: u32) -> u32 {
  let at = at$INDEX(vec4<u32>(0u, slot % params.sizes.x, slot / params.sizes.x, 0u));
  let group = bits$INDEX(at);
  return select(nothing, group, bits$INDEX(at + params.split) == 0u && group < params.sizes.y);
}

#if $MOVE == count
// counts[chunk, group] = how many slots of the chunk are the group's.
fn solve(i: vec4<u32>) {
  var sum = 0u;
  let first = i.z * params.run;
  for (var slot = first; slot < min(first + params.run, params.terms); slot++) {
    sum += select(0u, 1u, group_of(slot) == i.x);
  }
  put$TO(at$TO(i), sum);
}
#else
// places[slot] = its row, or -1, which the first group's thread writes. before is scan's.
fn solve(i: vec4<u32>) {
  var row = 0u;
#if $BEFORE
  row = bits$BEFORE(at$BEFORE(i));
  if (i.x > 0u) { row += bits$ENDS(at$ENDS(vec4<u32>(0u, 0u, 0u, i.x - 1u))); }
#end
  let first = i.z * params.run;
  for (var slot = first; slot < min(first + params.run, params.terms); slot++) {
    let group = group_of(slot);
    let at = at$TO(vec4<u32>(0u, slot % params.sizes.x, slot / params.sizes.x, 0u));
    if (group == nothing && i.x == 0u) { put$TO(at, nothing); }
    if (group == i.x) {
      put$TO(at, select(nothing, row, row < params.sizes.z));
      row++;
    }
  }
}
#end
#end

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let index = (group.y * params.row + group.x) * 256u + lane;
  if (index >= params.count) { return; }
  let shape = params.shape[0];
  let rest = index / shape.x;
  solve(vec4<u32>(index % shape.x, rest % shape.y, rest / shape.y, 0u));
}
