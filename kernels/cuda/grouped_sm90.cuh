// Products of groups (experts) and their epilogues in one kernel, for Hopper. Rows are sorted by
// group, and ends[e] is where those of group e end. There are two kinds:
//
//   rows    result[r, n] = epilogue(sum over k of x[r, k] weight[e, n, k]),  r a row of group e
//   depth   result[e, m, n] = sum over the rows r of group e of a[r, m] b[r, n]
//
// in half types, with sums in float. The rows of a group are known to the device alone, so one
// block runs on each processor, and finds its tiles from the ends. It has three groups of four
// warps:
//
//   movers      one thread copies tiles of the operands into a ring of stages, and one for each
//               consumer the boxes that its epilogue reads, and those that it leaves
//   consumers   two groups, which take tiles in turns: while one multiplies, the other one has its
//               epilogue
//
// The left operand has 128 rows of a tile, the right one up to 192. Of the first kind the left one
// is the weight and the right one x, so that sums are transposed: 128 columns of the result by up
// to 192 rows of a group. A product of wgmma has any multiple of 16 of those, so that few are for
// nothing, and the tiles of a group have nearly equal widths.
//
// Rows are copied through ragged maps, which end where a tile or a group ends: what lies beyond is
// read as zeros, and not written. So is what lies beyond the depth of one group's weight.
//
// Each result element is formed by one thread, in the order of the depth. Neither the number of
// processors nor neighbours change its bits.
#pragma once

#include <type_traits>

#include "product_sm90.cuh"

namespace epigrad::sm90 {

// EPG_MULTIPLY_WIDTH is EPG_MULTIPLY for all widths and both ways to lie of both operands.
#define EPG_SUMS_16(i) EPG_SUMS_8(i), EPG_SUMS_8(i + 8)
#define EPG_FIRST_8 EPG_SUMS_8(0)
#define EPG_FIRST_16 EPG_SUMS_16(0)
#define EPG_FIRST_24 EPG_FIRST_16, EPG_SUMS_8(16)
#define EPG_FIRST_32 EPG_SUMS_32(0)
#define EPG_FIRST_40 EPG_FIRST_32, EPG_SUMS_8(32)
#define EPG_FIRST_48 EPG_FIRST_32, EPG_SUMS_16(32)
#define EPG_FIRST_56 EPG_FIRST_48, EPG_SUMS_8(48)
#define EPG_FIRST_64 EPG_SUMS_64
#define EPG_FIRST_72 EPG_FIRST_64, EPG_SUMS_8(64)
#define EPG_FIRST_80 EPG_FIRST_64, EPG_SUMS_16(64)
#define EPG_FIRST_88 EPG_FIRST_80, EPG_SUMS_8(80)
#define EPG_FIRST_96 EPG_SUMS_96
#define EPG_TWO(t) "%" t "0,%" t "1"
#define EPG_FOUR(t) EPG_TWO(t) ",%" t "2,%" t "3"
#define EPG_SIX(t) EPG_FOUR(t) ",%" t "4,%" t "5"
#define EPG_EIGHT(t) EPG_SIX(t) ",%" t "6,%" t "7"
#define EPG_LAST_TEN(t) EPG_EIGHT(t) ",%" t "8,%" t "9"
#define EPG_NAMED_8 EPG_EIGHT("")
#define EPG_NAMED_16 EPG_TEN("") EPG_SIX("1")
#define EPG_NAMED_24 EPG_TEN("") EPG_TEN("1") EPG_FOUR("2")
#define EPG_NAMED_32 EPG_TEN("") EPG_TEN("1") EPG_TEN("2") EPG_TWO("3")
#define EPG_NAMED_40 EPG_TEN("") EPG_TEN("1") EPG_TEN("2") EPG_LAST_TEN("3")
#define EPG_NAMED_48 EPG_TEN("") EPG_TEN("1") EPG_TEN("2") EPG_TEN("3") EPG_EIGHT("4")
#define EPG_NAMED_56 EPG_TEN("") EPG_TEN("1") EPG_TEN("2") EPG_TEN("3") EPG_TEN("4") EPG_SIX("5")
#define EPG_NAMED_64 EPG_NAMES_64
#define EPG_NAMED_72 EPG_NAMES_60 EPG_TEN("6") EPG_TWO("7")
#define EPG_NAMED_80 EPG_NAMES_60 EPG_TEN("6") EPG_LAST_TEN("7")
#define EPG_NAMED_88 EPG_NAMES_60 EPG_TEN("6") EPG_TEN("7") EPG_EIGHT("8")
#define EPG_NAMED_96 EPG_NAMES_96
#define EPG_MULTIPLY_TYPE(columns, type, registers, left_at, right_at, add_at, across_left_at, across_right_at) \
  asm volatile("{ .reg .pred add;\nsetp.ne.b32 add, %" add_at                                                   \
               ", 0;\n"                                                                                         \
               "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type " {" EPG_NAMED_##registers \
               "}, %" left_at ", %" right_at ", add, 1, 1, %" across_left_at ", %" across_right_at ";\n}"       \
               : EPG_FIRST_##registers                                                                          \
               : "l"(left), "l"(right), "r"(add), "n"(across_left), "n"(across_right))
#define EPG_MULTIPLY_WIDTH(columns, registers, ...)                                                               \
  if constexpr (width == columns && is_bf16<Storage>) EPG_MULTIPLY_TYPE(columns, "bf16", registers, __VA_ARGS__); \
  if constexpr (width == columns && !is_bf16<Storage>) EPG_MULTIPLY_TYPE(columns, "f16", registers, __VA_ARGS__)

// multiply_first is multiply for the first `width` columns; the left operand may lie across too.
template <class Storage, int width, bool across_left, bool across_right, int room>
EPG_INLINE void multiply_first(float (&s)[room], uint32_t lower_left, uint32_t lower_right, int add) {
  const uint64_t left = described(lower_left), right = described(lower_right);
  static_assert(width % 16 == 0 && 0 < width && width <= 192 && width <= 2 * room);
  EPG_MULTIPLY_WIDTH(16, 8, "8", "9", "10", "11", "12");
  EPG_MULTIPLY_WIDTH(32, 16, "16", "17", "18", "19", "20");
  EPG_MULTIPLY_WIDTH(48, 24, "24", "25", "26", "27", "28");
  EPG_MULTIPLY_WIDTH(64, 32, "32", "33", "34", "35", "36");
  EPG_MULTIPLY_WIDTH(80, 40, "40", "41", "42", "43", "44");
  EPG_MULTIPLY_WIDTH(96, 48, "48", "49", "50", "51", "52");
  EPG_MULTIPLY_WIDTH(112, 56, "56", "57", "58", "59", "60");
  EPG_MULTIPLY_WIDTH(128, 64, "64", "65", "66", "67", "68");
  EPG_MULTIPLY_WIDTH(144, 72, "72", "73", "74", "75", "76");
  EPG_MULTIPLY_WIDTH(160, 80, "80", "81", "82", "83", "84");
  EPG_MULTIPLY_WIDTH(176, 88, "88", "89", "90", "91", "92");
  EPG_MULTIPLY_WIDTH(192, 96, "96", "97", "98", "99", "100");
}

// Copies of a box of one group's matrix, of a map whose last coordinate is the group.
EPG_INLINE void load_box(const TensorMap *map, uint32_t to, uint32_t barrier, int row, int column, int group) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to), "l"(map), "r"(barrier),
               "r"(column), "r"(row), "r"(group)
               : "memory");
}
EPG_INLINE void store_box(const TensorMap *map, uint32_t from, int row, int column, int group) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map), "r"(from), "r"(column), "r"(row), "r"(group)
               : "memory");
}
// A ragged map is of a matrix whose rows end where a copy says. Its sizes are columns, 2^30, and
// twice more than any number of rows, and its strides in bytes are those of a row twice, and
// 2^35 less that. The address of (column, 2^30 + row - end, end, 2^30) is that of the row, since
// 2^65 is left out of 64 bits, and the second coordinate is beyond its size from `end` on.
constexpr int ragged_rows = 1 << 30;
EPG_INLINE void load_ragged_box(const TensorMap *map, uint32_t to, uint32_t barrier, int row, int column, int end) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to), "l"(map),
               "r"(barrier), "r"(column), "r"(ragged_rows + row - end), "r"(end), "r"(ragged_rows)
               : "memory");
}
EPG_INLINE void load_ragged_box_once(const TensorMap *map, uint32_t to, uint32_t barrier, int row, int column, int end, uint64_t policy) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
               "l"(map), "r"(barrier), "r"(column), "r"(ragged_rows + row - end), "r"(end), "r"(ragged_rows), "l"(policy)
               : "memory");
}
EPG_INLINE void store_ragged_box(const TensorMap *map, uint32_t from, int row, int column, int end) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map), "r"(from), "r"(column),
               "r"(ragged_rows + row - end), "r"(end), "r"(ragged_rows)
               : "memory");
}
// What is read once leaves the cache first.
EPG_INLINE uint64_t evict_first() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
  return policy;
}

// store_matrices and load_matrices with rows and columns exchanged: lane l has elements
// 2 (l % 4) and the next one of column l / 4.
EPG_INLINE void store_matrices_across(uint32_t row, const uint32_t (&pairs)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
               : "memory");
}
EPG_INLINE void load_matrices_across(uint32_t row, uint32_t (&pairs)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
               : "r"(row)
               : "memory");
}
EPG_INLINE uint32_t load_word(uint32_t at) {
  uint32_t x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
  return x;
}
EPG_INLINE void load_words(uint32_t at, uint32_t &x, uint32_t &y) { asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(x), "=r"(y) : "r"(at) : "memory"); }
EPG_INLINE void store_word(uint32_t at, uint32_t x) { asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(x) : "memory"); }
EPG_INLINE void store_words(uint32_t at, float x, float y) { asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(x), "f"(y) : "memory"); }

}  // namespace epigrad::sm90

namespace epigrad::sm90::grouped {

constexpr int most_groups = 512;

// In each round of all blocks a block goes on by so many places from where its tile was, or to the
// opposite one.
constexpr int forth_and_back = -1;

// GroupedParameters are the kernel's. All maps have a swizzle of 128 bytes, and elements of the
// dtype, but for the float output of the depth kind; sizes, strides in bytes and boxes are
// innermost first.
//
// A ragged map (above) is of a matrix of rows: sizes {columns, 2^30, 0x7fff0000, 0x7fff0000},
// strides {row, row, 2^35 - row}. It says nothing of the number of rows. A weight's map has sizes
// {contiguous, other, groups} and strides {other, group}: the depth is contiguous where the form is
// nt, and the columns are where it is nn.
//
// Rows kind:
//   left      the weight, box {64, 64, 1}; of halves left[0] is the value's and left[1] the gate's
//   right     x, ragged, box {64, 64, 1, 1}
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
// Depth kind:
//   left[0]   a, ragged, box {64, 64, 1, 1}; turned: b
//   right     b, likewise; turned: a
//   outputs   [0] alone: sizes {n, m, groups}, box {64, 64, 1}, or of float {32, 64, 1}
//
// An input or output that is not there has no map.
//
// Sums along rows are in parts: there are 4 for each 128 columns, of which each has all rows. Sums
// along columns are of tiles of rows: a group of n rows has ceil(n / 192), and they lie in the
// order of groups, so that there are no more than rows / 192 + groups. Each has the columns of
// grad_pre in their order; grouped_sums_sm90.cu adds them up.
struct GroupedParameters {
  TensorMap left[2], right, inputs[2], outputs[3];
  const int32_t *ends;                 // [groups], not falling
  const void *biases[2];               // [groups, columns] each, or null
  const float *scales;                 // [rows], or null: ones
  float *row_sums;                     // [4 ceil(columns / 128), rows], or null
  float *column_sums;                  // [tiles of rows, grad_pre's columns], or null
  double parameters[most_parameters];  // of the formula
  int32_t groups, rows;
  int32_t depth;          // rows kind
  int32_t columns;        // of out or hidden; depth kind: m, or n where it is turned
  int32_t right_columns;  // depth kind: n, or m
  int32_t bias_stride;    // elements from one group's bias to the next one's
  int32_t band;           // tiles, of a group's rows or left columns, that are walked together
  int32_t shift;          // forth_and_back, or places that a block's tile goes on by in each round
  int32_t gate_first;     // whether the gate comes before the value, in pairs or as halves
  int32_t accumulate;     // depth kind: add to what is there, before it is rounded
  uint32_t wanted;        // bit i: outputs[i]
  int32_t unused;
};
static_assert(sizeof(GroupedParameters) == 1152, "go/backend/cuda has the same layout");

// What all tiles have.
constexpr int tile_left = 128, tile_right = 192, tile_depth = 64;
constexpr int stages = 4, block_bytes = 64 * 64 * 2, left_bytes = tile_left * tile_depth * 2, right_bytes = tile_right * tile_depth * 2;
constexpr int stage_bytes = left_bytes + right_bytes, most_shared = 227 * 1024;

// Memory is what a kernel has in shared memory: stages, each consumer's slots for boxes that come
// and leave, records of what lies in them, tables of groups, each consumer's scales, and barriers.
template <int boxes, int box_bytes, bool scaled>
struct Memory {
  static constexpr int slot_bytes = boxes * box_bytes, scale_bytes = scaled ? tile_right * 4 : 0;
  static constexpr int tables_bytes = 2 * most_groups * 4 + 16, record_bytes = 16;
  static constexpr int per_slot = consumers * (slot_bytes + record_bytes + 2 * 8);
  static constexpr int rest = most_shared - stages * stage_bytes - tables_bytes - consumers * scale_bytes - 2 * 8 * stages;
  static constexpr int slots = rest / per_slot < 8 ? rest / per_slot : 8;
  static constexpr int slots_at = stages * stage_bytes, records_at = slots_at + consumers * slots * slot_bytes;
  static constexpr int ends_at = records_at + consumers * slots * record_bytes, table_at = ends_at + most_groups * 4;
  static constexpr int total_at = table_at + most_groups * 4, scales_at = total_at + 16;
  static constexpr int full_at = scales_at + consumers * scale_bytes, empty_at = full_at + 8 * stages;
  static constexpr int ready_at = empty_at + 8 * stages, done_at = ready_at + 8 * consumers * slots;
  static constexpr int bytes = done_at + 8 * consumers * slots;
  static_assert(slots > 1 && bytes <= most_shared && slots_at % 1024 == 0 && slot_bytes % 1024 == 0);
};

// OfRows is a kernel of the rows kind; across is nt or nn, of the weight. A box has 64 columns of
// the result and box_rows rows.
template <class Storage_, bool across, class Epilogue_>
struct OfRows {
  using Storage = Storage_;
  using Epilogue = Epilogue_;
  static constexpr bool of_rows = true, across_left = across, across_right = false;
  static constexpr int box_rows = Epilogue::box_rows, box_step = box_rows, box_bytes = box_rows * 128;
  // A tile has the value's and the gate's sums of 64 columns, or 128 columns' sums.
  static constexpr int columns = tile_left / Epilogue::rights, sets = columns / 64;
  static constexpr int slot_boxes = Epilogue::outputs > Epilogue::inputs ? Epilogue::outputs : Epilogue::inputs;
  static constexpr bool moves_sums = Epilogue::strip_rows > box_rows;
  using Shared = Memory<slot_boxes, box_bytes, Epilogue::scaled>;
};

// OfDepth is one of the depth kind, with results in Storage, or in float. A box has 64 rows. Where
// it is turned, the left operand is b and the right one a: fewer tiles may then do.
template <class Storage_, bool in_float_, bool turned_>
struct OfDepth {
  using Storage = Storage_;
  static constexpr bool of_rows = false, across_left = true, across_right = true, in_float = in_float_, turned = turned_;
  static constexpr int box_columns = in_float ? 32 : 64, box_step = box_columns, box_bytes = 64 * 128;
  static constexpr int columns = tile_left, sets = 2;
  static constexpr bool moves_sums = false;
  using Shared = Memory<1, box_bytes, false>;
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
  int number;      // rows kind: which tile of rows it is, of all groups' in order
};

EPG_INLINE int up(int x, int unit) { return (x + unit - 1) / unit; }

// make_tables gives a block's threads the ends, and
//
//   rows kind    how many tiles of rows groups have up to and with each
//   depth kind   the groups by falling size: long tiles come first, so that the last round is short
//
// and the number of all tiles.
template <class P>
EPG_INLINE void make_tables(const GroupedParameters &p, uint8_t *memory) {
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
      if (e < p.groups) tiles = P::of_rows ? up(rows_of(e), tile_right) : !p.accumulate || rows_of(e) > 0;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int more = __shfl_up_sync(~0u, tiles, distance);
        if (static_cast<int>(threadIdx.x) >= distance) tiles += more;
      }
      if (P::of_rows && e < p.groups) table[e] = before + tiles;
      before += __shfl_sync(~0u, tiles, 31);
    }
    const int per = P::of_rows ? up(p.columns, P::columns) : up(p.columns, tile_left) * up(p.right_columns, tile_right);
    if (threadIdx.x == 0) *total = before * per;
  }
}

// Walk gives a block's tiles one after the other.
template <class P>
struct Walk {
  const GroupedParameters &p;
  const int32_t *const ends, *const table;
  const int total;
  int number, place, group = 0, before = 0;  // before: tiles of rows of the groups before

  EPG_INLINE Walk(const GroupedParameters &parameters, const uint8_t *memory)
      : p(parameters),
        ends(reinterpret_cast<const int32_t *>(memory + P::Shared::ends_at)),
        table(reinterpret_cast<const int32_t *>(memory + P::Shared::table_at)),
        total(*reinterpret_cast<const int32_t *>(memory + P::Shared::total_at)),
        number(blockIdx.x),
        place(blockIdx.x) {
    find_group();
  }

  EPG_INLINE bool more() const { return number < total; }
  EPG_INLINE bool one_more() const { return next_number() < total; }
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
      t.steps = up(p.depth, tile_depth);
      t.last = 4;
      t.number = before + down;
    } else {
      const int tiles_down = up(p.columns, tile_left), per = tiles_down * tiles_across(), at = number / per;
      int down, across;
      find(number - at * per, tiles_down, tiles_across(), down, across);
      t.group = table[at];
      t.left = down * tile_left;
      t.right = across * tile_right;
      t.width = min(tile_right, p.right_columns - t.right);
      t.begin = t.group > 0 ? ends[t.group - 1] : 0;
      t.end = ends[t.group];
      t.steps = max(1, up(t.end - t.begin, tile_depth));
      t.last = max(1, up(t.end - t.begin - (t.steps - 1) * tile_depth, 16));
      t.number = 0;
    }
    return t;
  }

 private:
  EPG_INLINE int tiles_across() const { return P::of_rows ? up(p.columns, P::columns) : up(p.right_columns, tile_right); }
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

// load_operands copies all tiles of the operands.
template <class P>
EPG_INLINE void load_operands(const GroupedParameters &p, uint32_t shared, const uint8_t *memory) {
  using Shared = typename P::Shared;
  Place<stages> place;
  for (Walk<P> walk(p, memory); walk.more(); walk.next()) {
    const Tile t = walk.tile();
    const int blocks = up(t.width, 64);
    for (int step = 0; step < t.steps; step++, place.next()) {
      const uint32_t full = shared + Shared::full_at + 8 * place.stage;
      const uint32_t left = shared + place.stage * stage_bytes, right = left + left_bytes;
      barrier_wait(shared + Shared::empty_at + 8 * place.stage, ~place.round & 1);
      barrier_announce(full, left_bytes + blocks * block_bytes);
      const int depth = step * tile_depth;
      if constexpr (P::of_rows) {
        using Epilogue = typename P::Epilogue;
        constexpr bool halves = Epilogue::rights == 2 && !Epilogue::interleaved;
        const int first = Epilogue::rights == 2 && Epilogue::interleaved ? 2 * t.left : t.left;
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const TensorMap *map = &p.left[halves ? i : 0];
          const int column = halves ? first : first + 64 * i;
          load_box(map, left + i * block_bytes, full, P::across_left ? depth : column, P::across_left ? column : depth, t.group);
        }
        for (int i = 0; i < blocks; i++) load_ragged_box(&p.right, right + i * block_bytes, full, t.right + 64 * i, depth, t.end);
      } else {
#pragma unroll
        for (int i = 0; i < 2; i++) load_ragged_box(&p.left[0], left + i * block_bytes, full, t.begin + depth, t.left + 64 * i, t.end);
        for (int i = 0; i < blocks; i++) load_ragged_box(&p.right, right + i * block_bytes, full, t.begin + depth, t.right + 64 * i, t.end);
      }
    }
  }
}

// move_boxes moves the boxes of a consumer's tiles, in its order: in what the epilogue reads, out
// what it leaves. A slot is ready once that has come, or once it is free, and done when all four
// warps have written theirs.
template <class P>
EPG_INLINE void move_boxes(const GroupedParameters &p, uint32_t shared, uint8_t *memory, int consumer) {
  using Shared = typename P::Shared;
  Walk<P> walk(p, memory);
  if (consumer > 0 && walk.more()) walk.next();
  Tile t = {};
  if (walk.more()) t = walk.tile();
  int along = 0, set = 0;  // of the next box that comes
  int coming = 0, leaving = 0;
  Place<Shared::slots> next, last;
  [[maybe_unused]] const uint64_t policy = evict_first();
  const auto slot_at = [&](int slot) { return shared + Shared::slots_at + (consumer * Shared::slots + slot) * Shared::slot_bytes; };
  const auto record_of = [&](int slot) { return reinterpret_cast<int4 *>(memory + Shared::records_at) + consumer * Shared::slots + slot; };
  const auto begin_box = [&] {
    if (!walk.more()) return;
    const uint32_t ready = shared + Shared::ready_at + 8 * (consumer * Shared::slots + next.stage);
    if constexpr (P::of_rows) {
      using Epilogue = typename P::Epilogue;
      const int row = t.right + along, column = t.left + 64 * set;
      *record_of(next.stage) = make_int4(row, column, t.end, 0);
      if constexpr (Epilogue::inputs > 0) {
        barrier_announce(ready, Epilogue::inputs * P::box_bytes);
#pragma unroll
        for (int i = 0; i < Epilogue::inputs; i++) {
          const TensorMap *map = &p.inputs[Epilogue::interleaved ? 0 : i];
          load_ragged_box_once(map, slot_at(next.stage) + i * P::box_bytes, ready, row, Epilogue::interleaved ? 2 * column + 64 * i : column, t.end, policy);
        }
      } else {
        barrier_arrive(ready);
      }
    } else {
      const int of_left = t.left + 64 * set, of_right = t.right + along;
      const int row = P::turned ? of_right : of_left, column = P::turned ? of_left : of_right;
      *record_of(next.stage) = make_int4(row, column, t.group, 0);
      if (p.accumulate) {
        barrier_announce(ready, P::box_bytes);
        load_box(&p.outputs[0], slot_at(next.stage), ready, row, column, t.group);
      } else {
        barrier_arrive(ready);
      }
    }
    next.next();
    coming++;
    if (++set < P::sets) return;
    set = 0;
    along += P::box_step;
    if (along < t.width) return;
    along = 0;
    walk.next();
    if (walk.more()) walk.next();
    if (walk.more()) t = walk.tile();
  };
  for (int i = 0; i < Shared::slots; i++) begin_box();
  for (; leaving < coming; leaving++, last.next()) {
    barrier_wait(shared + Shared::done_at + 8 * (consumer * Shared::slots + last.stage), last.round & 1);
    const int4 box = *record_of(last.stage);
    const uint32_t from = slot_at(last.stage);
    if constexpr (P::of_rows) {
      using Epilogue = typename P::Epilogue;
#pragma unroll
      for (int i = 0; i < Epilogue::outputs; i++) {
        const int output = Epilogue::output_of(i);
        if (p.wanted >> output & 1) store_ragged_box(&p.outputs[output], from + i * P::box_bytes, box.x, Epilogue::column_of(i, box.y), box.z);
      }
    } else {
      store_box(&p.outputs[0], from, box.x, box.y, box.z);
    }
    end_stores();
    stores_have_read<0>();
    begin_box();
  }
  stores_are_done();  // they read shared memory
}

// Consumer is one of the two groups.
template <class P>
struct Consumer {
  using Storage = typename P::Storage;
  using Shared = typename P::Shared;
  using Sums = float[2][tile_right / 2];
  const GroupedParameters &p;
  uint8_t *const memory;
  const uint32_t shared;
  const int group, thread = threadIdx.x % group_threads, warp = thread / 32, lane = thread % 32;
  Walk<P> walk;
  Place<stages> place;
  Place<Shared::slots> slot;

  EPG_INLINE Consumer(const GroupedParameters &parameters, uint8_t *bytes, int number)
      : p(parameters), memory(bytes), shared(shared_address(bytes)), group(number), walk(parameters, bytes) {}

  // Named barriers: of the group, and for the turn to multiply.
  EPG_INLINE void meet_group() const { meet(1 + group, group_threads); }
  EPG_INLINE void wait_for_turn() const { meet(3 + group, consumers * group_threads); }
  EPG_INLINE void give_turn() const { leave(3 + (group ^ 1), consumers * group_threads); }

  EPG_INLINE uint32_t slot_at() const { return shared + Shared::slots_at + (group * Shared::slots + slot.stage) * Shared::slot_bytes; }
  EPG_INLINE void wait_for_slot() const { barrier_wait(shared + Shared::ready_at + 8 * (group * Shared::slots + slot.stage), slot.round & 1); }
  EPG_INLINE void leave_slot() {
    show_to_copies();
    __syncwarp();
    if (lane == 0) barrier_arrive(shared + Shared::done_at + 8 * (group * Shared::slots + slot.stage));
    slot.next();
  }
  EPG_INLINE void release(int stage) const {
    if (thread == 0) barrier_arrive(shared + Shared::empty_at + 8 * stage);
  }

  // multiply_stage multiplies `parts` times 16 of the depth.
  template <int width, int parts>
  EPG_INLINE void multiply_stage(Sums &sums, int add) {
    barrier_wait(shared + Shared::full_at + 8 * place.stage, place.round & 1);
    const uint32_t at = shared + place.stage * stage_bytes;
    const uint32_t left = operand<P::across_left>(at), right = operand<P::across_right>(at + left_bytes);
    constexpr int left_further = P::across_left ? 16 * 128 : 16 * 2, right_further = P::across_right ? 16 * 128 : 16 * 2;
    begin_products();
#pragma unroll
    for (int k = 0; k < parts; k++)
#pragma unroll
      for (int block = 0; block < 2; block++)
        multiply_first<Storage, width, P::across_left, P::across_right>(sums[block], left + ((block * block_bytes + k * left_further) >> 4),
                                                                        right + (k * right_further >> 4), k > 0 ? 1 : add);
    end_products();
    if (add > 0) {  // what was begun before has read its stage
      products_are_done<1>();
      release((place.stage + stages - 1) % stages);
    }
    place.next();
  }

  template <int width>
  EPG_INLINE void multiply_tile(Sums &sums, const Tile &t, bool others) {
    // A short last step comes after the loop: another path in it would cost a quarter of the speed.
    const bool is_short = !P::of_rows && t.last < 4;
    const int whole = is_short ? t.steps - 1 : t.steps;
    for (int step = 0; step < whole; step++) multiply_stage<width, 4>(sums, step);
    if constexpr (!P::of_rows) {
      if (is_short) {
        if (t.last == 1) {
          multiply_stage<width, 1>(sums, whole);
        } else if (t.last == 2) {
          multiply_stage<width, 2>(sums, whole);
        } else {
          multiply_stage<width, 3>(sums, whole);
        }
      }
    }
    if (others) give_turn();
    products_are_done<0>();
    release((place.stage + stages - 1) % stages);
    // no read of a sum moves up to before it is there
#pragma unroll
    for (int block = 0; block < 2; block++)
#pragma unroll
      for (int i = 0; i < tile_right / 2; i++) asm volatile("" : "+f"(sums[block][i])::"memory");
  }

  // multiply_columns multiplies as many columns as a tile has, in steps.
  template <int width>
  EPG_INLINE void multiply_columns(Sums &sums, const Tile &t, bool others) {
    constexpr int step = P::of_rows ? 16 : 64;
    if constexpr (width > step) {
      if (t.width <= width - step) {
        multiply_columns<width - step>(sums, t, others);
        return;
      }
    }
    multiply_tile<width>(sums, t, others);
  }

  EPG_INLINE float *scales() const { return reinterpret_cast<float *>(memory + Shared::scales_at + group * Shared::scale_bytes); }

  // Of the biases, this thread has those of its rows of the sums.
  EPG_INLINE void load_biases(const Tile &t, float (&biases)[2][2]) const {
    using Epilogue = typename P::Epilogue;
    constexpr bool halves = Epilogue::rights == 2 && !Epilogue::interleaved;
    constexpr int times = Epilogue::rights == 2 && Epilogue::interleaved ? 2 : 1;
    const int first = times * t.left, columns = times * p.columns;
#pragma unroll
    for (int block = 0; block < 2; block++) {
      const Storage *bias = static_cast<const Storage *>(p.biases[halves ? block : 0]);
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int column = first + (halves ? 0 : 64 * block) + 16 * warp + 8 * i + lane / 4;
        biases[block][i] = bias && column < columns ? Storage::load(bias + static_cast<int64_t>(t.group) * p.bias_stride + column) : 0;
      }
    }
  }

  // store_rows is the epilogue of the rows kind.
  template <class Formula, bool adds_columns>
  EPG_INLINE void store_rows(Sums &sums, const Tile &t, const float (&biases)[2][2]) {
    using Epilogue = typename P::Epilogue;
    [[maybe_unused]] float added[P::sets][2][Epilogue::sums] = {};  // its part of the columns
#pragma unroll
    for (int strip = 0; strip < tile_right; strip += Epilogue::strip_rows) {
      if (strip >= t.width) break;
      if constexpr (P::moves_sums) {
        const int end = min(strip + Epilogue::strip_rows, t.width);
#pragma unroll 1
        for (int first = strip; first < end; first += P::box_rows) {
          store_boxes<Formula, adds_columns>(sums, t, biases, added, strip, first);
          // The next boxes' sums come to where these ones' were.
#pragma unroll
          for (int block = 0; block < 2; block++)
#pragma unroll
            for (int i = strip / 2; i < (strip + Epilogue::strip_rows - P::box_rows) / 2; i++) sums[block][i] = sums[block][i + P::box_rows / 2];
        }
      } else {
        store_boxes<Formula, adds_columns>(sums, t, biases, added, strip, strip);
      }
    }
    if constexpr (adds_columns) {
      if (p.column_sums) add_rows_of_columns(added, t);
    }
  }

  // store_boxes does the boxes of some rows, whose sums are those of the rows from `from` on. The
  // lane of sum 4 i + j has column 16 warp + lane / 4 + 8 (j / 2) of 64, and row
  // 8 i + 2 (lane % 4) + j % 2.
  template <class Formula, bool adds_columns, int columns>
  EPG_INLINE void store_boxes(Sums &sums, const Tile &t, const float (&biases)[2][2], [[maybe_unused]] float (&added)[P::sets][2][columns], int from,
                              int first) {
    using Epilogue = typename P::Epilogue;
    const Parameters<float> parameters(p.parameters);
    const uint32_t line = lane / 16 * 8 + lane % 8, chunk = 2 * warp + lane / 8 % 2;
    const uint32_t at_lane = line * 128 + ((chunk ^ line % 8) << 4);
    // where value and gate alternate, the word of both
    const uint32_t at_word = warp / 2 * P::box_bytes + lane % 4 * 256 + lane / 4 % 4 * 4, word_chunk = (warp % 2 * 4 + lane / 16) ^ lane % 4 * 2;
    const uint32_t firsts = p.gate_first ? 0x7632 : 0x5410, seconds = p.gate_first ? 0x5410 : 0x7632;
    const uint32_t first_words = p.gate_first ? 0x1054 : 0x5410, second_words = p.gate_first ? 0x3276 : 0x7632;
    [[maybe_unused]] float of_rows[P::box_rows / 4];  // its part of the rows
    if constexpr (adds_columns) forget_rows_beyond(sums, t.width - first, from);
#pragma unroll
    for (int set = 0; set < P::sets; set++) {
      const uint32_t slot = slot_at();
      wait_for_slot();
#pragma unroll
      for (int sixteen = 0; sixteen < P::box_rows / 16; sixteen++) {
        const uint32_t at = slot + sixteen * 2048;
        uint32_t x[Epilogue::inputs + 1][4], y[Epilogue::outputs][4];
        if constexpr (Epilogue::interleaved) {
#pragma unroll
          for (int part = 0; part < 4; part++) {
            const uint32_t word_at = at + at_word + part / 2 * 1024 + ((word_chunk ^ part % 2 * 2) << 4);
            const uint32_t one = load_word(word_at), other = load_word((word_at ^ 16) + 128);
            x[0][part] = __byte_perm(one, other, firsts);
            x[1][part] = __byte_perm(one, other, seconds);
          }
        } else {
#pragma unroll
          for (int i = 0; i < Epilogue::inputs; i++) load_matrices_across(at + i * P::box_bytes + at_lane, x[i]);
        }
#pragma unroll
        for (int part = 0; part < 4; part++) {  // columns 0-7 and 8-15 of rows 0-7, of rows 8-15
          const int at_sum = (from / 8 + 2 * sixteen + part / 2) * 4 + part % 2 * 2;
          float2 sum[Epilogue::rights];
#pragma unroll
          for (int i = 0; i < Epilogue::rights; i++) {
            const int block = Epilogue::rights == 2 ? i : set;
            sum[i] = make_float2(sums[block][at_sum], sums[block][at_sum + 1]);
            if constexpr (Epilogue::biased) sum[i] = make_float2(sum[i].x + biases[block][part % 2], sum[i].y + biases[block][part % 2]);
          }
          uint32_t in[Epilogue::inputs + 1], out[Epilogue::outputs];
#pragma unroll
          for (int i = 0; i < Epilogue::inputs; i++) in[i] = x[i][part];
          if constexpr (Epilogue::scaled) {
            const float2 scale = *reinterpret_cast<const float2 *>(scales() + first + 16 * sixteen + part / 2 * 8 + lane % 4 * 2);
            float2 row;
            float column[columns];
            Epilogue::template apply<Formula>(parameters, out, sum, in, scale, row, column);
            const int at_row = 4 * sixteen + part / 2 * 2;
            const bool begins = set == 0 && part % 2 == 0;
            of_rows[at_row] = begins ? row.x : of_rows[at_row] + row.x;
            of_rows[at_row + 1] = begins ? row.y : of_rows[at_row + 1] + row.y;
#pragma unroll
            for (int i = 0; i < columns; i++)
              if constexpr (adds_columns) added[set][part % 2][i] += column[i];
          } else {
            Epilogue::apply(parameters, out, sum, in);
          }
#pragma unroll
          for (int i = 0; i < Epilogue::outputs; i++) y[i][part] = out[i];
        }
        if constexpr (Epilogue::interleaved) {
#pragma unroll
          for (int part = 0; part < 4; part++) {
            const uint32_t word_at = at + at_word + part / 2 * 1024 + ((word_chunk ^ part % 2 * 2) << 4);
            store_word(word_at, __byte_perm(y[0][part], y[1][part], first_words));
            store_word((word_at ^ 16) + 128, __byte_perm(y[0][part], y[1][part], second_words));
          }
        }
#pragma unroll
        for (int i = Epilogue::interleaved ? 2 : 0; i < Epilogue::outputs; i++) store_matrices_across(at + i * P::box_bytes + at_lane, y[i]);
      }
      leave_slot();
    }
    if constexpr (Epilogue::scaled) {
      if (p.row_sums) add_columns_of_rows(of_rows, t, first);
    }
  }

  // forget_rows_beyond clears the sums of a box's rows that only fill up the tile. They are 0, but
  // NaN where a weight is infinite.
  EPG_INLINE void forget_rows_beyond(Sums &sums, int rows, int from) const {
    if (rows >= P::box_rows) return;
#pragma unroll
    for (int block = 0; block < 2; block++)
#pragma unroll
      for (int i = 0; i < P::box_rows / 2; i++) {
        if (i / 4 * 8 + lane % 4 * 2 + i % 2 >= rows) sums[block][from / 2 + i] = 0;
      }
  }

  // add_columns_of_rows adds up the rows of 8 lanes, whose columns differ: each step halves the
  // rows that a lane still has. Each warp's numbers are a part of their own.
  template <int count>
  EPG_INLINE void add_columns_of_rows(float (&of_rows)[count], const Tile &t, int first) {
    static_assert(count == 4, "a box has 16 rows");
    halve<2>(of_rows, 8);
    halve<1>(of_rows, 4);
    of_rows[0] += __shfl_xor_sync(~0u, of_rows[0], 16);
    const int row = first + lane / 8 % 2 * 8 + lane % 4 * 2 + lane / 4 % 2;
    if (lane < 16 && row < t.width) p.row_sums[static_cast<int64_t>(t.left / P::columns * 4 + warp) * p.rows + t.right + row] = of_rows[0];
  }
  template <int left, int count>
  EPG_INLINE void halve(float (&numbers)[count], int distance) const {
    const bool upper = lane & distance;
#pragma unroll
    for (int i = 0; i < left; i++) {
      const float low = numbers[i], high = numbers[i + left];
      numbers[i] = (upper ? high : low) + __shfl_xor_sync(~0u, upper ? low : high, distance);
    }
  }

  // add_rows_of_columns adds up the columns of 4 lanes, whose rows differ, and leaves them as the
  // tile's part.
  template <int columns>
  EPG_INLINE void add_rows_of_columns(float (&added)[P::sets][2][columns], const Tile &t) const {
    using Epilogue = typename P::Epilogue;
    float *const sums = p.column_sums + static_cast<int64_t>(t.number) * (columns * p.columns);
#pragma unroll
    for (int set = 0; set < P::sets; set++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int column = t.left + 64 * set + 16 * warp + 8 * half + lane / 4;
#pragma unroll
        for (int i = 0; i < columns; i++) {
          float sum = added[set][half][i];
          sum += __shfl_xor_sync(~0u, sum, 1);
          sum += __shfl_xor_sync(~0u, sum, 2);
          const int of_pair = columns == 2 && p.gate_first ? 1 - i : i;
          if (lane % 4 == 0 && column < p.columns) sums[Epilogue::interleaved ? 2 * column + of_pair : of_pair * p.columns + column] = sum;
        }
      }
  }

  // store_interleaved is the epilogue of a gated forward product whose columns alternate between
  // value and gate. They lie in pairs once they are in shared memory.
  EPG_INLINE void store_interleaved(Sums &sums, const Tile &t, const float (&biases)[2][2]) {
    using Epilogue = typename P::Epilogue;
    const Parameters<float> parameters(p.parameters);
    const uint32_t line = lane / 16 * 8 + lane % 8, chunk = 2 * warp + lane / 8 % 2;
    const uint32_t at_lane = line * 128 + ((chunk ^ line % 8) << 4);
    // Four lanes read a row's 16 columns, 16 lanes at a time rows that lie in different banks.
    const uint32_t row = lane / 4 % 4 * 2 + lane / 16, piece = lane % 4;
    const uint32_t at_pairs = row * 128 + ((2 * warp + piece / 2) ^ row) * 16 + piece % 2 * 8;
    const uint32_t values = p.gate_first ? 0x7632 : 0x5410, gates = p.gate_first ? 0x5410 : 0x7632;
#pragma unroll
    for (int first = 0; first < tile_right; first += P::box_rows) {
      if (first >= t.width) break;
      const uint32_t slot = slot_at();
      wait_for_slot();
#pragma unroll
      for (int sixteen = 0; sixteen < P::box_rows / 16; sixteen++)
#pragma unroll
        for (int block = 0; block < 2; block++) {
          uint32_t y[4];
#pragma unroll
          for (int part = 0; part < 4; part++) {
            const int at_sum = (first / 8 + 2 * sixteen + part / 2) * 4 + part % 2 * 2;
            y[part] = pair_of<Storage>(sums[block][at_sum] + biases[block][part % 2], sums[block][at_sum + 1] + biases[block][part % 2]);
          }
          store_matrices_across(slot + (1 + block) * P::box_bytes + sixteen * 2048 + at_lane, y);
        }
      __syncwarp();
#pragma unroll
      for (int eight = 0; eight < P::box_rows / 8; eight++)
#pragma unroll
        for (int block = 0; block < 2; block++) {
          uint32_t one, other;
          load_words(slot + (1 + block) * P::box_bytes + eight * 1024 + at_pairs, one, other);
          const uint32_t hidden = Epilogue::output(parameters, __byte_perm(one, other, values), __byte_perm(one, other, gates));
          store_word(slot + eight * 1024 + row * 128 + ((4 * block + warp) ^ row) * 16 + piece * 4, hidden);
        }
      leave_slot();
    }
  }

  // store_depth is the epilogue of the depth kind. Sums are of the left operand's row and the right
  // one's column.
  template <bool adds>
  EPG_INLINE void store_depth(Sums &sums, const Tile &t) {
#pragma unroll
    for (int first = 0; first < tile_right; first += P::box_columns) {
      if (first >= t.width) break;
#pragma unroll
      for (int block = 0; block < 2; block++) {
        const uint32_t slot = slot_at();
        wait_for_slot();
        if constexpr (P::in_float) {
          store_floats<adds>(sums[block], first, slot);
        } else {
          store_halves<adds>(sums[block], first, slot);
        }
        leave_slot();
      }
    }
  }
  template <bool adds>
  EPG_INLINE void store_floats(const float (&sums)[tile_right / 2], int first, uint32_t slot) {
#pragma unroll
    for (int part = 0; part < 8; part++) {
      const int eight = part / 2, half = part % 2, at_sum = (first / 8 + eight) * 4 + half * 2;
      const uint32_t row = warp * 16 + lane / 4 + 8 * half, chunk = 2 * eight + lane % 4 / 2;
      const uint32_t at = slot + row * 128 + ((chunk ^ row % 8) << 4) + lane % 2 * 8;
      float2 y = make_float2(sums[at_sum], sums[at_sum + 1]);
      if constexpr (adds) {
        uint32_t x[2];
        load_words(at, x[0], x[1]);
        y = make_float2(__uint_as_float(x[0]) + y.x, __uint_as_float(x[1]) + y.y);
      }
      store_words(at, y.x, y.y);
    }
  }
  template <bool adds>
  EPG_INLINE void store_halves(const float (&sums)[tile_right / 2], int first, uint32_t slot) {
#pragma unroll
    for (int sixteen = 0; sixteen < 4; sixteen++) {
      uint32_t at;
      if constexpr (P::turned) {
        const uint32_t line = lane / 16 * 8 + lane % 8, chunk = 2 * warp + lane / 8 % 2;
        at = slot + sixteen * 2048 + line * 128 + ((chunk ^ line % 8) << 4);
      } else {
        const uint32_t line = warp * 16 + lane % 16, chunk = 2 * sixteen + lane / 16;
        at = slot + line * 128 + ((chunk ^ line % 8) << 4);
      }
      [[maybe_unused]] uint32_t x[4];
      uint32_t y[4];
      if constexpr (adds && P::turned) load_matrices_across(at, x);
      if constexpr (adds && !P::turned) load_matrices(at, x);
#pragma unroll
      for (int part = 0; part < 4; part++) {
        const int at_sum = (first / 8 + 2 * sixteen + part / 2) * 4 + part % 2 * 2;
        float2 sum = make_float2(sums[at_sum], sums[at_sum + 1]);
        if constexpr (adds) {
          const float2 old = numbers_of<Storage>(x[part]);
          sum = make_float2(old.x + sum.x, old.y + sum.y);
        }
        y[part] = pair_of<Storage>(sum.x, sum.y);
      }
      if constexpr (P::turned) {
        store_matrices_across(at, y);
      } else {
        store_matrices(at, y);
      }
    }
  }

  // begin_sums tells the compiler that the sums are new ones, where the last tile's were moved:
  // otherwise it has products wait for the moves.
  EPG_INLINE static void begin_sums(Sums &sums) {
#pragma unroll
    for (int block = 0; block < 2; block++)
#pragma unroll
      for (int i = 0; i < tile_right / 2; i++) asm volatile("mov.f32 %0, 0f00000000;" : "=f"(sums[block][i]));
  }

  EPG_INLINE void run() {
    for (int turn = 0; walk.more(); walk.next(), turn++) {
      const Tile t = walk.tile();
      if (turn % consumers != group) {
        place.skip(t.steps);
        continue;
      }
      const bool others = walk.one_more();
      Sums sums;
      if constexpr (P::moves_sums) begin_sums(sums);
      if constexpr (P::of_rows) {
        using Epilogue = typename P::Epilogue;
        float biases[2][2], own_scales[2];
        if constexpr (Epilogue::biased) load_biases(t, biases);
        if constexpr (Epilogue::scaled) {
#pragma unroll
          for (int i = 0; i < 2; i++) {
            const int row = thread + i * group_threads;
            own_scales[i] = row >= t.width ? 0 : p.scales ? __ldg(p.scales + t.right + row) : 1;
          }
        }
        if (turn > 0) wait_for_turn();
        if constexpr (Epilogue::scaled) {  // nobody reads the last tile's any more
          scales()[thread] = own_scales[0];
          if (thread < tile_right - group_threads) scales()[thread + group_threads] = own_scales[1];
        }
        multiply_columns<tile_right>(sums, t, others);
        if constexpr (Epilogue::scaled) meet_group();
        if constexpr (Epilogue::rights == 2 && Epilogue::interleaved) {
          store_interleaved(sums, t, biases);
        } else if constexpr (Epilogue::scaled) {
          if (!p.column_sums && Epilogue::is_plain(Parameters<float>(p.parameters))) {
            store_rows<typename Epilogue::Plain, false>(sums, t, biases);
          } else {
            store_rows<typename Epilogue::Formula, true>(sums, t, biases);
          }
        } else {
          store_rows<void, false>(sums, t, biases);
        }
      } else {
        if (turn > 0) wait_for_turn();
        multiply_columns<tile_right>(sums, t, others);
        if (p.accumulate) {
          store_depth<true>(sums, t);
        } else {
          store_depth<false>(sums, t);
        }
      }
    }
  }
};

template <class P>
EPG_INLINE void product(const GroupedParameters &p) {
  using Shared = typename P::Shared;
  extern __shared__ __align__(1024) uint8_t memory[];
  const uint32_t shared = shared_address(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; i++) {
      barrier_make(shared + Shared::full_at + 8 * i, 1);
      barrier_make(shared + Shared::empty_at + 8 * i, 1);
    }
    for (int i = 0; i < consumers * Shared::slots; i++) {
      barrier_make(shared + Shared::ready_at + 8 * i, 1);
      barrier_make(shared + Shared::done_at + 8 * i, group_threads / 32);
    }
    barriers_are_made();
    prefetch_map(&p.left[0]);
    prefetch_map(&p.right);
  }
  make_tables<P>(p, memory);
  __syncthreads();
  const int group = __shfl_sync(~0u, threadIdx.x / group_threads, 0);
  if (group == 0) {
    give_registers<40>();
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    if (warp == 0 && lane == 0) load_operands<P>(p, shared, memory);
    if ((warp == 1 || warp == 2) && lane == 0) move_boxes<P>(p, shared, memory, warp - 1);
  } else {
    take_registers<232>();
    Consumer<P>(p, memory, group - 1).run();
  }
}

// Epilogues of the rows kind have what product_sm90.cuh says of them, for two rows of a column, and
//
//   box_rows           rows of the boxes that come and leave
//   strip_rows         how many rows share their code: that of all boxes would not fit into the
//                      instruction cache
//   interleaved        whether columns alternate between the value's and the gate's
//   scaled             whether rows have scales, and numbers are added up along rows and columns
//   sums               how many are added up along columns
//   output_of(box)     which output a slot's box belongs to
//   column_of(box, c)  the box's first column, where the slot has columns from c on
struct Boxes {
  static constexpr bool interleaved = false, scaled = false;
  static constexpr int sums = 1;
  EPG_INLINE static constexpr int output_of(int box) { return box; }
  EPG_INLINE static constexpr int column_of(int, int column) { return column; }
};

// Linear is out = sum + bias.
template <class Storage, class Activation>
struct Linear : Boxes {
  static constexpr int rights = 1, inputs = 0, outputs = 1, box_rows = 32, strip_rows = 32;
  static constexpr bool biased = true;
  EPG_INLINE static void apply(const Parameters<float> &, uint32_t (&y)[outputs], const float2 (&sum)[rights], const uint32_t (&)[inputs + 1]) {
    y[0] = pair_of<Storage>(sum[0].x, sum[0].y);
  }
};

template <class Storage, class Activation>
struct Forward : Boxes, sm90::Forward<Storage, Activation> {
  static constexpr int box_rows = 32, strip_rows = 32;
};

template <class Storage, class Gate>
struct Gated : Boxes, sm90::Gated<Storage, Gate> {
  static constexpr int box_rows = 32, strip_rows = 32;
};

// GatedInterleaved has one map of value and gate: a slot has 64 columns of the output, and 128 of
// those.
template <class Storage, class Gate>
struct GatedInterleaved {
  static constexpr int rights = 2, inputs = 0, outputs = 3, box_rows = 32, strip_rows = 32;
  static constexpr bool biased = true, interleaved = true, scaled = false;
  EPG_INLINE static constexpr int output_of(int box) { return box > 0; }
  EPG_INLINE static constexpr int column_of(int box, int column) { return box > 0 ? 2 * column + 64 * (box - 1) : column; }
  EPG_INLINE static uint32_t output(const Parameters<float> &p, uint32_t values, uint32_t gates) {
    const float2 value = numbers_of<Storage>(values), gate = numbers_of<Storage>(gates);
    return pair_of<Storage>(Gate::output(Gate::parts(value.x, gate.x, p)), Gate::output(Gate::parts(value.y, gate.y, p)));
  }
};

// Sloped is grad_pre = scale sum act'(pre), whose columns are added up before it is rounded, and
// out = scale act(pre). The sums along a row are those of sum act(pre).
template <class Storage, class Activation>
struct Sloped : Boxes {
  static constexpr int rights = 1, inputs = 1, outputs = 2, sums = 1, box_rows = 16, strip_rows = 48;
  static constexpr bool biased = false, scaled = true;
  using Formula = Activation;
  using Plain = Activation;
  EPG_INLINE static bool is_plain(const Parameters<float> &) { return true; }

  template <class>
  EPG_INLINE static void apply(const Parameters<float> &p, uint32_t (&y)[outputs], const float2 (&sum)[rights], const uint32_t (&x)[inputs + 1], float2 scale,
                               float2 &row, float (&column)[sums]) {
    const float2 pre = numbers_of<Storage>(x[0]);
    const auto first = Activation::parts(pre.x, p), second = Activation::parts(pre.y, p);
    const float2 g = make_float2(scale.x * sum[0].x, scale.y * sum[0].y);
    const float2 gradient = make_float2(Activation::gradient(g.x, pre.x, first), Activation::gradient(g.y, pre.y, second));
    const float2 out = make_float2(Activation::value(pre.x, first), Activation::value(pre.y, second));
    y[0] = pair_of<Storage>(gradient.x, gradient.y);
    y[1] = pair_of<Storage>(scale.x * out.x, scale.y * out.y);
    row = make_float2(sum[0].x * out.x, sum[0].y * out.y);
    column[0] = gradient.x + gradient.y;
  }
};

// GatedSloped is the gradients of value act(gate) by both, and scale value act(gate), likewise.
template <class Storage, class Gate>
struct GatedSloped : Boxes {
  static constexpr int rights = 1, inputs = 2, outputs = 3, sums = 2, box_rows = 16, strip_rows = 48;
  static constexpr bool biased = false, scaled = true;
  using Formula = Gate;
  using Plain = typename Gate::Plain;
  EPG_INLINE static bool is_plain(const Parameters<float> &p) { return Gate::is_plain(p); }

  // Chosen is Gate or Plain.
  template <class Chosen>
  EPG_INLINE static void apply(const Parameters<float> &p, uint32_t (&y)[outputs], const float2 (&sum)[rights], const uint32_t (&x)[inputs + 1], float2 scale,
                               float2 &row, float (&column)[sums]) {
    const float2 value = numbers_of<Storage>(x[0]), gate = numbers_of<Storage>(x[1]);
    const auto first = Chosen::parts(value.x, gate.x, p), second = Chosen::parts(value.y, gate.y, p);
    const float2 g = make_float2(scale.x * sum[0].x, scale.y * sum[0].y);
    const float2 grad_value = make_float2(Chosen::grad_value(g.x, first), Chosen::grad_value(g.y, second));
    const float2 grad_gate = make_float2(grad_gate_of<Chosen>(g.x, first), grad_gate_of<Chosen>(g.y, second));
    const float2 out = make_float2(output_of_parts<Chosen>(first), output_of_parts<Chosen>(second));
    y[0] = pair_of<Storage>(grad_value.x, grad_value.y);
    y[1] = pair_of<Storage>(grad_gate.x, grad_gate.y);
    y[2] = pair_of<Storage>(scale.x * out.x, scale.y * out.y);
    row = make_float2(sum[0].x * out.x, sum[0].y * out.y);
    column[0] = grad_value.x + grad_value.y;
    column[1] = grad_gate.x + grad_gate.y;
  }

 private:
  template <class Chosen>
  static constexpr bool unlimited = std::is_same_v<Chosen, Plain>;
  // Both sides of the choice are computed: a branch for each element costs more.
  template <class Chosen>
  EPG_INLINE static float grad_gate_of(float g, const typename Chosen::Parts &parts) {
    if constexpr (unlimited<Chosen>) {
      return Chosen::grad_gate(g, parts);
    } else {
      const float gradient = Plain::grad_gate(g, {parts.value, parts.gate, parts.of_gate});
      return parts.gate_is_clamped ? 0 : gradient;
    }
  }
  template <class Chosen>
  EPG_INLINE static float output_of_parts(const typename Chosen::Parts &parts) {
    if constexpr (unlimited<Chosen>) {
      return Chosen::grad_value(parts.value, parts);
    } else {
      return Chosen::output(parts);
    }
  }
};

// GatedSlopedInterleaved has one map of both.
template <class Storage, class Gate>
struct GatedSlopedInterleaved : GatedSloped<Storage, Gate> {
  static constexpr bool interleaved = true;
  EPG_INLINE static constexpr int output_of(int box) { return box == 2 ? 2 : 0; }
  EPG_INLINE static constexpr int column_of(int box, int column) { return box == 2 ? column : 2 * column + 64 * box; }
};

}  // namespace epigrad::sm90::grouped
