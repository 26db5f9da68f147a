// Products and their epilogues in one kernel, for Hopper. There are two kinds:
//
//   rows    result[r, n] = epilogue(sum over pairs and k of x[r, k] weight[e, n, k]),
//           r a row of group e
//   depth   result[e, m, n] = sum over the rows r of group e of a[r, m] b[r, n]
//
// in half types, with sums in float. Rows are sorted by group (expert), and ends[e] is where those
// of group e end; a dense layer is one group. The device alone knows the rows of a group, so one
// block runs on each processor, and finds its tiles from the ends; those of a dense layer are
// known. It has three groups of four warps:
//
//   loader      one thread copies tiles of the operands into a ring of stages, and another one
//               prefetches a dense layer's maps; the other warps have nothing to do, unless rows
//               are those of tokens, which no box has side by side: all threads then copy pieces
//   consumers   two groups, which take tiles in turns: while one multiplies, the other one has its
//               epilogue
//
// The left operand has 128 rows of a tile, the right one up to 192. Of the first kind the left one
// is the weight and the right one x, so that sums are transposed: 128 columns of the result by up
// to 192 rows. A product of wgmma has any multiple of 16 of those, so that few rows of groups are
// for nothing, and the tiles of a group have nearly equal widths.
//
// Rows are copied through ragged maps, which end where a tile or a group ends: what lies beyond is
// read as zeros, and not written. So is what lies beyond the depth of one group's weight.
//
// An epilogue's results leave by way of shared memory, in boxes that the copy engine writes. A slot
// has the boxes of all outputs, which the inputs arrive in, some boxes ahead; its first warps move
// one of them each. A dense forward has no inputs, and larger boxes, which one thread moves.
//
// Each result element is formed by one thread, in the order of the depth. Neither the number of
// processors nor neighbours change its bits.
#pragma once

#include "epilogues.cuh"
#include "loader_sm90.cuh"

namespace epigrad::sm90 {

using products::numbers_of;
using products::pair_of;

// Consumer is one of the two groups.
template <class P>
struct Consumer {
  using Storage = typename P::Storage;
  using Shared = typename P::Shared;
  static constexpr int tile_right = P::tile_right, stages = P::stages, slots = Shared::slots, lag = Shared::lag;
  static constexpr int blocks = P::blocks;
  using Sums = float[blocks][tile_right / 2];
  const ProductParameters &p;
  uint8_t *const memory;
  const uint32_t shared;
  const int group, thread = threadIdx.x % group_threads, warp = thread / 32, lane = thread % 32;
  Walk<P> walk;
  Place<stages> place;
  Place<slots> slot;
  int before;     // the stage before the place's
  bool is_there;  // whether it is known that the place's stage has come

  // The broadcast keeps the address, which the compiler otherwise forms again for each stage.
  EPG_INLINE Consumer(const ProductParameters &parameters, uint8_t *bytes, int number)
      : p(parameters), memory(bytes), shared(__shfl_sync(~0u, shared_address(bytes), 0)), group(number), walk(parameters, bytes) {}

  // Named barriers: of the group, and for the turn to multiply.
  EPG_INLINE void meet_group() const { meet(1 + group, group_threads); }
  EPG_INLINE void wait_for_turn() const { meet(3 + group, consumers * group_threads); }
  EPG_INLINE void give_turn() const { leave(3 + (group ^ 1), consumers * group_threads); }

  // The first lane of warp i moves box i of all slots: what the epilogue reads comes where what it
  // leaves will lie. Copies of one thread are in order, so that a box is free for those after it.
  // One thread moves all of the large boxes: addresses of their maps are then constants.
  EPG_INLINE bool is_mover() const { return P::large_boxes ? thread == 0 : lane == 0 && warp < P::outputs; }
  EPG_INLINE bool reads() const { return P::inputs > 0 && (P::of_rows || p.accumulate); }
  EPG_INLINE uint32_t slot_at() const { return slot_at(slot.stage); }
  EPG_INLINE uint32_t slot_at(int stage) const { return shared + Shared::slots_at + (group * slots + stage) * Shared::slot_bytes; }
  EPG_INLINE uint32_t ready_at(int stage) const { return shared + Shared::ready_at + 8 * (group * slots + stage); }

  // prepare_slot has box n of a tile come to a slot, if there is one.
  EPG_INLINE void prepare_slot(const Tile &t, int n, int stage) const {
    const int along = n / P::sets * P::box_step, set = n % P::sets;
    if (along >= t.width) return;
    const uint32_t to = slot_at(stage) + warp * P::box_bytes, ready = ready_at(stage);
    barrier_announce(ready, P::box_bytes);
    if constexpr (P::of_rows) {
      const int column = t.left + 64 * set;
      constexpr bool interleaved = P::Epilogue::interleaved;
      load_ragged_box_once(&p.inputs[interleaved ? 0 : warp], to, ready, t.right + along, interleaved ? 2 * column + 64 * warp : column, t.right + t.width,
                           evict_first());
    } else {
      load_box(&p.outputs[0], to, ready, row_of(t, along, set), column_of(t, along, set), t.group);
    }
  }
  // begin_boxes has a tile's first boxes come, once the last tile's have left.
  EPG_INLINE void begin_boxes(const Tile &t) {
    if (!reads() || lane > 0 || warp >= P::inputs) return;
    stores_have_read<0>();
#pragma unroll 1
    for (int n = 0; n < slots; n++) prepare_slot(t, n, (slot.stage + n) % slots);
  }
  // wait_for_slot waits until a slot can be written: its boxes have come, or large ones have left.
  EPG_INLINE void wait_for_slot() const {
    if constexpr (P::large_boxes) {
      if (is_mover()) stores_have_read<slots - 1>();
      meet_group();
    }
    if (reads()) barrier_wait(ready_at(slot.stage), slot.round & 1);
  }
  // leave_slot has the next box leave once all warps have written theirs, and the slot of the box
  // that left `lag` before it take one more. All then know that this slot is free, unless boxes are
  // large.
  EPG_INLINE void leave_slot(const Tile &t, int along, int set) {
    const bool moves = is_mover();
    const int n = along / P::box_step * P::sets + set;
    show_to_copies();
    if (moves && !P::large_boxes) stores_have_read<lag - 1>();
    meet_group();
    if (moves) {
      if constexpr (P::large_boxes) {
#pragma unroll
        for (int i = 0; i < P::outputs; i++)
          if (p.wanted >> i & 1) store_ragged_box(&p.outputs[i], slot_at() + i * P::box_bytes, t.right + along, t.left + 64 * set, t.right + t.width);
      } else if constexpr (P::of_rows) {
        using Epilogue = typename P::Epilogue;
        const int output = Epilogue::output_of(warp);
        const uint32_t from = slot_at() + warp * P::box_bytes;
        if (p.wanted >> output & 1)
          store_ragged_box(&p.outputs[output], from, t.right + along, Epilogue::column_of(warp, t.left + 64 * set), t.right + t.width);
      } else {
        store_box(&p.outputs[0], slot_at() + warp * P::box_bytes, row_of(t, along, set), column_of(t, along, set), t.group);
      }
      end_stores();
      if (reads() && warp < P::inputs && n >= lag) prepare_slot(t, n - lag + slots, (slot.stage + slots - lag) % slots);
    }
    slot.next();
  }
  // Where a box of the depth kind lies.
  EPG_INLINE static int row_of(const Tile &t, int along, int set) { return P::turned ? t.right + along : t.left + 64 * set; }
  EPG_INLINE static int column_of(const Tile &t, int along, int set) { return P::turned ? t.left + 64 * set : t.right + along; }

  EPG_INLINE void release(int stage) const {
    if (thread == 0) barrier_arrive(shared + Shared::empty_at + 8 * stage);
  }

  EPG_INLINE uint32_t full_at() const { return shared + Shared::full_at + 8 * place.stage; }

  // multiply_stage multiplies `parts` times 16 of the depth. Whether the next stage is there is
  // asked while this one is multiplied: between two stages' products there is little time.
  template <int width, int parts>
  EPG_INLINE void multiply_stage(Sums &sums, int step) {
    if (!is_there) barrier_wait(full_at(), place.round & 1);
    if constexpr (P::grouped) {
      if (p.tokens) show_to_copies();
    }
    const uint32_t at = shared + place.stage * Shared::stage_bytes;
    const uint32_t left = operand<P::across_left>(at), right = operand<P::across_right>(at + Shared::left_bytes);
    constexpr int left_further = P::across_left ? 16 * 128 : 16 * 2, right_further = P::across_right ? 16 * 128 : 16 * 2;
    begin_products();
#pragma unroll
    for (int k = 0; k < parts; k++)
#pragma unroll
      for (int block = 0; block < blocks; block++)
        multiply<Storage, width, P::across_left, P::across_right>(sums[block], left + ((block * block_bytes + k * left_further) >> 4),
                                                                  right + (k * right_further >> 4), k > 0 ? 1 : step);
    end_products();
    const int stage = place.stage;
    place.next();
    is_there = barrier_has_ended(full_at(), place.round & 1);
    if (step > 0) {  // what was begun before has read its stage
      products_are_done<1>();
      release(before);
    }
    before = stage;
  }

  template <int width>
  EPG_INLINE void multiply_tile(Sums &sums, const Tile &t, bool others) {
    // A short last step comes after the loop: another path in it would cost a quarter of the speed.
    const bool is_short = !P::of_rows && t.last < 4;
    const int whole = is_short ? t.steps - 1 : t.steps;
    is_there = false;
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
    release(before);
    // no read of a sum moves up to before it is there
#pragma unroll
    for (int block = 0; block < blocks; block++)
#pragma unroll
      for (int i = 0; i < tile_right / 2; i++) asm volatile("" : "+f"(sums[block][i])::"memory");
  }

  // multiply_columns multiplies as many columns as a tile has, in steps.
  template <int width>
  EPG_INLINE void multiply_columns(Sums &sums, const Tile &t, bool others) {
    if constexpr (width > P::step) {
      if (t.width <= width - P::step) {
        multiply_columns<width - P::step>(sums, t, others);
        return;
      }
    }
    multiply_tile<width>(sums, t, others);
  }

  EPG_INLINE float *scales() const { return reinterpret_cast<float *>(memory + Shared::scales_at + group * Shared::scale_bytes); }

  // Of the biases, this thread has those of its rows of the sums.
  EPG_INLINE void load_biases(const Tile &t, float (&biases)[blocks][2]) const {
    using Epilogue = typename P::Epilogue;
    constexpr bool halves = Epilogue::rights == 2 && !Epilogue::interleaved;
    constexpr int times = Epilogue::rights == 2 && Epilogue::interleaved ? 2 : 1;
    const int first = times * t.left, columns = times * p.columns;
#pragma unroll
    for (int block = 0; block < blocks; block++) {
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
  EPG_INLINE void store_rows(Sums &sums, const Tile &t, const float (&biases)[blocks][2]) {
    using Epilogue = typename P::Epilogue;
    [[maybe_unused]] float added[P::sets][2][Epilogue::sums] = {};  // its part of the columns
#pragma unroll
    for (int strip = 0; strip < tile_right; strip += P::strip_rows) {
      if (strip >= t.width) break;
      if constexpr (P::moves_sums) {
        const int end = min(strip + P::strip_rows, t.width);
#pragma unroll 1
        for (int first = strip; first < end; first += P::box_rows) {
          store_boxes<Formula, adds_columns>(sums, t, biases, added, strip, first);
          // The next boxes' sums come to where these ones' were.
#pragma unroll
          for (int block = 0; block < blocks; block++)
#pragma unroll
            for (int i = strip / 2; i < (strip + P::strip_rows - P::box_rows) / 2; i++) sums[block][i] = sums[block][i + P::box_rows / 2];
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
  EPG_INLINE void store_boxes(Sums &sums, const Tile &t, const float (&biases)[blocks][2], [[maybe_unused]] float (&added)[P::sets][2][columns], int from,
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
            if constexpr (P::biased) sum[i] = make_float2(sum[i].x + biases[block][part % 2], sum[i].y + biases[block][part % 2]);
          }
          uint32_t in[Epilogue::inputs + 1], out[Epilogue::outputs];
#pragma unroll
          for (int i = 0; i < Epilogue::inputs; i++) in[i] = x[i][part];
          if constexpr (Epilogue::backward) {
            float2 scale = make_float2(1, 1), row;
            if constexpr (P::scaled) scale = *reinterpret_cast<const float2 *>(scales() + first + 16 * sixteen + part / 2 * 8 + lane % 4 * 2);
            float2 column[columns];
            Epilogue::template apply<Formula>(parameters, out, sum, in, scale, row, column);
            const int at_row = 4 * sixteen + part / 2 * 2;
            const bool begins = set == 0 && part % 2 == 0;
            of_rows[at_row] = begins ? row.x : of_rows[at_row] + row.x;
            of_rows[at_row + 1] = begins ? row.y : of_rows[at_row + 1] + row.y;
#pragma unroll
            for (int i = 0; i < columns; i++)
              if constexpr (adds_columns) added[set][part % 2][i] += column[i].x + column[i].y;
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
      leave_slot(t, first, set);
    }
    if constexpr (P::scaled) {
      if (p.row_sums) add_columns_of_rows(of_rows, t, first);
    }
  }

  // forget_rows_beyond clears the sums of a box's rows that only fill up the tile. They are 0, but
  // NaN where a weight is infinite.
  EPG_INLINE void forget_rows_beyond(Sums &sums, int rows, int from) const {
    if (rows >= P::box_rows) return;
#pragma unroll
    for (int block = 0; block < blocks; block++)
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
  EPG_INLINE void store_interleaved(Sums &sums, const Tile &t, const float (&biases)[blocks][2]) {
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
        for (int block = 0; block < blocks; block++) {
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
        for (int block = 0; block < blocks; block++) {
          uint32_t one, other;
          load_words(slot + (1 + block) * P::box_bytes + eight * 1024 + at_pairs, one, other);
          const uint32_t hidden = Epilogue::output(parameters, __byte_perm(one, other, values), __byte_perm(one, other, gates));
          store_word(slot + eight * 1024 + row * 128 + ((4 * block + warp) ^ row) * 16 + piece * 4, hidden);
        }
      leave_slot(t, first, 0);
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
      for (int block = 0; block < blocks; block++) {
        const uint32_t slot = slot_at();
        wait_for_slot();
        if constexpr (P::in_float) {
          store_floats<adds>(sums[block], first, slot);
        } else {
          store_halves<adds>(sums[block], first, slot);
        }
        leave_slot(t, first, block);
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
    for (int block = 0; block < blocks; block++)
#pragma unroll
      for (int i = 0; i < tile_right / 2; i++) asm volatile("mov.f32 %0, 0f00000000;" : "=f"(sums[block][i]));
  }

  // load_scales reads those of this thread's rows.
  EPG_INLINE void load_scales(const Tile &t, float (&own)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int row = thread + i * group_threads;
      own[i] = row >= t.width ? 0 : p.scales ? __ldg(p.scales + t.right + row) : 1;
    }
  }

  EPG_INLINE void store_tile(Sums &sums, const Tile &t, const float (&biases)[blocks][2]) {
    if constexpr (!P::of_rows) {
      if (p.accumulate) {
        store_depth<true>(sums, t);
      } else {
        store_depth<false>(sums, t);
      }
    } else {
      using Epilogue = typename P::Epilogue;
      if constexpr (!Epilogue::backward && Epilogue::interleaved) {
        store_interleaved(sums, t, biases);
      } else if constexpr (!Epilogue::backward) {
        store_rows<void, false>(sums, t, biases);
      } else if constexpr (!P::grouped) {  // a dense gated layer has no sums along columns
        store_rows<typename Epilogue::Formula, Epilogue::sums == 1>(sums, t, biases);
      } else if (!p.column_sums && Epilogue::is_plain(Parameters<float>(p.parameters))) {
        store_rows<typename Epilogue::Plain, false>(sums, t, biases);
      } else {
        store_rows<typename Epilogue::Formula, true>(sums, t, biases);
      }
    }
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
      float biases[blocks][2];
      [[maybe_unused]] float own_scales[2];
      if constexpr (P::biased) load_biases(t, biases);
      if constexpr (P::scaled) load_scales(t, own_scales);
      begin_boxes(t);
      if (turn > 0) wait_for_turn();
      if constexpr (P::scaled) {  // nobody reads the last tile's any more
        scales()[thread] = own_scales[0];
        if (thread < tile_right - group_threads) scales()[thread + group_threads] = own_scales[1];
      }
      multiply_columns<tile_right>(sums, t, others);
      if constexpr (P::scaled) meet_group();
      store_tile(sums, t, biases);
    }
    if (lane == 0) stores_are_done();  // they read shared memory
  }
};

template <class P>
EPG_INLINE void product(const ProductParameters &p) {
  using Shared = typename P::Shared;
  // Three threads, one of each group, have 168 registers each at first. If they ask for more than
  // that together, the block waits for ever.
  constexpr int registers = 3 * 168, loaders = P::loader_registers;
  extern __shared__ __align__(1024) uint8_t memory[];
  const uint32_t shared = shared_address(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < P::stages; i++) {
      barrier_make(shared + Shared::full_at + 8 * i, P::grouped && p.tokens ? 1 + group_threads : 1);
      barrier_make(shared + Shared::empty_at + 8 * i, 1);
    }
    for (int i = 0; i < consumers * Shared::slots; i++) barrier_make(shared + Shared::ready_at + 8 * i, P::inputs > 0 ? P::inputs : 1);
    barriers_are_made();
    prefetch_map(&p.left[0][0]);
    prefetch_map(&p.right[0]);
  }
  if constexpr (P::grouped) make_tables<P>(p, memory);
  __syncthreads();
  if (__shfl_sync(~0u, threadIdx.x / group_threads, 0) == 0) {
    give_registers<loaders>();
    if constexpr (P::grouped) {
      if (!p.tokens) {
        if (threadIdx.x == 0) load_operands<P>(p, shared, memory);
      } else if constexpr (P::of_rows) {
        load_tokens<P>(p, shared, memory);
      } else {
        load_tokens_along<P>(p, shared, memory);
      }
    } else {
      if (threadIdx.x == 0) load_dense<P>(p, shared, memory);
      if (threadIdx.x == 32) {
        for (int i = 0; i < P::outputs; i++)
          if (p.wanted >> i & 1) prefetch_map(&p.outputs[i]);
      }
    }
  } else {
    take_registers<(registers - loaders) / consumers>();
    Consumer<P>(p, memory, __shfl_sync(~0u, threadIdx.x / group_threads, 0) - 1).run();
  }
}

}  // namespace epigrad::sm90
