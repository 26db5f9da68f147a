// What a product is given, and the loader that copies tiles of its operands into a ring of stages
// (product_sm80.cuh).
#pragma once

#include "activation.cuh"
#include "mma_sm80.cuh"

namespace epigrad::sm80 {

constexpr int tile_rows = 128, tile_columns = 128, warp_side = 64, warps_across = tile_columns / warp_side;
constexpr int threads = 32 * warps_across * tile_rows / warp_side;
constexpr int stages = 3, stage_bytes = 64 * (tile_rows + tile_columns), shared_bytes = stages * stage_bytes;
constexpr int blocks = 2;  // that share a processor
static_assert(blocks * (shared_bytes + 1024) <= 100 * 1024, "what a processor of compute capability 8.6 or 8.9 has");

// Rows is a matrix whose columns are contiguous, and Weight one for each group; strides are in
// elements.
struct Rows {
  void *data;
  int64_t stride;
};
struct Weight {
  void *data;
  int64_t stride, group_stride;
};

constexpr int most_pairs = 2;
struct ProductParameters {
  Rows x[most_pairs];  // depth kind: a and b
  // of halves the value's and the gate's, of one stride; depth kind: [0][0] is the result
  Weight weights[most_pairs][2];
  // in the order of the epilogue's (epilogues.cuh); null for one that is not there or not wanted
  Rows inputs[2], outputs[3];
  const int32_t *ends;  // [groups], not falling; null: a dense layer
  // [rows], where each row of x[0] is, or of the depth kind of one operand; null: in its place
  const int32_t *tokens;
  const void *biases[2];               // [groups, columns] each, or null
  const float *scales;                 // [rows], or null: ones
  float *row_sums;                     // [2 ceil(columns / 128), rows], or null
  float *column_sums;                  // [2 tiles of rows, grad_pre's columns], or null
  double parameters[most_parameters];  // of the formula
  int32_t groups, rows;
  int32_t depths[most_pairs];  // rows kind: of the pairs, 0 of one that is not there
  int32_t columns;             // of out or hidden; depth kind: m
  int32_t right_columns;       // depth kind: n
  int32_t bias_stride;         // elements from one group's bias to the next one's
  int32_t band;                // tiles of rows walked together
  int32_t gate_first;          // whether the gate comes before the value, in pairs or as halves
  int32_t tokens_of_a;         // depth kind: whether tokens are those of a, else of b
  int32_t accumulate;          // depth kind: add to what is there, before it is rounded
  int32_t unused;
};
static_assert(sizeof(ProductParameters) == 4 * 24 + 7 * 16 + 7 * 8 + 8 * most_parameters + 12 * 4, "go/backend/cuda has the same layout");

// is_whole tells whether an address, and those at multiples of so many bytes from it, can be read
// by 16 bytes.
__device__ __forceinline__ bool is_whole(const void *data, int64_t bytes = 0) {
  return (reinterpret_cast<uint64_t>(data) | static_cast<uint64_t>(bytes)) % 16 == 0;
}

// Loader copies an operand's tile, stage by stage. Halves are two matrices, with half of the places
// each.
template <class Storage, bool across, int places, bool halves, bool by_lines>
struct Loader {
  using Tile = TileOf<Storage, across, places>;
  static constexpr int each = Tile::each, turns = Tile::bytes / 16 / threads, turn_bytes = Tile::bytes / turns, turn_lines = Tile::lines / turns;
  static constexpr int size = sizeof(Storage);
  const Storage *from[turns];
  int count[turns];  // elements of each piece that exist: near, `each` or 0
  int64_t step;      // elements from one stage to the next one
  // Of one that lies across, by lines: the line of each place along the depth, or null, and those
  // of the next stage, which are read one stage ahead.
  const int32_t *lines;
  int32_t next[by_lines ? turns : 1];
  int64_t stride;
  bool in_pieces;

  static __device__ __forceinline__ int line_of(int turn) { return threadIdx.x / Tile::pieces + turn * turn_lines; }
  static __device__ __forceinline__ int piece() { return threadIdx.x % Tile::pieces; }

  // there and along: how many places a matrix has across the sum and along it; rows: the line of
  // each place across, if it lies near, else of each place along.
  __device__ __forceinline__ Loader(const Storage *first, const Storage *second, int64_t stride, int there, int along, const int32_t *rows)
      : step(across ? Tile::depth * stride : Tile::depth),
        lines(by_lines ? rows : nullptr),
        stride(stride),
        in_pieces(is_whole(first, stride * sizeof(Storage)) && is_whole(halves ? second : first)) {
#pragma unroll
    for (int turn = 0; turn < turns; turn++) {
      const int line = line_of(turn);
      int place = across ? piece() * each : line;
      const Storage *data = first;
      if (halves && place >= places / 2) {
        place -= places / 2;
        data = second;
      }
      if constexpr (across) {
        count[turn] = min(max(there - place, 0), each);
        from[turn] = data + place + (lines ? 0 : line * stride);
      } else {
        count[turn] = place < there ? each : 0;
        from[turn] = data + piece() * each + (count[turn] ? (rows ? __ldg(rows + place) : place) * stride : 0);
      }
    }
    look_up(along);
  }

  // load_whole copies the next stage to a tile, of an operand in pieces of 16 bytes that does not
  // end there; and load any one, of what is left along the depth.
  __device__ __forceinline__ void load_whole(uint32_t tile_at, int left) {
    const uint32_t to = tile_at + Tile::at(line_of(0), piece());
    if (by_lines && lines) {
#pragma unroll
      for (int turn = 0; turn < turns; turn++) copy_piece(to + turn * turn_bytes, from[turn] + next[turn] * stride, count[turn] * size);
      lines += Tile::depth;
      look_up(left - Tile::depth);
    } else {
#pragma unroll
      for (int turn = 0; turn < turns; turn++) {
        copy_piece(to + turn * turn_bytes, from[turn], count[turn] * size);
        from[turn] += step;
      }
    }
  }
  __device__ __forceinline__ void load(uint32_t tile_at, int left) {
#pragma unroll
    for (int turn = 0; turn < turns; turn++) {
      const int line = line_of(turn), elements = min(count[turn], across ? (line < left ? each : 0) : max(left - piece() * each, 0));
      const uint32_t to = tile_at + Tile::at(line, piece());
      const bool is_by_line = by_lines && lines;
      const Storage *const at = from[turn] + (is_by_line ? next[by_lines ? turn : 0] * stride : 0);
      if (in_pieces) {
        copy_piece(to, at, elements * size);
      } else {
        store_piece(to, gathered(at, elements));
      }
      if (!is_by_line) from[turn] += step;
    }
    if (by_lines && lines) {
      lines += Tile::depth;
      look_up(left - Tile::depth);
    }
  }

 private:
  // look_up reads which lines are next, of those that are left.
  __device__ __forceinline__ void look_up(int left) {
    if constexpr (by_lines) {
      if (!lines || left <= 0) return;
#pragma unroll
      for (int turn = 0; turn < turns; turn++) next[turn] = __ldg(lines + min(line_of(turn), left - 1));
    }
  }
  static __device__ __forceinline__ uint4 gathered(const Storage *from, int elements) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if constexpr (sizeof(Storage) == 4) {
        words[i] = i < elements ? __float_as_uint(Storage::load(from + i)) : 0;
      } else {
        const uint32_t low = 2 * i < elements ? __ldg(&from[2 * i].bits) : 0, high = 2 * i + 1 < elements ? __ldg(&from[2 * i + 1].bits) : 0;
        words[i] = low | high << 16;
      }
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
};

}  // namespace epigrad::sm80
