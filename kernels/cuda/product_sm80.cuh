// Products and their epilogues in one kernel, for tensor cores from compute capability 8.0 on.
// There are two kinds, as in product_sm90.cuh:
//
//   rows    result[r, n] = epilogue(sum over pairs and k of x[r, k] weight[e, n, k]),
//           r a row of group e
//   depth   result[e, m, n] = sum over the rows r of group e of a[r, m] b[r, n]
//
// Any sizes, strides of rows and addresses will do. A block makes 128 x 128 elements, a warp
// 64 x 64. Stages of 64 bytes of depth come to shared memory by pieces of 16 bytes, two ahead; of
// an operand whose rows start at no multiple of 16 bytes, elements are read one by one. Rows may be
// those of tokens. Results go through shared memory too, and leave by 16 bytes.
//
// Each element is formed by one thread, in the order of the depth: its bits depend on no other
// rows.
#pragma once

#include "epilogues.cuh"
#include "groups.cuh"
#include "loader_sm80.cuh"

namespace epigrad::sm80 {

// How a weight lies: its depth is contiguous, or its columns are.
constexpr bool nt = false, nn = true;

// OfRows is a kernel of the rows kind; form is nt or nn, of the weight. A tile has the value's and
// the gate's sums of 64 columns, or 128 columns' sums.
template <class Storage_, bool form, class Epilogue_>
struct OfRows {
  using Storage = Storage_;
  using Result = Storage_;
  using Epilogue = Epilogue_;
  static constexpr bool by_lines = false, of_rows = true, left_across = false, right_across = form;
  static constexpr bool pairs_of_columns = Epilogue::rights == 2 && Epilogue::interleaved, halves = Epilogue::rights == 2 && !Epilogue::interleaved;
  static constexpr int columns = tile_columns / Epilogue::rights;
};
// OfDepth is one of the depth kind, with results in Storage, or in float; by_lines: with the rows
// of tokens.
template <class Storage_, class Result_, bool by_lines_>
struct OfDepth {
  using Storage = Storage_;
  using Result = Result_;
  static constexpr bool by_lines = by_lines_, of_rows = false, left_across = true, right_across = true, pairs_of_columns = false, halves = false;
  static constexpr int columns = tile_columns;
};

// Place is a block's tile.
struct Place {
  int group, row, rows, column;
  int number;      // rows kind: the tile's, as groups.cuh counts
  int begin, end;  // depth kind: the group's rows
  bool is_there;
};

template <class P>
__device__ __forceinline__ Place place_of(const ProductParameters &p) {
  Place t{};
  const int tiles_across = ((P::of_rows ? p.columns : p.right_columns) + P::columns - 1) / P::columns;
  if constexpr (P::of_rows) {
    const int tiles_down = p.ends ? p.rows / tile_rows + p.groups : (p.rows + tile_rows - 1) / tile_rows;
    const int in_band = p.band * tiles_across, band = blockIdx.x / in_band, rest = blockIdx.x % in_band;
    const int height = min(p.band, tiles_down - band * p.band);
    t.number = band * p.band + rest % height;
    t.column = rest / height * P::columns;
    if (p.ends) {
      t.group = grouped::group_of(p.ends, p.groups, t.number, tile_rows);
      const int begin = grouped::begin_of(p.ends, t.group), end = grouped::begin_of(p.ends, t.group + 1);
      t.row = begin + (t.number - t.group - begin / tile_rows) * tile_rows;
      t.rows = min(tile_rows, end - t.row);
    } else {
      t.row = t.number * tile_rows;
      t.rows = min(tile_rows, p.rows - t.row);
    }
    t.is_there = t.rows > 0;
  } else {
    const int tiles_down = (p.columns + tile_rows - 1) / tile_rows, per = tiles_down * tiles_across, rest = blockIdx.x % per;
    t.group = blockIdx.x / per;
    t.row = rest % tiles_down * tile_rows;
    t.column = rest / tiles_down * tile_columns;
    t.rows = min(tile_rows, p.columns - t.row);
    t.begin = grouped::begin_of(p.ends, t.group);
    t.end = grouped::begin_of(p.ends, t.group + 1);
    t.is_there = !p.accumulate || t.end > t.begin;
  }
  return t;
}

// A warp's sums, by instructions: 16 rows and 8 columns each.
using Sums = float[4][8][4];

// Multiplier forms a tile's sums.
template <class P>
struct Multiplier {
  using Storage = typename P::Storage;
  using Left = Loader<Storage, P::left_across, tile_rows, false, P::by_lines>;
  using Right = Loader<Storage, P::right_across, tile_columns, P::halves, P::by_lines>;
  static constexpr int depth = Left::Tile::depth;
  const ProductParameters &p;
  const Place &t;
  const uint32_t shared;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rows_from = warp / warps_across * warp_side, part = warp % warps_across;

  __device__ __forceinline__ Left left_of(int pair) const {
    const Rows &rows = p.x[pair];
    const int64_t first = P::of_rows ? t.row : t.begin;
    const int32_t *tokens = p.tokens && (P::of_rows ? pair == 0 : P::by_lines && p.tokens_of_a) ? p.tokens + first : nullptr;
    const Storage *x = static_cast<const Storage *>(rows.data) + (tokens ? 0 : first * rows.stride) + (P::of_rows ? 0 : t.row);
    return Left(x, nullptr, rows.stride, t.rows, t.end - t.begin, tokens);
  }
  __device__ __forceinline__ Right right_of(int pair) const {
    if constexpr (P::of_rows) {
      constexpr int each = P::pairs_of_columns ? 2 : 1;  // columns of it for each of the result
      const Weight &value = p.weights[pair][0], &gate = p.weights[pair][1];
      const int64_t from = each * t.column * (P::right_across ? 1 : value.stride);
      const Storage *first = static_cast<const Storage *>(value.data) + t.group * value.group_stride + from;
      const Storage *second = P::halves ? static_cast<const Storage *>(gate.data) + t.group * gate.group_stride + from : nullptr;
      return Right(first, second, value.stride, each * (p.columns - t.column), 0, nullptr);
    } else {
      const Rows &rows = p.x[1];
      const Storage *b = static_cast<const Storage *>(rows.data) + t.column;
      const int32_t *tokens = P::by_lines && !p.tokens_of_a ? p.tokens + t.begin : nullptr;
      return Right(tokens ? b : b + t.begin * rows.stride, nullptr, rows.stride, p.right_columns - t.column, t.end - t.begin, tokens);
    }
  }

  // Fragments are what a warp multiplies along 32 bytes of depth.
  struct Fragments {
    uint32_t left[4][4], right[4][4];
  };
  __device__ __forceinline__ void read(Fragments &f, uint32_t left_at, uint32_t right_at, int step) const {
#pragma unroll
    for (int n = 0; n < 4; n++) Right::Tile::template read<true>(f.right[n], right_at, P::halves ? 16 * (n % 2) + tile_columns / 2 * (n / 2) : 16 * n, step);
#pragma unroll
    for (int m = 0; m < 4; m++) Left::Tile::template read<false>(f.left[m], left_at, 16 * m, step);
  }
  static __device__ __forceinline__ void multiply_all(Sums &sums, const Fragments &f) {
#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
      for (int n = 0; n < 8; n++) multiply<Storage>(sums[m][n], f.left[m], f.right[n / 2][n % 2 * 2], f.right[n / 2][n % 2 * 2 + 1]);
  }

  __device__ __forceinline__ void run(Sums &sums) const {
#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
      for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) sums[m][n][i] = 0;
    constexpr int ahead = stages - 1;
    int left_of_pair = P::of_rows ? p.depths[0] : t.end - t.begin, next_pair = P::of_rows ? p.depths[1] : 0;
    const int all = (left_of_pair + depth - 1) / depth + (next_pair + depth - 1) / depth;
    Left left = left_of(0);
    Right right = right_of(0);
    const uint32_t end = shared + stages * stage_bytes;
    uint32_t loaded = shared;
    const auto load = [&](bool is_there) {
      if (is_there) {
        if (left_of_pair > depth && left.in_pieces && right.in_pieces) {
          left.load_whole(loaded, left_of_pair);
          right.load_whole(loaded + Left::Tile::bytes, left_of_pair);
          left_of_pair -= depth;
        } else {
          left.load(loaded, left_of_pair);
          right.load(loaded + Left::Tile::bytes, left_of_pair);
          left_of_pair -= depth;
          if (P::of_rows && left_of_pair <= 0 && next_pair > 0) {
            left = left_of(1);
            right = right_of(1);
            left_of_pair = next_pair;
            next_pair = 0;
          }
        }
        loaded = loaded + stage_bytes == end ? shared : loaded + stage_bytes;
      }
      end_stage();
    };
#pragma unroll 1
    for (int stage = 0; stage < ahead; stage++) load(stage < all);

    const uint32_t left_at = Left::Tile::template lane_at<false>(rows_from, lane);
    const uint32_t right_at = Left::Tile::bytes + Right::Tile::template lane_at<true>((P::halves ? warp_side / 2 : warp_side) * part, lane);
    uint32_t multiplied = shared;
    Fragments now, next;
    wait_for_stages<ahead - 1>();
    __syncthreads();
    read(now, multiplied + left_at, multiplied + right_at, 0);
    // Fragments are double-buffered: the next ones are read before these are multiplied.
#pragma unroll 1
    for (int stage = 0; stage < all; stage++) {
      read(next, multiplied + left_at, multiplied + right_at, 1);
      load(stage + ahead < all);
      multiply_all(sums, now);
      wait_for_stages<ahead - 1>();
      __syncthreads();
      multiplied = multiplied + stage_bytes == end ? shared : multiplied + stage_bytes;
      read(now, multiplied + left_at, multiplied + right_at, 0);
      multiply_all(sums, next);
    }
  }
};

// Store writes a tile's results. A warp has its sums in shared memory, 32 rows at a time, so that a
// lane has neighbours of a row.
template <class P>
struct Store {
  using Result = typename P::Result;
  using Pair = products::Pair<Result>;
  static constexpr int each = 16 / sizeof(Result), pairs = each / 2;  // of a lane's columns
  static constexpr int of_warp = warp_side * P::columns / tile_columns, lanes_across = of_warp / each;
  static constexpr int staged_rows = 32, pitch = warp_side + 8;
  static_assert(threads / 32 * staged_rows * pitch * 4 <= shared_bytes);
  const ProductParameters &p;
  const Place &t;
  float *const memory;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rows_from = warp / warps_across * warp_side, part = warp % warps_across;
  // a lane's first row and column, of a warp's and of all, and how many columns are there
  const int line = lane / lanes_across, own = lane % lanes_across * each;
  const int column = t.column + of_warp * part + own;
  const int count = min(max((P::of_rows ? p.columns : p.right_columns) - column, 0), each);

  // rows is the epilogue of the rows kind.
  template <class Formula>
  __device__ __forceinline__ void rows(const Sums &sums) const {
    using Epilogue = typename P::Epilogue;
    constexpr bool interleaved = Epilogue::interleaved, backward = Epilogue::backward;
    const Parameters<float> parameters(p.parameters);
    [[maybe_unused]] float biases[Epilogue::rights][each], added[Epilogue::sums][each] = {};
    if constexpr (!backward) load_biases(biases);
    each_line(sums, [&](int in_tile, const float *staged) {
      const int64_t row = t.row + in_tile;
      [[maybe_unused]] float of_row = 0;
      if (in_tile < t.rows && count > 0) {
        Pair x[Epilogue::inputs + 1][pairs], y[Epilogue::outputs][pairs];
        [[maybe_unused]] float2 scale = make_float2(1, 1);
        if constexpr (backward) {
          if (p.scales) scale.x = scale.y = __ldg(p.scales + row);
          if constexpr (interleaved) {
            read_both(x[0], x[1], p.inputs[0], row);
          } else {
#pragma unroll
            for (int i = 0; i < Epilogue::inputs; i++) read(x[i], p.inputs[i], row, column, count);
          }
        }
#pragma unroll
        for (int pair = 0; pair < pairs; pair++) {
          float2 sum[Epilogue::rights];
          read_sums(sum, staged, pair);
          Pair in[Epilogue::inputs + 1], out[Epilogue::outputs];
          if constexpr (backward) {
            // NaN beyond the columns where the row has one
            if (2 * pair >= count) sum[0].x = 0;
            if (2 * pair + 1 >= count) sum[0].y = 0;
#pragma unroll
            for (int i = 0; i < Epilogue::inputs; i++) in[i] = x[i][pair];
            float2 products, of_columns[Epilogue::sums];
            Epilogue::template apply<Formula>(parameters, out, sum, in, scale, products, of_columns);
            of_row += products.x + products.y;
#pragma unroll
            for (int i = 0; i < Epilogue::sums; i++) {
              added[i][2 * pair] += of_columns[i].x;
              added[i][2 * pair + 1] += of_columns[i].y;
            }
          } else {
#pragma unroll
            for (int i = 0; i < Epilogue::rights; i++) sum[i] = make_float2(sum[i].x + biases[i][2 * pair], sum[i].y + biases[i][2 * pair + 1]);
            Epilogue::apply(parameters, out, sum, in);
          }
#pragma unroll
          for (int i = 0; i < Epilogue::outputs; i++) y[i][pair] = out[i];
        }
        constexpr int both = backward ? 0 : 1;  // the output that has values and gates
#pragma unroll
        for (int i = 0; i < Epilogue::outputs; i++) {
          if (interleaved && (i == both || i == both + 1)) continue;
          write(y[i], p.outputs[i], row, column, count);
        }
        if constexpr (interleaved) write_both(y[both], y[both + 1], p.outputs[both], row);
      }
      if constexpr (backward) {
        if (p.row_sums) {
#pragma unroll
          for (int distance = 1; distance < lanes_across; distance *= 2) of_row += __shfl_xor_sync(~0u, of_row, distance);
          if (own == 0 && in_tile < t.rows) p.row_sums[static_cast<int64_t>(t.column / warp_side + part) * p.rows + row] = of_row;
        }
      }
    });
    if constexpr (backward) {
      if (p.column_sums) add_lines(added);
    }
  }

  // depth is the epilogue of the depth kind.
  __device__ __forceinline__ void depth(const Sums &sums) const {
    const Weight &weight = p.weights[0][0];
    const Rows result{static_cast<Result *>(weight.data) + t.group * weight.group_stride, weight.stride};
    each_line(sums, [&](int in_tile, const float *staged) {
      const int64_t row = t.row + in_tile;
      if (in_tile >= t.rows || count == 0) return;
      Pair y[pairs];
      if (p.accumulate) read(y, result, row, column, count);
#pragma unroll
      for (int pair = 0; pair < pairs; pair++) {
        float2 sum[1];
        read_sums(sum, staged, pair);
        const float2 old = p.accumulate ? products::numbers_of<Result>(y[pair]) : make_float2(0, 0);
        y[pair] = products::pair_of<Result>(old.x + sum[0].x, old.y + sum[0].y);
      }
      write(y, result, row, column, count);
    });
  }

 private:
  // each_line calls `take` with a row of the tile, and where the lane's sums of it are: in all
  // lanes together.
  template <class Take>
  __device__ __forceinline__ void each_line(const Sums &sums, Take take) const {
    float *const staged = memory + warp * staged_rows * pitch;
    __syncthreads();
#pragma unroll 1
    for (int first = 0; first < warp_side; first += staged_rows) {
      __syncwarp();
#pragma unroll
      for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
          for (int i = 0; i < 4; i += 2) {
            const float one = first == 0 ? sums[m][n][i] : sums[m + 2][n][i], other = first == 0 ? sums[m][n][i + 1] : sums[m + 2][n][i + 1];
            *reinterpret_cast<float2 *>(staged + (16 * m + 4 * i + lane / 4) * pitch + 8 * n + lane % 4 * 2) = make_float2(one, other);
          }
      __syncwarp();
#pragma unroll 1
      for (int row = line; row < staged_rows; row += 32 / lanes_across) take(rows_from + first + row, staged + row * pitch);
    }
  }

  // read_sums gives those of two columns: of both operands where there are two.
  template <int rights>
  __device__ __forceinline__ void read_sums(float2 (&sum)[rights], const float *staged, int pair) const {
    const auto two = [&](int at) { return *reinterpret_cast<const float2 *>(staged + at); };
    if constexpr (P::pairs_of_columns) {
      const float2 one = two(2 * own + 4 * pair), other = two(2 * own + 4 * pair + 2);
      const float2 firsts = make_float2(one.x, other.x), seconds = make_float2(one.y, other.y);
      sum[0] = p.gate_first ? seconds : firsts;
      sum[1] = p.gate_first ? firsts : seconds;
    } else {
#pragma unroll
      for (int i = 0; i < rights; i++) sum[i] = two(of_warp * i + own + 2 * pair);
    }
  }

  template <int rights>
  __device__ __forceinline__ void load_biases(float (&biases)[rights][each]) const {
#pragma unroll
    for (int i = 0; i < rights; i++) {
      const Result *bias = static_cast<const Result *>(p.biases[P::pairs_of_columns ? 0 : i]);
      if (bias) bias += static_cast<int64_t>(t.group) * p.bias_stride + (P::pairs_of_columns ? 2 * column + (i ^ (p.gate_first != 0)) : column);
#pragma unroll
      for (int c = 0; c < each; c++) biases[i][c] = bias && c < count ? Result::load(bias + (P::pairs_of_columns ? 2 * c : c)) : 0;
    }
  }

  // add_lines adds up the columns of the lanes whose rows differ.
  template <int kinds>
  __device__ __forceinline__ void add_lines(float (&added)[kinds][each]) const {
    float *const to = p.column_sums + static_cast<int64_t>(2 * t.number + warp / warps_across) * (kinds * p.columns);
#pragma unroll
    for (int i = 0; i < kinds; i++) {
      const int of_pair = kinds == 2 && p.gate_first ? 1 - i : i;
#pragma unroll
      for (int c = 0; c < each; c++) {
#pragma unroll
        for (int distance = lanes_across; distance < 32; distance *= 2) added[i][c] += __shfl_xor_sync(~0u, added[i][c], distance);
        if (line == 0 && c < count) to[P::Epilogue::interleaved ? 2 * (column + c) + of_pair : of_pair * p.columns + column + c] = added[i][c];
      }
    }
  }

  // read and write move `there` neighbours of a row, by 16 bytes where all are there and lie so.
  template <int number>
  static __device__ __forceinline__ void read(Pair (&x)[number], const Rows &from, int64_t row, int column, int there) {
    const Result *const at = static_cast<const Result *>(from.data) + row * from.stride + column;
    if (there == 2 * number && is_whole(at)) {
#pragma unroll
      for (int i = 0; i < number; i += pairs) {
        const uint4 words = *reinterpret_cast<const uint4 *>(at + 2 * i);
        if constexpr (sizeof(Pair) == 4) {
          x[i] = words.x, x[i + 1] = words.y, x[i + 2] = words.z, x[i + 3] = words.w;
        } else {
          x[i] = make_float2(__uint_as_float(words.x), __uint_as_float(words.y));
          x[i + 1] = make_float2(__uint_as_float(words.z), __uint_as_float(words.w));
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < number; i++)
        x[i] = products::pair_of<Result>(2 * i < there ? Result::reload(at + 2 * i) : 0, 2 * i + 1 < there ? Result::reload(at + 2 * i + 1) : 0);
    }
  }
  template <int number>
  static __device__ __forceinline__ void write(const Pair (&y)[number], const Rows &to, int64_t row, int column, int there) {
    if (!to.data) return;
    Result *const at = static_cast<Result *>(to.data) + row * to.stride + column;
    if (there == 2 * number && is_whole(at)) {
#pragma unroll
      for (int i = 0; i < number; i += pairs) {
        uint4 words;
        if constexpr (sizeof(Pair) == 4) {
          words = make_uint4(y[i], y[i + 1], y[i + 2], y[i + 3]);
        } else {
          words = make_uint4(__float_as_uint(y[i].x), __float_as_uint(y[i].y), __float_as_uint(y[i + 1].x), __float_as_uint(y[i + 1].y));
        }
        *reinterpret_cast<uint4 *>(at + 2 * i) = words;
      }
    } else {
#pragma unroll
      for (int i = 0; i < number; i++) {
        const float2 numbers = products::numbers_of<Result>(y[i]);
        if (2 * i < there) Result::store(at + 2 * i, numbers.x);
        if (2 * i + 1 < there) Result::store(at + 2 * i + 1, numbers.y);
      }
    }
  }

  // read_both and write_both are of values and gates that alternate.
  __device__ __forceinline__ void read_both(Pair (&values)[pairs], Pair (&gates)[pairs], const Rows &from, int64_t row) const {
    Pair x[2 * pairs];
    read(x, from, row, 2 * column, 2 * count);
#pragma unroll
    for (int i = 0; i < pairs; i++) {
      exchange(x[2 * i], x[2 * i + 1]);
      values[i] = p.gate_first ? x[2 * i + 1] : x[2 * i];
      gates[i] = p.gate_first ? x[2 * i] : x[2 * i + 1];
    }
  }
  __device__ __forceinline__ void write_both(const Pair (&values)[pairs], const Pair (&gates)[pairs], const Rows &to, int64_t row) const {
    Pair y[2 * pairs];
#pragma unroll
    for (int i = 0; i < pairs; i++) {
      y[2 * i] = p.gate_first ? gates[i] : values[i];
      y[2 * i + 1] = p.gate_first ? values[i] : gates[i];
      exchange(y[2 * i], y[2 * i + 1]);
    }
    write(y, to, row, 2 * column, 2 * count);
  }
  // exchange makes a pair of the firsts, and one of the seconds.
  static __device__ __forceinline__ void exchange(Pair &one, Pair &other) {
    const Pair first = one, second = other;
    if constexpr (sizeof(Pair) == 4) {
      one = __byte_perm(first, second, 0x5410);
      other = __byte_perm(first, second, 0x7632);
    } else {
      one = make_float2(first.x, second.x);
      other = make_float2(first.y, second.y);
    }
  }
};

template <class P>
__device__ __forceinline__ void product(const ProductParameters &p) {
  EPG_DYNAMIC_SHARED(memory);
  const Place t = place_of<P>(p);
  if (!t.is_there) return;
  Sums sums;
  Multiplier<P>{p, t, shared_address(memory)}.run(sums);
  const Store<P> store{p, t, reinterpret_cast<float *>(memory)};
  if constexpr (!P::of_rows) {
    store.depth(sums);
  } else {
    using Epilogue = typename P::Epilogue;
    if constexpr (!Epilogue::backward) {
      store.template rows<void>(sums);
    } else if (Epilogue::is_plain(Parameters<float>(p.parameters))) {
      store.template rows<typename Epilogue::Plain>(sums);
    } else {
      store.template rows<typename Epilogue::Formula>(sums);
    }
  }
}

}  // namespace epigrad::sm80
