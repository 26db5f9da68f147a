// What a product is given, what it keeps in shared memory, and the tiles that a block walks over
// (product_sm90.cuh).
#pragma once

#include "sm90.cuh"

namespace epigrad::sm90 {

constexpr int group_threads = 128, consumers = 2, threads = (1 + consumers) * group_threads;

// In each round of all blocks a block goes on by so many places from where its tile was, or to the
// opposite one.
constexpr int forth_and_back = -1;

// ProductParameters are the kernel's. All maps have a swizzle of 128 bytes, and elements of the
// dtype, but for the float output of the depth kind; sizes, strides in bytes and boxes are
// innermost first.
//
// A ragged map (sm90.cuh) is of a matrix of rows: sizes {columns, 2^30, 0x7fff0000, 0x7fff0000},
// strides {row, row, 2^35 - row}. It says nothing of the number of rows. A weight's map has sizes
// {contiguous, other, groups} and strides {other, group}: the depth is contiguous where the form is
// nt, and the columns are where it is nn.
//
// Rows kind, where `pair` counts the products that are added up:
//   left      [pair] the weight, box {64, 64, 1}, or {64, 128, 1} of a dense layer's single weight
//             that is nt; of halves [0] is the value's and [1] the gate's
//   right     [pair] x, ragged, box {64, 64, 1, 1}, or {64, tile_right, 1, 1} of a dense layer;
//             with tokens it is only looked at by the host, for x's alignment
//   inputs    ragged, box {64, box_rows, 1, 1}
//   outputs   likewise
//
//                             inputs        outputs                         biases
//   linear                                  out, pre (not of none)          of the columns
//   gated, halves                           hidden, value, gate             value's, gate's
//   gated, interleaved                      hidden, pre                     of pre's columns
//   backward                  pre           grad_pre, hidden
//   backward, halves          value, gate   grad_value, grad_gate, hidden
//   backward, interleaved     pre           grad_pre, (none), hidden
//
// Where value and gate are halves of one matrix, each half has a map of its own: columns beyond it
// are the other half's. Outputs from the second on may not be wanted, but for the gradients.
//
// Depth kind, which has one pair:
//   left[0]   [0] a, ragged, box {64, 64, 1, 1}; turned: b
//   right[0]  b, likewise; turned: a; with tokens as x is
//   outputs   [0] alone: sizes {n, m, groups}, box {64, 64, 1}, or of float {32, 64, 1}
//
// A pair, an input or an output that is not there has no map.
//
// Sums along rows are in parts: there are 4 for each 128 columns, of which each has all rows. Sums
// along columns are of tiles of rows, by their numbers (groups.cuh). Each has the columns of
// grad_pre in their order; grouped_finish_sums adds up those of groups.
constexpr int most_pairs = 2;
struct ProductParameters {
  TensorMap left[most_pairs][2], right[most_pairs], inputs[2], outputs[3];
  const int32_t *ends;                 // [groups], not falling; null: a dense layer
  const int32_t *tokens;               // [rows], where each row is in x; null: in its place
  const void *x;                       // right[0]'s, read where there are tokens
  uint32_t x_stride;                   // from one row of it to the next one, in 16 bytes
  const void *biases[2];               // [groups, columns] each, or null
  const float *scales;                 // [rows], or null: ones
  float *row_sums;                     // [4 ceil(columns / 128), rows], or null
  float *column_sums;                  // [tiles of rows, grad_pre's columns], or null
  double parameters[most_parameters];  // of the formula
  int32_t groups, rows;
  int32_t depths[most_pairs];  // rows kind: of the pairs, 0 of one that is not there
  int32_t columns;             // of out or hidden; depth kind: m, or n where it is turned
  int32_t right_columns;       // depth kind: n, or m
  int32_t bias_stride;         // elements from one group's bias to the next one's
  int32_t band;                // tiles walked together: of groups down, of a layer across
  int32_t shift;               // of groups: places that a tile goes on by, or forth_and_back
  int32_t gate_first;          // whether the gate comes before the value, in pairs or as halves
  int32_t accumulate;          // depth kind: add to what is there, before it is rounded
  uint32_t wanted;             // bit i: outputs[i]
};
static_assert(sizeof(ProductParameters) == 1600, "go/backend/cuda has the same layout");

// A tile has blocks of 64 of the left operand's columns or rows: two, or one where rows are few.
// Steps along the depth are 64 long.
constexpr int tile_depth = 64, block_bytes = 64 * 64 * 2, most_shared = 227 * 1024;
// The most rows of a group's tile, or columns of the right operand, and how many groups there are;
// and the rows of a dense layer's tile where it has few.
constexpr int group_tile = 192, most_groups = 512, few_rows = 64;

// How a weight lies: its depth is contiguous, or its columns are.
constexpr bool nt = false, nn = true;

// Memory is what a kernel has in shared memory: stages, each consumer's slots for boxes that come
// and leave, tables of groups, each consumer's scales, and barriers.
template <int blocks, int tile_right, int stages, int boxes, int box_bytes, int groups, bool scaled>
struct Memory {
  static constexpr int left_bytes = blocks * block_bytes, stage_bytes = left_bytes + tile_right * tile_depth * 2;
  static constexpr int slot_bytes = boxes * box_bytes, scale_bytes = scaled ? tile_right * 4 : 0, table_bytes = (groups + 1) / 2 * 8;
  static constexpr int rest = most_shared - stages * stage_bytes - 2 * table_bytes - 16 - consumers * scale_bytes - 2 * 8 * stages;
  static constexpr int fitting = rest / (consumers * (slot_bytes + 8)), slots = fitting < 8 ? fitting : 8;
  static constexpr int slots_at = stages * stage_bytes, ends_at = slots_at + consumers * slots * slot_bytes;
  static constexpr int table_at = ends_at + table_bytes, total_at = table_at + table_bytes, scales_at = total_at + 16;
  static constexpr int full_at = scales_at + consumers * scale_bytes, empty_at = full_at + 8 * stages, ready_at = empty_at + 8 * stages;
  static_assert(slots > 1 && ready_at + 8 * consumers * slots <= most_shared && slots_at % 1024 == 0 && slot_bytes % 1024 == 0);
  // A slot takes the next box once those that follow have left as well: nobody waits for the copy.
  static constexpr int lag = slots > 2 ? 2 : 1;
};

// OfRows is a kernel of the rows kind; form is nt or nn, of the weight. A box has 64 columns of the
// result and box_rows rows. A tile of groups multiplies as many rows as it has, in steps of 16;
// that of a dense layer always multiplies all.
template <class Storage_, bool form, class Epilogue_, int tile_rows = group_tile, bool grouped_ = true>
struct OfRows {
  using Storage = Storage_;
  using Epilogue = Epilogue_;
  static constexpr bool of_rows = true, grouped = grouped_, turned = false, across_left = form, across_right = false;
  static constexpr bool scaled = grouped && Epilogue::backward, biased = !Epilogue::backward;
  static constexpr int tile_right = tile_rows, step = grouped ? 16 : tile_rows;
  // A dense forward has few and large boxes.
  static constexpr bool large_boxes = !grouped && !Epilogue::backward;
  static constexpr int box_rows = large_boxes ? 64 : Epilogue::box_rows, box_step = box_rows, box_bytes = box_rows * 128;
  // How many rows share their code: that of all boxes would not fit into the instruction cache.
  static constexpr bool moves_sums = Epilogue::backward;
  static constexpr int strip_rows = moves_sums ? tile_rows / 4 : box_rows;
  // A tile has the value's and the gate's sums of 64 columns, or 128 columns' sums; with few rows
  // 64, so that more blocks have some.
  static constexpr int blocks = tile_rows == few_rows && Epilogue::rights == 1 ? 1 : 2;
  static constexpr int columns = 64 * blocks / Epilogue::rights, sets = columns / 64;
  static constexpr int inputs = Epilogue::inputs, outputs = Epilogue::outputs;
  static constexpr int stages = tile_rows == few_rows ? (Epilogue::rights == 1 ? 8 : 5) : tile_rows == 128 && inputs == 0 && Epilogue::rights == 1 ? 5 : 4;
  // A backward's epilogue needs more of a block's registers.
  static constexpr int loader_registers = !grouped ? 24 : Epilogue::backward ? 40 : 56;
  using Shared = Memory<blocks, tile_right, stages, outputs, box_bytes, grouped ? most_groups : 0, scaled>;
  static_assert(inputs <= outputs, "inputs lie where outputs will");
};

// OfDepth is one of the depth kind, with results in Storage, or in float. A box has 64 rows. Where
// it is turned, the left operand is b and the right one a: fewer tiles may then do.
template <class Storage_, bool in_float_, bool turned_>
struct OfDepth {
  using Storage = Storage_;
  static constexpr bool of_rows = false, grouped = true, biased = false, scaled = false, large_boxes = false, moves_sums = false;
  static constexpr bool across_left = true, across_right = true, in_float = in_float_, turned = turned_;
  static constexpr int tile_right = group_tile, step = 64, stages = 4, loader_registers = 40;
  static constexpr int box_columns = in_float ? 32 : 64, box_step = box_columns, box_bytes = 64 * 128;
  static constexpr int blocks = 2, columns = 64 * blocks, sets = blocks, inputs = 1, outputs = 1;
  using Shared = Memory<blocks, tile_right, stages, 1, box_bytes, most_groups, false>;
  static_assert(!(turned && in_float), "boxes of float are of the left operand's rows");
};

// Tile is what a block forms at a time.
struct Tile {
  int group;
  int left;        // the first of the columns that the left operand gives
  int right;       // rows kind: the first row; depth kind: the first column of b
  int width;       // how many there are of those
  int begin, end;  // depth kind: the group's rows
  int steps;       // along the depth
  int last;        // how much the last step has, by 16
  int number;      // rows kind: which tile of rows it is, as groups.cuh counts
};

EPG_INLINE int up(int x, int unit) { return (x + unit - 1) / unit; }

// make_tables gives a block's threads the ends, and
//
//   rows kind    how many tiles of rows groups have up to and with each
//   depth kind   the groups by falling size: long tiles come first, so that the last round is short
//
// and the number of all tiles.
template <class P>
EPG_INLINE void make_tables(const ProductParameters &p, uint8_t *memory) {
  int32_t *ends = reinterpret_cast<int32_t *>(memory + P::Shared::ends_at), *table = reinterpret_cast<int32_t *>(memory + P::Shared::table_at);
  int32_t *total = reinterpret_cast<int32_t *>(memory + P::Shared::total_at);
  for (int e = threadIdx.x; e < p.groups; e += threads) ends[e] = __ldg(p.ends + e);
  __syncthreads();
  const auto rows_of = [&](int e) { return ends[e] - (e > 0 ? ends[e - 1] : 0); };
  if constexpr (!P::of_rows) {
    for (int e = threadIdx.x; e < p.groups; e += threads) {
      const int rows = rows_of(e);
      int larger = 0;
      for (int other = 0, begin = 0; other < p.groups; other++) {
        const int others = ends[other] - begin;
        begin = ends[other];
        larger += others > rows || (others == rows && other < e);
      }
      table[larger] = e;
    }
  }
  if (threadIdx.x < 32) {
    int before = 0;
    for (int first = 0; first < p.groups; first += 32) {
      const int e = first + static_cast<int>(threadIdx.x);
      int tiles = 0;
      if (e < p.groups) tiles = P::of_rows ? up(rows_of(e), P::tile_right) : !p.accumulate || rows_of(e) > 0;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int more = __shfl_up_sync(~0u, tiles, distance);
        if (static_cast<int>(threadIdx.x) >= distance) tiles += more;
      }
      if (P::of_rows && e < p.groups) table[e] = before + tiles;
      before += __shfl_sync(~0u, tiles, 31);
    }
    const int per = P::of_rows ? up(p.columns, P::columns) : up(p.columns, P::columns) * up(p.right_columns, P::tile_right);
    if (threadIdx.x == 0) *total = before * per;
  }
}

// Walk gives a block's tiles one after the other.
template <class P, bool grouped = P::grouped>
struct Walk {
  const ProductParameters &p;
  const int32_t *const ends, *const table, *const total;
  int number, place, group = 0, before = 0;  // before: tiles of rows of the groups before

  EPG_INLINE Walk(const ProductParameters &parameters, const uint8_t *memory)
      : p(parameters),
        ends(reinterpret_cast<const int32_t *>(memory + P::Shared::ends_at)),
        table(reinterpret_cast<const int32_t *>(memory + P::Shared::table_at)),
        total(reinterpret_cast<const int32_t *>(memory + P::Shared::total_at)),
        number(blockIdx.x),
        place(blockIdx.x) {
    find_group();
  }

  EPG_INLINE bool more() const { return number < *total; }
  EPG_INLINE bool one_more() const { return next_number() < *total; }
  EPG_INLINE void next() {
    number = next_number();
    place = next_place();
    find_group();
  }

  EPG_INLINE Tile tile() const {
    Tile t;
    if constexpr (P::of_rows) {
      const int begin = group > 0 ? ends[group - 1] : 0, rows = ends[group] - begin, tiles = table[group] - before;
      int down, across;
      find(number - before * tiles_across(), tiles, tiles_across(), down, across);
      const int width = up(up(rows, tiles), 16) * 16;
      t.group = group;
      t.left = across * P::columns;
      t.right = begin + down * width;
      t.width = min(width, rows - down * width);
      t.begin = t.right;
      t.end = t.right + t.width;
      t.steps = up(p.depths[0], tile_depth) + up(p.depths[1], tile_depth);
      t.last = 4;
      t.number = group + begin / group_tile + down;
    } else {
      const int tiles_down = up(p.columns, P::columns), per = tiles_down * tiles_across(), at = number / per;
      int down, across;
      find(number - at * per, tiles_down, tiles_across(), down, across);
      t.group = table[at];
      t.left = down * P::columns;
      t.right = across * P::tile_right;
      t.width = min(P::tile_right, p.right_columns - t.right);
      t.begin = t.group > 0 ? ends[t.group - 1] : 0;
      t.end = ends[t.group];
      t.steps = max(1, up(t.end - t.begin, tile_depth));
      t.last = max(1, up(t.end - t.begin - (t.steps - 1) * tile_depth, 16));
      t.number = 0;
    }
    return t;
  }

 private:
  EPG_INLINE int tiles_across() const { return P::of_rows ? up(p.columns, P::columns) : up(p.right_columns, P::tile_right); }
  // Bands of tiles keep what they share in the cache.
  EPG_INLINE void find(int n, int tiles_down, int tiles_across, int &down, int &across) const {
    const int in_band = p.band * tiles_across, first = n / in_band * p.band, rest = n % in_band;
    const int height = min(p.band, tiles_down - first);
    down = first + rest % height;
    across = rest / height;
  }
  EPG_INLINE int next_place() const {
    const int blocks = static_cast<int>(gridDim.x);
    return p.shift == forth_and_back ? blocks - 1 - place : (place + p.shift) % blocks;
  }
  EPG_INLINE int next_number() const { return number - place + static_cast<int>(gridDim.x) + next_place(); }
  EPG_INLINE void find_group() {
    if constexpr (P::of_rows) {
      if (!more()) return;
      const int tile_of_rows = number / tiles_across();
      while (tile_of_rows >= table[group]) before = table[group++];
    }
  }
};

// A dense layer's tiles need no tables.
template <class P>
struct Walk<P, false> {
  const ProductParameters &p;
  const int down, across;  // tiles
  int number = blockIdx.x;

  EPG_INLINE Walk(const ProductParameters &parameters, const uint8_t *)
      : p(parameters), down(up(parameters.rows, P::tile_right)), across(up(parameters.columns, P::columns)) {}

  EPG_INLINE bool more() const { return number < down * across; }
  EPG_INLINE bool one_more() const { return number + static_cast<int>(gridDim.x) < down * across; }
  EPG_INLINE void next() { number += static_cast<int>(gridDim.x); }

  EPG_INLINE Tile tile() const {
    const unsigned in_band = p.band * down, band = static_cast<unsigned>(number) / in_band, rest = number - band * in_band;
    const unsigned height = min(p.band, across - static_cast<int>(band) * p.band), other = rest / height, along = rest - other * height;
    Tile t;
    t.group = 0;
    t.left = (band * p.band + along) * P::columns;
    t.right = other * P::tile_right;
    t.width = min(P::tile_right, p.rows - t.right);
    t.begin = t.right;
    t.end = t.right + t.width;
    t.steps = up(p.depths[0], tile_depth) + up(p.depths[1], tile_depth);
    t.last = 4;
    t.number = other;
    return t;
  }
};

}  // namespace epigrad::sm90
