// Rows that move to groups and back, for mixtures of experts: which rows each group has, and what
// is computed row by row. go/backend/grouped.go has the formulas.
//
//   grouped_ends                       ends of offsets that may make no sense
//   grouped_route_rank, _scan, _place  a stable sort of slots by their experts
//   grouped_tokens                     the token of each place
//   grouped_count_rows, _scan, _place  the processes that tokens' rows go to
//   grouped_scatter_slots              what tokens' slots select, beside their rows
//   grouped_scatter_<bytes>            rows of tokens to the places of their slots
//   grouped_combine_<dtype>            rows at the places of a token's slots, scaled and added up
//   grouped_scale_gradient_<dtype>     gradients of the scales
//   grouped_scale_hidden_<dtype>       products of rows, and rows scaled in place
//   grouped_zero_<bytes>               zeros in rows that are nobody's
//
// <bytes> is the size of what is copied at once: an element, or 16. <dtype> alone names the form
// with vectors of 16 bytes, which have contiguous columns; with _strided it takes any strides, and
// gives the same bits. Integer tensors that kernels write (ends, places) are contiguous.
#include <type_traits>

#include "groups.cuh"

namespace epigrad::grouped {

constexpr int most_routed = 8192;  // groups that a block can have in shared memory

// Ends are the parameters of grouped_ends.
struct Ends {
  const void *offsets;
  int64_t stride;
  int32_t *ends;
  int64_t groups;
  int32_t rows;
  int32_t is_wide;  // whether offsets are int64
};
static_assert(sizeof(Ends) == 5 * 8, "go/backend/cuda has the same layout");

// inclusive_scan combines the numbers of threads up to each.
template <class Combine>
__device__ __forceinline__ int32_t inclusive_scan(int32_t x, int32_t (&shared)[2][block_threads], Combine combine) {
  int side = 0;
  __syncthreads();
  shared[0][threadIdx.x] = x;
  for (unsigned step = 1; step < block_threads; step *= 2) {
    __syncthreads();
    if (threadIdx.x >= step) x = combine(shared[side][threadIdx.x - step], x);
    side ^= 1;
    shared[side][threadIdx.x] = x;
  }
  return x;
}

// find_ends is the running maximum of offsets, none of them below 0 or above the rows: whatever the
// offsets are, no kernel leaves its tensors. One block does it.
__device__ __forceinline__ void find_ends(const Ends &p) {
  __shared__ int32_t shared[2][block_threads];
  __shared__ int32_t before;
  if (threadIdx.x == 0) before = 0;
  for (int64_t first = 0; first < p.groups; first += block_threads) {
    const int64_t group = first + threadIdx.x;
    int32_t end = 0;
    if (group < p.groups) {
      const int64_t offset =
          p.is_wide ? __ldg(static_cast<const int64_t *>(p.offsets) + group * p.stride) : __ldg(static_cast<const int32_t *>(p.offsets) + group * p.stride);
      end = static_cast<int32_t>(offset < 0 ? 0 : min(offset, static_cast<int64_t>(p.rows)));
    }
    const auto larger = [](int32_t x, int32_t y) { return x > y ? x : y; };
    end = inclusive_scan(end, shared, larger);
    end = larger(before, end);
    if (group < p.groups) p.ends[group] = end;
    __syncthreads();
    if (threadIdx.x == block_threads - 1) before = end;
    __syncthreads();
  }
}

// Route are the parameters of the kernels that sort slots. These are cut into chunks of `rounds`
// times block_threads.
struct Route {
  const int64_t *index;
  int64_t row_stride, column_stride;
  int32_t *ends, *places;
  int32_t *counts;  // [chunks, groups]: of a chunk's slots; then, of those of all chunks before it
  int32_t *totals;  // [groups]
  uint32_t slots, each;
  int32_t groups, rounds, chunks;
  // whether there is one chunk, whose counts are totals
  int32_t is_one_chunk;
  int32_t rows, unused;
};
static_assert(sizeof(Route) == 7 * 8 + 8 * 4, "go/backend/cuda has the same layout");

// group_at is the group that a slot names, or -1.
__device__ __forceinline__ int32_t group_at(const Route &p, int64_t slot) {
  if (slot >= p.slots) return -1;
  const uint32_t token = static_cast<uint32_t>(slot) / p.each, j = static_cast<uint32_t>(slot) - token * p.each;
  const int64_t group = __ldg(p.index + token * p.row_stride + j * p.column_stride);
  return group < 0 || group >= p.groups ? -1 : static_cast<int32_t>(group);
}

// rank gives each slot of a chunk, as its place, the number of slots before it that have its group,
// and counts those of each group.
__device__ __forceinline__ void rank(const Route &p) {
  __shared__ int32_t next[most_routed];
  __shared__ uint4 named[block_threads / 4];
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t group = thread; group < p.groups; group += block_threads) next[group] = 0;
  for (int32_t round = 0; round < p.rounds; round++) {
    const int64_t slot = (static_cast<int64_t>(blockIdx.x) * p.rounds + round) * block_threads + thread;
    const int32_t group = group_at(p, slot);
    __syncthreads();
    reinterpret_cast<int32_t *>(named)[thread] = group;
    __syncthreads();
    int32_t before = 0, all = 0;
#pragma unroll 8
    for (int32_t i = 0; i < block_threads / 4; i++) {
      const uint4 four = named[i];
      const uint32_t others[] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int32_t j = 0; j < 4; j++) {
        const int32_t same = others[j] == static_cast<uint32_t>(group);
        all += same;
        before += 4 * i + j < thread ? same : 0;
      }
    }
    const int32_t start = group < 0 ? 0 : next[group];
    if (slot < p.slots) p.places[slot] = group < 0 ? -1 : start + before;
    __syncthreads();
    if (group >= 0 && before + 1 == all) next[group] = start + all;
  }
  __syncthreads();
  for (int32_t group = thread; group < p.groups; group += block_threads) p.counts[static_cast<int64_t>(blockIdx.x) * p.groups + group] = next[group];
}

constexpr int scan_groups = 8, scan_parts = block_threads / scan_groups;

// scan turns counts into those of all chunks before, for scan_groups groups in each block. A thread
// has one group and a part of the chunks.
__device__ __forceinline__ void scan(const Route &p) {
  __shared__ int32_t shared[scan_parts][scan_groups];
  const int part = threadIdx.x / scan_groups, column = threadIdx.x % scan_groups;
  const int64_t group = static_cast<int64_t>(blockIdx.x) * scan_groups + column;
  const int32_t each = (p.chunks + scan_parts - 1) / scan_parts, first = min(part * each, p.chunks), end = min(first + each, p.chunks);
  int32_t sum = 0;
  if (group < p.groups) {
#pragma unroll 8
    for (int32_t chunk = first; chunk < end; chunk++) sum += p.counts[chunk * static_cast<int64_t>(p.groups) + group];
  }
  shared[part][column] = sum;
  __syncthreads();
  if (group >= p.groups) return;
  int32_t before = 0;
  for (int i = 0; i < part; i++) before += shared[i][column];
  if (part == scan_parts - 1) p.totals[group] = before + sum;
#pragma unroll 8
  for (int32_t chunk = first; chunk < end; chunk++) {
    int32_t *count = p.counts + chunk * static_cast<int64_t>(p.groups) + group;
    const int32_t own = *count;
    *count = before;
    before += own;
  }
}

// place adds to each slot's place the rows of all groups before, and those of chunks before. A slot
// that no row is left for has no place.
__device__ __forceinline__ void place(const Route &p) {
  __shared__ int32_t starts[most_routed];
  __shared__ int32_t shared[2][block_threads];
  const int32_t *totals = p.is_one_chunk ? p.counts : p.totals;
  const int32_t each = (p.groups + block_threads - 1) / block_threads, first = min(static_cast<int32_t>(threadIdx.x) * each, p.groups),
                end = min(first + each, p.groups);
  int32_t sum = 0;
  for (int32_t group = first; group < end; group++) sum += __ldg(totals + group);
  int32_t start = inclusive_scan(sum, shared, [](int32_t x, int32_t y) { return x + y; }) - sum;
  for (int32_t group = first; group < end; group++) {
    starts[group] = start;
    start += __ldg(totals + group);
    if (blockIdx.x == 0) p.ends[group] = min(start, p.rows);
  }
  __syncthreads();
  const int64_t chunk_slots = static_cast<int64_t>(p.rounds) * block_threads, step = static_cast<int64_t>(gridDim.x) * block_threads;
  for (int64_t slot = static_cast<int64_t>(blockIdx.x) * block_threads + threadIdx.x; slot < p.slots; slot += step) {
    const int32_t group = group_at(p, slot);
    if (group < 0) continue;
    const int32_t before = p.is_one_chunk ? 0 : __ldg(p.counts + slot / chunk_slots * p.groups + group);
    const int32_t row = p.places[slot] + starts[group] + before;
    p.places[slot] = row < p.rows ? row : -1;
  }
}

// Tokens are the parameters of grouped_tokens. Those behind the last place are not written.
struct Tokens {
  const int32_t *places;
  int32_t *tokens;  // [rows]
  uint32_t slots, each;
};
static_assert(sizeof(Tokens) == 2 * 8 + 2 * 4, "go/backend/cuda has the same layout");

__device__ __forceinline__ void tokens_of_places(const Tokens &p) {
  const uint32_t slot = blockIdx.x * block_threads + threadIdx.x;
  const int32_t place = slot < p.slots ? __ldg(p.places + slot) : -1;
  if (place >= 0) p.tokens[place] = static_cast<int32_t>(slot / p.each);
}

// Count are the parameters of the kernels that count rows for processes. Each part of the tokens is
// cut into segments, of so many tokens. A thread has a segment and a rank; 2^lanes ranks are side
// by side, and those above follow in turns. The blocks of a part have no segment of another.
struct Count {
  const int64_t *index;
  int64_t row_stride, column_stride;
  const int64_t *experts;  // [ranks + 1]
  const int64_t *bounds;   // [chunks + 1]: the first part of each
  const int64_t *facts;
  int64_t *counts;  // [ranks, 2 parts + 1 + facts]
  int32_t *places;  // [tokens, ranks]
  int32_t *rows;    // [ranks, parts of segments]: of each segment; then, of those before
  int32_t *slots;   // the same
  int64_t tokens, part_tokens, segment_tokens;
  int32_t each, ranks, chunks, facts_count, parts, lanes, part_blocks, unused;
};
static_assert(sizeof(Count) == 13 * 8 + 8 * 4, "go/backend/cuda has the same layout");

// Segment is a thread's: its number, and its tokens.
struct Segment {
  int64_t number, first, end;

  __device__ __forceinline__ explicit Segment(const Count &p) {
    const int64_t part = blockIdx.x / p.part_blocks,
                  within = static_cast<int64_t>(blockIdx.x % p.part_blocks) << (block_threads_log2 - p.lanes) | threadIdx.x >> p.lanes;
    number = part * part_segments(p) + within;
    end = min((part + 1) * p.part_tokens, p.tokens);
    first = min(part * p.part_tokens + within * p.segment_tokens, end);
    end = min(first + p.segment_tokens, end);
  }

  static __device__ __forceinline__ int64_t part_segments(const Count &p) { return static_cast<int64_t>(p.part_blocks) << (block_threads_log2 - p.lanes); }
};

// selected is how many slots of a token select an expert of a rank.
__device__ __forceinline__ int32_t selected(const Count &p, int64_t token, int64_t first, int64_t end) {
  int32_t count = 0;
#pragma unroll 8
  for (int32_t j = 0; j < p.each; j++) {
    const int64_t expert = __ldg(p.index + token * p.row_stride + j * p.column_stride);
    count += expert >= first && expert < end;
  }
  return count;
}

__device__ __forceinline__ void count_segments(const Count &p) {
  const Segment segment(p);
  const int64_t segments = p.parts * Segment::part_segments(p);
  for (int32_t rank = threadIdx.x & ((1u << p.lanes) - 1); rank < p.ranks; rank += 1 << p.lanes) {
    const int64_t first = __ldg(p.experts + rank), end = __ldg(p.experts + rank + 1);
    int32_t rows = 0, slots = 0;
    for (int64_t token = segment.first; token < segment.end; token++) {
      const int32_t count = selected(p, token, first, end);
      rows += count > 0;
      slots += count;
    }
    p.rows[rank * segments + segment.number] = rows;
    p.slots[rank * segments + segment.number] = slots;
  }
}

// scan_segments turns counts of segments into those of all before, and tells each part's. A block
// has a rank.
__device__ __forceinline__ void scan_segments(const Count &p) {
  __shared__ int32_t shared[2][block_threads];
  __shared__ int32_t all;
  const int64_t segments = p.parts * Segment::part_segments(p), each = (segments + block_threads - 1) / block_threads;
  const int64_t first = min(threadIdx.x * each, segments), end = min(first + each, segments);
  int64_t *out = p.counts + blockIdx.x * (2 * static_cast<int64_t>(p.parts) + 1 + p.facts_count);
  for (int32_t kind = 0; kind < 2; kind++) {
    int32_t *counts = (kind == 0 ? p.rows : p.slots) + blockIdx.x * segments;
    int32_t sum = 0;
#pragma unroll 8
    for (int64_t i = first; i < end; i++) sum += counts[i];
    int32_t before = inclusive_scan(sum, shared, [](int32_t x, int32_t y) { return x + y; }) - sum;
#pragma unroll 8
    for (int64_t i = first; i < end; i++) {
      const int32_t own = counts[i];
      counts[i] = before;
      before += own;
    }
    if (threadIdx.x == block_threads - 1) all = before;
    __syncthreads();
    for (int32_t part = static_cast<int32_t>(threadIdx.x); part < p.parts; part += block_threads) {
      const int64_t next = (part + 1) * Segment::part_segments(p);
      out[kind * p.parts + part] = (next < segments ? counts[next] : all) - counts[part * Segment::part_segments(p)];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) out[2 * p.parts] = p.tokens;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < p.facts_count; i += block_threads) out[2 * p.parts + 1 + i] = __ldg(p.facts + i);
}

// place_rows numbers the rows of a chunk's tokens.
__device__ __forceinline__ void place_rows(const Count &p) {
  __shared__ int32_t starts[most_routed];  // where the rows for each rank begin
  __shared__ int32_t shared[2][block_threads];
  const int32_t part = static_cast<int32_t>(blockIdx.x) / p.part_blocks, width = 2 * p.parts + 1 + p.facts_count;
  int32_t begin = 0, stop = p.parts;
  for (int32_t chunk = 0; chunk < p.chunks; chunk++) {
    if (__ldg(p.bounds + chunk) > part) break;
    begin = static_cast<int32_t>(max(__ldg(p.bounds + chunk), int64_t(0)));
    stop = static_cast<int32_t>(min(__ldg(p.bounds + chunk + 1), static_cast<int64_t>(p.parts)));
  }
  const auto rows_for = [&](int32_t rank) {
    int32_t rows = 0;
    for (int32_t i = begin; i < stop; i++) rows += static_cast<int32_t>(__ldg(p.counts + static_cast<int64_t>(rank) * width + i));
    return rows;
  };
  const int32_t each = (p.ranks + block_threads - 1) / block_threads, first = min(static_cast<int32_t>(threadIdx.x) * each, p.ranks),
                end = min(first + each, p.ranks);
  int32_t sum = 0;
  for (int32_t rank = first; rank < end; rank++) {
    starts[rank] = sum;
    sum += rows_for(rank);
  }
  const int32_t before = inclusive_scan(sum, shared, [](int32_t x, int32_t y) { return x + y; }) - sum;
  for (int32_t rank = first; rank < end; rank++) starts[rank] += before;
  __syncthreads();
  const Segment segment(p);
  const int64_t segments = p.parts * Segment::part_segments(p), chunk_first = begin * Segment::part_segments(p);
  for (int32_t rank = threadIdx.x & ((1u << p.lanes) - 1); rank < p.ranks; rank += 1 << p.lanes) {
    const int64_t first_expert = __ldg(p.experts + rank), end_expert = __ldg(p.experts + rank + 1);
    const int32_t *rows = p.rows + rank * segments;
    int32_t place = starts[rank] + __ldg(rows + segment.number) - __ldg(rows + chunk_first);
    for (int64_t token = segment.first; token < segment.end; token++) {
      p.places[token * p.ranks + rank] = selected(p, token, first_expert, end_expert) > 0 ? place++ : -1;
    }
  }
}

// Slots are places, and scales of tensors that may have another dtype; strides in elements. A place
// outside of the rows is none. Scatter and Combine have 2^lanes threads side by side in a row.
struct Slots {
  const int32_t *places;  // [tokens, each]
  const void *scale;      // null for none
  int64_t scale_row_stride, scale_column_stride;
  int32_t scale_is_float, each;
  int32_t rows, unused;

  // place is a slot's row, or -1.
  __device__ __forceinline__ int32_t place(const int32_t *slot) const {
    const int32_t row = __ldg(slot);
    return row < rows ? row : -1;
  }
};
static_assert(sizeof(Slots) == 6 * 8, "go/backend/cuda has the same layout");

// Scatter are the parameters of grouped_scatter; rows have elements of so many bytes, or vectors.
struct Scatter {
  Matrix input, out;
  Slots slots;
  void *scales;  // [rows]; null for none
  int64_t tokens, columns;
  int32_t lanes;
  int32_t scale_type;  // 0 float, 1 double, 2 bfloat16, 3 float16; scales are double where this is
};
static_assert(sizeof(Scatter) == 2 * 32 + 48 + 4 * 8, "go/backend/cuda has the same layout");

__device__ __forceinline__ void scatter_scale(const void *scale, int32_t scale_type, int64_t from, void *scales, int64_t to) {
  if (scale_type == 1) {
    static_cast<double *>(scales)[to] = f64::load(static_cast<const f64 *>(scale) + from);
    return;
  }
  float x;
  if (scale_type == 0) {
    x = f32::load(static_cast<const f32 *>(scale) + from);
  } else if (scale_type == 2) {
    x = bf16::load(static_cast<const bf16 *>(scale) + from);
  } else {
    x = f16::load(static_cast<const f16 *>(scale) + from);
  }
  static_cast<float *>(scales)[to] = x;
}

// ScatterSlots are the parameters of grouped_scatter_slots. Strides are in elements.
struct ScatterSlots {
  const int64_t *index;
  int64_t index_row_stride, index_column_stride;
  const void *scale;
  int64_t scale_row_stride, scale_column_stride;
  const int64_t *experts;  // [ranks + 1]
  const int32_t *places;   // [tokens, ranks]
  int64_t *rows_index;
  int64_t rows_index_row_stride, rows_index_column_stride;
  void *rows_scale;
  int64_t rows_scale_row_stride, rows_scale_column_stride;
  uint32_t slots, each;
  int32_t ranks, rows;
  int32_t scale_type;  // as in Scatter
  int32_t unused;
};
static_assert(sizeof(ScatterSlots) == 14 * 8 + 6 * 4, "go/backend/cuda has the same layout");

// scatter_slots has a thread for each slot.
__device__ __forceinline__ void scatter_slots(const ScatterSlots &p) {
  const uint32_t slot = blockIdx.x * block_threads + threadIdx.x;
  if (slot >= p.slots) return;
  const int64_t token = slot / p.each, j = slot - token * p.each;
  const int64_t expert = __ldg(p.index + token * p.index_row_stride + j * p.index_column_stride);
  for (int32_t rank = 0; rank < p.ranks; rank++) {
    const int64_t place = __ldg(p.places + token * p.ranks + rank);
    if (place < 0 || place >= p.rows) continue;
    const int64_t first = __ldg(p.experts + rank), end = __ldg(p.experts + rank + 1);
    p.rows_index[place * p.rows_index_row_stride + j * p.rows_index_column_stride] = expert >= first && expert < end ? expert - first : -1;
    scatter_scale(p.scale, p.scale_type, token * p.scale_row_stride + j * p.scale_column_stride, p.rows_scale,
                  place * p.rows_scale_row_stride + j * p.rows_scale_column_stride);
  }
}

// scatter reads a row once, and writes it to all of its places.
template <class Unit>
__device__ __forceinline__ void scatter(const Scatter &p) {
  const int64_t token = (static_cast<int64_t>(blockIdx.x) << (block_threads_log2 - p.lanes)) + (threadIdx.x >> p.lanes);
  if (token >= p.tokens) return;
  const int64_t lane = threadIdx.x & ((1u << p.lanes) - 1), lanes = int64_t(1) << p.lanes;
  const int32_t *places = p.slots.places + token * p.slots.each;
  if (p.scales != nullptr) {
    for (int64_t j = lane; j < p.slots.each; j += lanes) {
      const int32_t place = p.slots.place(places + j);
      if (place >= 0) scatter_scale(p.slots.scale, p.scale_type, token * p.slots.scale_row_stride + j * p.slots.scale_column_stride, p.scales, place);
    }
  }
  const Unit *from = element<Unit>(p.input, 0, token, 0);
#pragma unroll 2
  for (int64_t column = lane; column < p.columns; column += lanes) {
    const Unit x = __ldg(from + column * p.input.column_stride);
    for (int32_t j = 0; j < p.slots.each; j++) {
      const int32_t place = p.slots.place(places + j);
      if (place >= 0) *element<Unit>(p.out, 0, place, column) = x;
    }
  }
}

// Combine are the parameters of grouped_combine.
struct Combine {
  Matrix input, out;
  Slots slots;
  int64_t tokens;
  int64_t columns;  // vectors, or elements
  int32_t lanes, unused;
};
static_assert(sizeof(Combine) == 2 * 32 + 48 + 3 * 8, "go/backend/cuda has the same layout");

// Piece is what a thread has of a row: a vector, or an element.
template <class Storage, bool vectors>
struct Piece {
  using Real = typename Storage::Real;
  static constexpr int width = vectors ? Storage::width : 1;
  // slots whose rows a thread loads before it adds them up
  static constexpr int at_once = vectors ? 4 : 1;
  Real x[width];

  __device__ __forceinline__ void store(Storage *p) const {
    if constexpr (vectors) {
      *reinterpret_cast<uint4 *>(p) = Storage::pack(x);
    } else {
      Storage::store(p, x[0]);
    }
  }

  // add adds a part of another row, which is still as it lies in memory.
  __device__ __forceinline__ void add(Real scale, const uint4 &raw, Real element) {
    Real y[width];
    if constexpr (vectors) {
      Storage::unpack(y, raw);
    } else {
      y[0] = element;
    }
#pragma unroll
    for (int e = 0; e < width; e++) x[e] = fused(scale, y[e], x[e]);
  }
};

// combine adds up the rows of a token's slots, in the order of the slots.
template <class Storage, bool vectors>
__device__ __forceinline__ void combine(const Combine &p) {
  using Real = typename Storage::Real;
  using Part = Piece<Storage, vectors>;
  const int64_t token = (static_cast<int64_t>(blockIdx.x) << (block_threads_log2 - p.lanes)) + (threadIdx.x >> p.lanes);
  if (token >= p.tokens) return;
  const int64_t lane = threadIdx.x & ((1u << p.lanes) - 1), lanes = int64_t(1) << p.lanes;
  const int32_t *places = p.slots.places + token * p.slots.each;
#pragma unroll 1
  for (int64_t column = lane; column < p.columns; column += lanes) {
    Part sum = {};
#pragma unroll 1
    for (int32_t first = 0; first < p.slots.each; first += Part::at_once) {
      int32_t place[Part::at_once];
      uint4 raw[Part::at_once];
      Real number[Part::at_once], scale[Part::at_once];
#pragma unroll
      for (int i = 0; i < Part::at_once; i++) place[i] = first + i < p.slots.each ? p.slots.place(places + first + i) : -1;
#pragma unroll
      for (int i = 0; i < Part::at_once; i++) {
        raw[i] = {}, number[i] = 0, scale[i] = 1;
        if (place[i] < 0) continue;
        const Storage *from = element<Storage>(p.input, 0, place[i], column * Part::width);
        if constexpr (vectors) {
          raw[i] = __ldg(reinterpret_cast<const uint4 *>(from));
        } else {
          number[i] = Storage::load(from);
        }
        if (p.slots.scale != nullptr) {
          scale[i] =
              load_number<Storage>(p.slots.scale, token * p.slots.scale_row_stride + (first + i) * p.slots.scale_column_stride, p.slots.scale_is_float != 0);
        }
      }
#pragma unroll
      for (int i = 0; i < Part::at_once; i++) {
        if (place[i] >= 0) sum.add(scale[i], raw[i], number[i]);
      }
    }
    sum.store(element<Storage>(p.out, 0, token, column * Part::width));
  }
}

constexpr int row_lanes = 32, block_rows = block_threads / row_lanes;  // of the kernels below

// RowSum is what the kernels below add up a row's products in: those of float in double, so that
// the sum is as good as its terms.
template <class Storage>
using RowSum = std::conditional_t<std::is_same_v<Storage, f32>, double, typename Storage::Real>;

// ScaleGradient are the parameters of grouped_scale_gradient.
struct ScaleGradient {
  const void *sums;  // [rows], in the type that sums are in
  const int32_t *places;
  const int64_t *index;
  int64_t index_row_stride, index_column_stride;
  Matrix grad_output, bias;  // bias has a row for each group; null for none
  void *grad_scale;
  int64_t row_stride, column_stride;
  int64_t columns;
  uint32_t slots, each;
  int32_t is_float;  // whether grad_scale is
  int32_t unused;
};
static_assert(sizeof(ScaleGradient) == 5 * 8 + 2 * 32 + 4 * 8 + 16, "go/backend/cuda has the same layout");

template <class Storage>
__device__ __forceinline__ void scale_gradient(const ScaleGradient &p) {
  using Real = typename Storage::Real;
  using Sum = RowSum<Storage>;
  __shared__ Sum shared[block_threads];
  const int lane = threadIdx.x % row_lanes;
  const int64_t slot = static_cast<int64_t>(blockIdx.x) * block_rows + threadIdx.x / row_lanes;
  const bool is_slot = slot < p.slots;
  const uint32_t token = is_slot ? static_cast<uint32_t>(slot) / p.each : 0, j = is_slot ? static_cast<uint32_t>(slot) - token * p.each : 0;
  const int32_t place = is_slot ? __ldg(p.places + slot) : -1;
  Sum sum = 0;
  if (place >= 0 && p.bias.data != nullptr) {
    const int64_t group = __ldg(p.index + token * p.index_row_stride + j * p.index_column_stride);
    const Storage *bias = element<Storage>(p.bias, 0, group, 0), *grad = element<Storage>(p.grad_output, 0, token, 0);
#pragma unroll 4
    for (int64_t column = lane; column < p.columns; column += row_lanes) {
      sum = fused(Sum(Storage::load(bias + column * p.bias.column_stride)), Sum(Storage::load(grad + column * p.grad_output.column_stride)), sum);
    }
  }
  sum = sum_of_lanes(shared + threadIdx.x, sum, lane, row_lanes, 1);
  if (lane != 0 || !is_slot) return;
  if (place >= 0) sum += __ldg(static_cast<const Real *>(p.sums) + place);
  store_number<Storage>(p.grad_scale, token * p.row_stride + j * p.column_stride, static_cast<Real>(sum), p.is_float != 0);
}

// ScaleHidden are the parameters of grouped_scale_hidden: either matrix may be null.
struct ScaleHidden {
  Matrix grad, hidden;
  const void *scales;  // [rows] in the type that sums are in; null for ones
  void *sums;          // [rows]; null for none
  const int32_t *ends;
  int64_t columns;
  int32_t groups;
  int32_t scales_grad, scales_hidden;  // whether these are scaled
  int32_t unused;
};
static_assert(sizeof(ScaleHidden) == 2 * 32 + 4 * 8 + 16, "go/backend/cuda has the same layout");

// scale_hidden writes sums = <hidden, grad> of each row, and scales both in place. A thread has
// whole vectors in both forms, so that sums have one order.
template <class Storage, bool vectors>
__device__ __forceinline__ void scale_hidden(const ScaleHidden &p) {
  using Real = typename Storage::Real;
  using Sum = RowSum<Storage>;
  constexpr int width = Storage::width;
  __shared__ Sum shared[block_threads];
  const int lane = threadIdx.x % row_lanes;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * block_rows + threadIdx.x / row_lanes;
  const bool is_row = row < rows_of_all(p.ends, p.groups);
  const Real scale = is_row && p.scales != nullptr ? __ldg(static_cast<const Real *>(p.scales) + row) : Real(1);
  Sum sum = 0;
  for (int64_t first = lane * width; is_row && first < p.columns; first += row_lanes * width) {
    Real g[width] = {}, h[width] = {};
    const auto visit = [&](const Matrix &m, Real(&x)[width], bool is_scaled, bool writes) {
      if (m.data == nullptr) return;
      Storage *from = element<Storage>(m, 0, row, first);
      if constexpr (vectors) {
        if (writes) {
          if (is_scaled) *reinterpret_cast<uint4 *>(from) = Storage::pack(x);
        } else {
          Storage::unpack(x, *reinterpret_cast<const uint4 *>(from));
        }
      } else {
#pragma unroll
        for (int e = 0; e < width; e++) {
          if (first + e >= p.columns) break;
          if (!writes) x[e] = Storage::reload(from + e * m.column_stride);
          if (writes && is_scaled) Storage::store(from + e * m.column_stride, x[e]);
        }
      }
    };
    visit(p.grad, g, false, false);
    visit(p.hidden, h, false, false);
#pragma unroll
    for (int e = 0; e < width; e++) {
      sum = fused(Sum(g[e]), Sum(h[e]), sum);
      g[e] *= scale;
      h[e] *= scale;
    }
    visit(p.grad, g, p.scales_grad != 0, true);
    visit(p.hidden, h, p.scales_hidden != 0, true);
  }
  if (p.sums == nullptr) return;
  sum = sum_of_lanes(shared + threadIdx.x, sum, lane, row_lanes, 1);
  if (lane == 0 && is_row) static_cast<Real *>(p.sums)[row] = static_cast<Real>(sum);
}

// Zero are the parameters of grouped_zero.
struct Zero {
  Matrix out;
  const int32_t *ends;
  int64_t rows, columns;
  int32_t groups, lanes;
};
static_assert(sizeof(Zero) == 32 + 4 * 8, "go/backend/cuda has the same layout");

template <class Unit>
__device__ __forceinline__ void zero(const Zero &p) {
  const int64_t rows_at_once = static_cast<int64_t>(gridDim.x) << (block_threads_log2 - p.lanes);
  int64_t row = rows_of_all(p.ends, p.groups) + (static_cast<int64_t>(blockIdx.x) << (block_threads_log2 - p.lanes)) + (threadIdx.x >> p.lanes);
  for (; row < p.rows; row += rows_at_once) {
    for (int64_t column = threadIdx.x & ((1u << p.lanes) - 1); column < p.columns; column += int64_t(1) << p.lanes) {
      *element<Unit>(p.out, 0, row, column) = Unit{};
    }
  }
}

}  // namespace epigrad::grouped

#define GROUPED_ROWS(name, Parameters, ...)                                                                     \
  EPG_KERNEL name(const __grid_constant__ epigrad::grouped::Parameters p) { epigrad::grouped::__VA_ARGS__(p); } \
  EPG_REGISTER(name)
#define GROUPED_UNITS(bytes, Unit)                              \
  GROUPED_ROWS(grouped_scatter_##bytes, Scatter, scatter<Unit>) \
  GROUPED_ROWS(grouped_zero_##bytes, Zero, zero<Unit>)
#define GROUPED_NUMBERS(dtype, unused)                                                        \
  GROUPED_ROWS(grouped_combine_##dtype, Combine, combine<epigrad::dtype, true>)               \
  GROUPED_ROWS(grouped_combine_##dtype##_strided, Combine, combine<epigrad::dtype, false>)    \
  GROUPED_ROWS(grouped_scale_gradient_##dtype, ScaleGradient, scale_gradient<epigrad::dtype>) \
  GROUPED_ROWS(grouped_scale_hidden_##dtype, ScaleHidden, scale_hidden<epigrad::dtype, true>) \
  GROUPED_ROWS(grouped_scale_hidden_##dtype##_strided, ScaleHidden, scale_hidden<epigrad::dtype, false>)
GROUPED_ROWS(grouped_ends, Ends, find_ends)
GROUPED_ROWS(grouped_route_rank, Route, rank)
GROUPED_ROWS(grouped_route_scan, Route, scan)
GROUPED_ROWS(grouped_route_place, Route, place)
GROUPED_ROWS(grouped_tokens, Tokens, tokens_of_places)
GROUPED_ROWS(grouped_count_rows, Count, count_segments)
GROUPED_ROWS(grouped_count_scan, Count, scan_segments)
GROUPED_ROWS(grouped_count_place, Count, place_rows)
GROUPED_ROWS(grouped_scatter_slots, ScatterSlots, scatter_slots)
GROUPED_UNITS(2, uint16_t)
GROUPED_UNITS(4, uint32_t)
GROUPED_UNITS(8, uint64_t)
GROUPED_UNITS(16, uint4)
EPG_FOR_EACH_DTYPE(GROUPED_NUMBERS, )
