// What every kernel has: its parameters, its operands, and the way from an index to a place in each
// of them.
//
// An operand is a buffer of words with a dtype; it starts at an element and has strides, in
// elements, which may be negative: offsets are added modulo 2^32. Indices are taken apart over some
// of the dimensions, of which the first given is the innermost. Operands that are absent do not
// exist here; COUNT are there.
//
// OPERANDS are their numbers; of each, SLOT is its binding, ACCESS and WORD are its binding's, TYPE
// is its dtype, and where QUAD is set its elements are read and written four at a time. REAL is
// f32, or u32 where bits are copied.

const most_rank = 16u;

struct Operand {
  base: u32,
  strides: array<vec4<u32>, 4>,
}

struct Params {
  count: u32, // indices
  row: u32, // groups along x: too many go on along y; gemm: the stride of ends
  rank: u32,
  accumulate: u32,
  rest: f32, // 1 - lerp's weight, with the digits that the weight loses in float32
  split: u32, // reduce: the first dimension that is summed over; gemm: the first group
  terms: u32, // reduce: indices that are summed over; gemm: the first row
  run: u32, // reduce: terms of a thread; gemm: the end of the rows
  sizes: vec4<u32>, // gemm: m, n, k, and the first step of the batch
  ends: vec4<u32>, // gemm: where the dimensions of m, n, k and of the batch end
  parameters: vec4<f32>, // the numbers of the formula (activation.wgsl); or lerp's weight
  lows: vec4<f32>, // what float32 leaves out of them
  limits: vec2<u32>, // gated: the bits of limit and of limit_after, where there is none 2^32-1
  offset: f32,
  shape: array<vec4<u32>, 4>,
  operands: array<Operand, $COUNT>,
}

@group(0) @binding(0) var<uniform> params: Params;
#for J in $OPERANDS
@group(0) @binding(${SLOT$J}) var<storage, ${ACCESS$J}> b$J: array<${WORD$J}>;
#end

alias Real = $REAL;
alias Places = array<u32, $COUNT>;

// start is the first element of each operand.
fn start() -> Places {
  var at: Places;
#for J in $OPERANDS
  at[$J] = params.operands[$J].base;
#end
  return at;
}

// advance moves by an index over the dimensions from first to last.
fn advance(at: ptr<function, Places>, index: u32, first: u32, last: u32) {
  var rest = index;
  for (var d = first; d < last; d++) {
    var here = rest;
    if (d + 1u < last) {
      let size = params.shape[d >> 2u][d & 3u];
      rest = rest / size;
      here -= rest * size;
    }
#for J in $OPERANDS
    (*at)[$J] += here * params.operands[$J].strides[d >> 2u][d & 3u];
#end
  }
}

// bits of an element, as they lie in memory: of those that are in READ.
#for J in $READ
fn bits$J(at: u32) -> u32 {
#if ${TYPE$J} == f32
  return b$J[at];
#elif ${WORD$J} == u32
  return (b$J[at >> 1u] >> ((at & 1u) << 4u)) & 0xffffu;
#else
  return (atomicLoad(&b$J[at >> 1u]) >> ((at & 1u) << 4u)) & 0xffffu;
#end
}
#end

// put writes one element, of those that are in WRITTEN. Of a word that holds two, its halves may be
// written by two threads at once.
#for J in $WRITTEN
fn put$J(at: u32, bits: u32) {
#if ${TYPE$J} == f32
  b$J[at] = bits;
#elif ${WORD$J} != u32
  let shift = (at & 1u) << 4u;
  atomicAnd(&b$J[at >> 1u], 0xffff0000u >> shift);
  atomicOr(&b$J[at >> 1u], bits << shift);
#end
}
#end

// quad reads four neighbours, put_quad writes them. The first one's place is a multiple of four,
// from where the buffer starts.
#for J in $QUADS_READ
fn quad$J(at: u32) -> vec4<Real> { return decode_four_${CODE$J}(b$J[at >> 2u]); }
#end
#for J in $QUADS_WRITTEN
fn put_quad$J(at: u32, x: vec4<Real>) { b$J[at >> 2u] = encode_four_${CODE$J}(x); }
#end
