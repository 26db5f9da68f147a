// A product and its epilogue in one kernel, for Hopper:
//
//   result = epilogue(left right),  left [rows, depth],  right [depth, columns]
//
// in half types, with sums in float. A gated result is of two right operands, the value's and the
// gate's: a tile has the same columns of both. One block runs on each processor and walks over
// tiles of the result. It has three groups of four warps:
//
//   loaders      one thread copies tiles of the operands into a ring of stages, and one for each
//                consumer the boxes that its epilogue reads
//   consumers    two groups, which take tiles in turns: while one multiplies, the other one has its
//                epilogue, whose arithmetic and memory so cost little beside the products
//
// An epilogue's results leave by way of shared memory, in boxes of 64 x 64 elements, which the copy
// engine writes while the next tile is multiplied.
//
// Each result element is formed by one thread, in the order of the depth: neither the number of
// processors nor neighbours change its bits.
//
// An epilogue is a struct with
//
//   rights                the right operands, each of which gives a sum
//   inputs, outputs       the tensors of the result's shape that it reads, and the most that it
//                         writes: a run may want fewer
//   biased                whether biases are added to the sums
//   adds_columns          whether it gives numbers to be added up along columns
//   apply(p, ...) from two neighbours of a row: the pairs of outputs as they are stored, and
//                         the numbers to be added up
//
// Inputs arrive in the slots that the outputs leave from, some boxes ahead.
// A tile's column sums go to the workspace, and are added up by another kernel (reduce.cuh).
#pragma once

#include "gate.cuh"
#include "sm90.cuh"

namespace epigrad::sm90 {

constexpr int most_rights = 2, most_inputs = 2, most_outputs = 3;
constexpr int group_threads = 128, consumers = 2, threads = (1 + consumers) * group_threads;

// ProductParameters are the kernel's. go/backend/cuda/sm90.go says what boxes the maps have. An
// output that is not wanted has no map.
struct ProductParameters {
  TensorMap left, rights[most_rights], inputs[most_inputs], outputs[most_outputs];
  const void *biases[most_rights];     // [columns], or null
  float *column_sums;                  // [tiles_down, columns], or null
  double parameters[most_parameters];  // of the formula
  int32_t depth, columns;
  int32_t tiles_down, tiles_across;
  int32_t band;     // tiles are walked in bands of so many rows of tiles
  uint32_t wanted;  // bit i: output i
};
static_assert(sizeof(ProductParameters) == 1152, "go/backend/cuda has the same layout");

// Pairs are two neighbours of a row as they lie in memory.
template <class Storage>
EPG_INLINE uint32_t pair_of(float first, float second);
template <>
EPG_INLINE uint32_t pair_of<bf16>(float first, float second) {
  return pack_bf16(first, second);
}
template <>
EPG_INLINE uint32_t pair_of<f16>(float first, float second) {
  return pack_f16(first, second);
}
template <class Storage>
EPG_INLINE float2 numbers_of(uint32_t pair);
template <>
EPG_INLINE float2 numbers_of<bf16>(uint32_t pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}
template <>
EPG_INLINE float2 numbers_of<f16>(uint32_t pair) {
  return make_float2(unpack_f16(static_cast<uint16_t>(pair)), unpack_f16(static_cast<uint16_t>(pair >> 16)));
}

// How a right operand lies: its depth is contiguous, or its columns are.
constexpr bool nt = false, nn = true;

// Product is a kernel; `across` is nt or nn.
template <class Storage_, int columns_, bool across_, class Epilogue_>
struct Product {
  using Storage = Storage_;
  using Epilogue = Epilogue_;
  static constexpr bool across = across_;
  // of a tile
  static constexpr int rows = 128, columns = columns_, depth = 64;
  // of the result, where each right operand has as many
  static constexpr int rights = Epilogue::rights, result_columns = columns / rights;
  // 64 rows at a time are multiplied, and stored by 64 columns
  static constexpr int blocks = rows / 64, boxes = blocks * (result_columns / 64);
  static constexpr int box_bytes = 64 * 64 * 2, slot_bytes = Epilogue::outputs * box_bytes;
  static_assert(Epilogue::inputs <= Epilogue::outputs, "inputs lie where outputs will");
  static constexpr int left_bytes = rows * depth * 2, right_bytes = columns * depth * 2, stage_bytes = left_bytes + right_bytes;
  // the bias, or the warps' column sums of a box
  static constexpr int row_bytes = Epilogue::adds_columns ? 4 * 64 * 4 : columns * 2;

  // Shared memory: stages, then each consumer's slots for boxes that leave, its row, and barriers.
  static constexpr int most_shared = 227 * 1024;
  // Inputs need room for three boxes, one that is read, one that leaves, and one that arrives, and
  // a gated tile for both of its boxes.
  static constexpr int stages = columns == 192 || Epilogue::inputs > 0 || rights > 1 ? 4 : 5;
  static constexpr int slots_at = stages * stage_bytes;
  static constexpr int fitting = (most_shared - 256 - slots_at - consumers * row_bytes) / (consumers * slot_bytes);
  static constexpr int slots = fitting < boxes ? fitting : boxes;
  static constexpr int row_at = slots_at + consumers * slots * slot_bytes;
  static constexpr int full_at = row_at + consumers * row_bytes, empty_at = full_at + 8 * stages;
  static constexpr int arrived_at = empty_at + 8 * stages, left_at = arrived_at + 8 * consumers * slots;
  static constexpr int shared_bytes = left_at + 8 * consumers * slots;
  static_assert(slots > (Epilogue::inputs > 0) && shared_bytes <= most_shared && slots_at % 1024 == 0);
};

// Place walks over a ring of stages.
template <int stages>
struct Place {
  int stage = 0;
  uint32_t round = 0;  // its lowest bit is the parity of barriers' phases
  EPG_INLINE void next() { skip(1); }
  EPG_INLINE void skip(int n) {
    n += stage;
    round += n / stages;
    stage = n % stages;
  }
};

// origin is a tile's first row and column. Bands of tiles keep what they share in the cache.
template <class P>
EPG_INLINE void origin(const ProductParameters &p, int tile, int &row, int &column) {
  const int in_band = p.band * p.tiles_across, first = tile / in_band * p.band;
  const int height = min(p.band, p.tiles_down - first), rest = tile % in_band;
  row = (first + rest % height) * P::rows;
  column = rest / height * P::result_columns;
}

template <class P>
EPG_INLINE void load_tiles(const ProductParameters &p, uint32_t shared) {
  Place<P::stages> place;
  const int tiles = p.tiles_down * p.tiles_across, steps = (p.depth + P::depth - 1) / P::depth;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    int row, column;
    origin<P>(p, tile, row, column);
    for (int step = 0; step < steps; step++, place.next()) {
      const uint32_t full = shared + P::full_at + 8 * place.stage;
      const uint32_t left = shared + place.stage * P::stage_bytes, right = left + P::left_bytes;
      barrier_wait(shared + P::empty_at + 8 * place.stage, ~place.round & 1);
      barrier_announce(full, P::stage_bytes);
      load_box(&p.left, left, full, row, step * P::depth);
      if constexpr (P::across) {
#pragma unroll
        for (int i = 0; i < P::columns; i += 64)
          load_box(&p.rights[i / P::result_columns], right + i * 128, full, step * P::depth, column + i % P::result_columns);
      } else {
#pragma unroll
        for (int i = 0; i < P::rights; i++) load_box(&p.rights[i], right + i * P::result_columns * 128, full, column, step * P::depth);
      }
    }
  }
}

// load_inputs copies what a consumer's epilogue reads, in the order of its tiles and their boxes.
template <class P>
EPG_INLINE void load_inputs(const ProductParameters &p, uint32_t shared, int group) {
  Place<P::slots> slot;
  const int tiles = p.tiles_down * p.tiles_across;
  for (int tile = blockIdx.x + group * gridDim.x; tile < tiles; tile += consumers * gridDim.x) {
    int row, column;
    origin<P>(p, tile, row, column);
    for (int box = 0; box < P::boxes; box++, slot.next()) {
      const int number = group * P::slots + slot.stage;
      const uint32_t arrived = shared + P::arrived_at + 8 * number;
      barrier_wait(shared + P::left_at + 8 * number, ~slot.round & 1);
      barrier_announce(arrived, P::Epilogue::inputs * P::box_bytes);
      for (int i = 0; i < P::Epilogue::inputs; i++)
        load_box(&p.inputs[i], shared + P::slots_at + number * P::slot_bytes + i * P::box_bytes, arrived, row + box % P::blocks * 64,
                 column + box / P::blocks * 64);
    }
  }
}

// Consumer is one of the two groups.
template <class P>
struct Consumer {
  using Storage = typename P::Storage;
  using Epilogue = typename P::Epilogue;
  const ProductParameters &p;
  const uint32_t shared;
  uint8_t *const own_row;
  const int group, thread = threadIdx.x % group_threads, warp = thread / 32, lane = thread % 32;
  Place<P::stages> place;
  Place<P::slots> slot;

  EPG_INLINE Consumer(const ProductParameters &parameters, uint8_t *memory, int number)
      : p(parameters), shared(shared_address(memory)), own_row(memory + P::row_at + number * P::row_bytes), group(number) {}

  EPG_INLINE uint32_t slot_at(int i) const { return shared + P::slots_at + (group * P::slots + i) * P::slot_bytes; }
  EPG_INLINE uint32_t arrived_at(int i) const { return shared + P::arrived_at + 8 * (group * P::slots + i); }
  EPG_INLINE uint32_t left_at(int i) const { return shared + P::left_at + 8 * (group * P::slots + i); }

  // Named barriers: of the group, and for the turn to multiply.
  EPG_INLINE void meet_group() const { meet(1 + group, group_threads); }
  EPG_INLINE void wait_for_turn() const { meet(3 + group, consumers * group_threads); }
  EPG_INLINE void give_turn() const { leave(3 + (group ^ 1), consumers * group_threads); }

  // The biases come while the tile is multiplied.
  EPG_INLINE void load_biases(int column) {
    if (thread >= P::columns / 2) return;
    column += 2 * thread % P::result_columns;  // the number of columns is even
    const uint32_t *bias = static_cast<const uint32_t *>(p.biases[P::rights == 1 ? 0 : 2 * thread / P::result_columns]);
    reinterpret_cast<uint32_t *>(own_row)[thread] = bias && column < p.columns ? __ldg(bias + column / 2) : 0;
  }

  EPG_INLINE void release(int stage) const {
    if (thread == 0) barrier_arrive(shared + P::empty_at + 8 * stage);
  }

  EPG_INLINE void multiply_tile(float (&sums)[P::blocks][P::columns / 2], int steps, bool others) {
    int before = 0;
    for (int step = 0; step < steps; step++, place.next()) {
      barrier_wait(shared + P::full_at + 8 * place.stage, place.round & 1);
      const uint32_t at = shared + place.stage * P::stage_bytes;
      const uint32_t left = operand<false>(at), right = operand<P::across>(at + P::left_bytes);
      constexpr int further = P::across ? 16 * 128 : 16 * 2;  // bytes to the next 16 of the depth
      begin_products();
#pragma unroll
      for (int k = 0; k < P::depth / 16; k++)
#pragma unroll
        for (int block = 0; block < P::blocks; block++)
          multiply<Storage, P::columns, P::across>(sums[block], left + ((block * 64 * P::depth * 2 + k * 32) >> 4), right + (k * further >> 4),
                                                   k > 0 ? 1 : step);
      end_products();
      if (step > 0) {  // what was begun before has read its stage
        products_are_done<1>();
        release(before);
      }
      before = place.stage;
    }
    if (others) give_turn();
    products_are_done<0>();
    release(before);
    // no read of a sum moves up to before it is there
#pragma unroll
    for (int block = 0; block < P::blocks; block++)
#pragma unroll
      for (int i = 0; i < P::columns / 2; i++) asm volatile("" : "+f"(sums[block][i])::"memory");
  }

  // Of a box, this thread has 2 columns in each of 8 groups of 8, and 2 rows, as multiply says.
  EPG_INLINE void store_tile(float (&sums)[P::blocks][P::columns / 2], int row, int column) {
    const Parameters<float> parameters(p.parameters);
    const uint32_t line = warp * 16 + lane % 16, swizzle = line % 8, right_half = lane / 16;
    const uint32_t *bias = reinterpret_cast<const uint32_t *>(own_row);
    float added[16];  // its part of the box's columns
#pragma unroll
    for (int box = 0; box < P::boxes; box++) {
      const int block = box % P::blocks, box_column = box / P::blocks * 64;
      const uint32_t at = slot_at(slot.stage) + line * 128;
      if constexpr (Epilogue::inputs > 0) {
        barrier_wait(arrived_at(slot.stage), slot.round & 1);  // so the slot was free
      } else {
        if (thread == 0) stores_have_read<P::slots - 1>();
        meet_group();  // the slot is free, and the bias is there
      }
#pragma unroll
      for (int sixteen = 0; sixteen < 4; sixteen++) {
        const uint32_t place_at = ((2 * sixteen + right_half) ^ swizzle) << 4;
        uint32_t x[Epilogue::inputs + 1][4], y[Epilogue::outputs][4];
#pragma unroll
        for (int i = 0; i < Epilogue::inputs; i++) load_matrices(at + i * P::box_bytes + place_at, x[i]);
#pragma unroll
        for (int part = 0; part < 4; part++) {  // columns 0-7 of rows 0-7 and 8-15, columns 8-15
          const int eight = 2 * sixteen + part / 2, first = box_column / 2 + eight * 4;
          float2 sum[P::rights];
#pragma unroll
          for (int i = 0; i < P::rights; i++) {
            const int at_right = first + i * P::result_columns / 2;
            sum[i] = make_float2(sums[block][at_right + part % 2 * 2], sums[block][at_right + part % 2 * 2 + 1]);
            if constexpr (Epilogue::biased) {
              const float2 b = numbers_of<Storage>(bias[at_right + lane % 4]);
              sum[i] = make_float2(sum[i].x + b.x, sum[i].y + b.y);
            }
          }
          uint32_t in[Epilogue::inputs + 1], out[Epilogue::outputs];
#pragma unroll
          for (int i = 0; i < Epilogue::inputs; i++) in[i] = x[i][part];
          const float2 number = Epilogue::apply(parameters, out, sum, in);
          if constexpr (Epilogue::adds_columns) {
            const bool begins = block == 0 && part % 2 == 0;
            added[2 * eight] = begins ? number.x : added[2 * eight] + number.x;
            added[2 * eight + 1] = begins ? number.y : added[2 * eight + 1] + number.y;
          }
#pragma unroll
          for (int i = 0; i < Epilogue::outputs; i++) y[i][part] = out[i];
        }
#pragma unroll
        for (int i = 0; i < Epilogue::outputs; i++) store_matrices(at + i * P::box_bytes + place_at, y[i]);
      }
      const bool column_ends = Epilogue::adds_columns && block == P::blocks - 1;
      if (column_ends) add_lanes(added);
      show_to_copies();
      meet_group();
      if (thread == 0) {
        store_box_of(slot.stage, row + block * 64, column + box_column);
        if constexpr (Epilogue::inputs > 0) free_slots(box);
      }
      if (column_ends) add_warps(row, column + box_column);
      slot.next();
    }
  }

  // The slot of the box before is free once its store has read it. Nobody waits for a tile's last
  // box: the other group is multiplying.
  EPG_INLINE void free_slots(int box) {
    if (box > 0) {
      stores_have_read<1>();
      barrier_arrive(left_at((slot.stage + P::slots - 1) % P::slots));
    }
    if (box == P::boxes - 1) {
      stores_have_read<0>();
      barrier_arrive(left_at(slot.stage));
    }
  }

  EPG_INLINE void store_box_of(int from, int row, int column) {
#pragma unroll
    for (int i = 0; i < Epilogue::outputs; i++)
      if (p.wanted >> i & 1) store_box(&p.outputs[i], slot_at(from) + i * P::box_bytes, row, column);
    end_stores();
  }

  // add_lanes adds up the columns of 8 lanes, whose rows differ, into the warp's 64 numbers: each
  // step halves the columns that a lane still has.
  EPG_INLINE void add_lanes(float (&added)[16]) {
    halve<8>(added);
    halve<4>(added);
    halve<2>(added);
    reinterpret_cast<float2 *>(own_row)[warp * 32 + lane] = make_float2(added[0], added[1]);
  }
  template <int left>
  EPG_INLINE void halve(float (&added)[16]) {
    const bool upper = lane & (2 * left);
#pragma unroll
    for (int i = 0; i < left; i++) {
      const float low = added[i], high = added[i + left];
      added[i] = (upper ? high : low) + __shfl_xor_sync(~0u, upper ? low : high, 2 * left);
    }
  }
  // add_warps adds up the warps' numbers, and leaves them as the tile's part of 64 columns.
  EPG_INLINE void add_warps(int row, int column) {
    const float *of_warps = reinterpret_cast<const float *>(own_row) + thread;
    if (thread < 64 && column + thread < p.columns && p.column_sums)
      p.column_sums[static_cast<int64_t>(row / P::rows) * p.columns + column + thread] = (of_warps[0] + of_warps[64]) + (of_warps[128] + of_warps[192]);
  }

  EPG_INLINE void run() {
    float sums[P::blocks][P::columns / 2];
    const int tiles = p.tiles_down * p.tiles_across, steps = (p.depth + P::depth - 1) / P::depth;
    for (int tile = blockIdx.x, turn = 0; tile < tiles; tile += gridDim.x, turn++) {
      if (turn % consumers != group) {
        place.skip(steps);
        continue;
      }
      int row, column;
      origin<P>(p, tile, row, column);
      if constexpr (Epilogue::biased) {
        meet_group();  // nobody reads the last tile's biases
        load_biases(column);
      }
      if (turn > 0) wait_for_turn();
      multiply_tile(sums, steps, tile + gridDim.x < tiles);
      store_tile(sums, row, column);
    }
    if (thread == 0) stores_are_done();  // they read shared memory
  }
};

template <class P>
EPG_INLINE void product(const ProductParameters &p) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const uint32_t shared = shared_address(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < P::stages; i++) {
      barrier_make(shared + P::full_at + 8 * i, 1);
      barrier_make(shared + P::empty_at + 8 * i, 1);
    }
    for (int i = 0; i < consumers * P::slots; i++) {
      barrier_make(shared + P::arrived_at + 8 * i, 1);
      barrier_make(shared + P::left_at + 8 * i, 1);
    }
    barriers_are_made();
    prefetch_map(&p.left);
    for (int i = 0; i < P::rights; i++) prefetch_map(&p.rights[i]);
  }
  __syncthreads();
  const int group = __shfl_sync(~0u, threadIdx.x / group_threads, 0);
  if (group == 0) {
    give_registers<24>();
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    if (warp == 0 && lane == 0) load_tiles<P>(p, shared);
    if (P::Epilogue::inputs > 0 && (warp == 1 || warp == 2) && lane == 0) load_inputs<P>(p, shared, warp - 1);
  } else {
    take_registers<240>();
    Consumer<P>(p, memory, group - 1).run();
  }
}

// Forward is out = act(pre) and pre = sum + bias, which the activation reads as it is stored.
template <class Storage, class Activation>
struct Forward {
  static constexpr int rights = 1, inputs = 0, outputs = 2;
  static constexpr bool biased = true, adds_columns = false;
  EPG_INLINE static float2 apply(const Parameters<float> &p, uint32_t (&y)[outputs], const float2 (&sum)[rights], const uint32_t (&)[inputs + 1]) {
    y[1] = pair_of<Storage>(sum[0].x, sum[0].y);
    const float2 x = numbers_of<Storage>(y[1]);
    y[0] = pair_of<Storage>(Activation::value(x.x, Activation::parts(x.x, p)), Activation::value(x.y, Activation::parts(x.y, p)));
    return sum[0];
  }
};

// Sloped is grad_pre = sum act'(pre), whose columns are added up before it is rounded, and
// out = act(pre).
template <class Storage, class Activation>
struct Sloped {
  static constexpr int rights = 1, inputs = 1, outputs = 2;
  static constexpr bool biased = false, adds_columns = true;
  EPG_INLINE static float2 apply(const Parameters<float> &p, uint32_t (&y)[outputs], const float2 (&sum)[rights], const uint32_t (&x)[inputs + 1]) {
    const float2 pre = numbers_of<Storage>(x[0]);
    const auto first = Activation::parts(pre.x, p), second = Activation::parts(pre.y, p);
    const float2 gradient = make_float2(Activation::gradient(sum[0].x, pre.x, first), Activation::gradient(sum[0].y, pre.y, second));
    y[0] = pair_of<Storage>(gradient.x, gradient.y);
    y[1] = pair_of<Storage>(Activation::value(pre.x, first), Activation::value(pre.y, second));
    return gradient;
  }
};

// Gated is out = value act(gate), and value and gate, which are sums and biases. They are read as
// they are stored.
template <class Storage, class Gate>
struct Gated {
  static constexpr int rights = 2, inputs = 0, outputs = 3;
  static constexpr bool biased = true, adds_columns = false;
  EPG_INLINE static float2 apply(const Parameters<float> &p, uint32_t (&y)[outputs], const float2 (&sum)[rights], const uint32_t (&)[inputs + 1]) {
    y[1] = pair_of<Storage>(sum[0].x, sum[0].y);
    y[2] = pair_of<Storage>(sum[1].x, sum[1].y);
    const float2 value = numbers_of<Storage>(y[1]), gate = numbers_of<Storage>(y[2]);
    y[0] = pair_of<Storage>(Gate::output(Gate::parts(value.x, gate.x, p)), Gate::output(Gate::parts(value.y, gate.y, p)));
    return sum[0];
  }
};

// GatedSloped is grad_value = sum act(gate), grad_gate = sum value act'(gate), and
// out = value act(gate).
template <class Storage, class Gate>
struct GatedSloped {
  static constexpr int rights = 1, inputs = 2, outputs = 3;
  static constexpr bool biased = false, adds_columns = false;
  EPG_INLINE static float2 apply(const Parameters<float> &p, uint32_t (&y)[outputs], const float2 (&sum)[rights], const uint32_t (&x)[inputs + 1]) {
    const float2 value = numbers_of<Storage>(x[0]), gate = numbers_of<Storage>(x[1]);
    const auto first = Gate::parts(value.x, gate.x, p), second = Gate::parts(value.y, gate.y, p);
    y[0] = pair_of<Storage>(Gate::grad_value(sum[0].x, first), Gate::grad_value(sum[0].y, second));
    y[1] = pair_of<Storage>(Gate::grad_gate(sum[0].x, first), Gate::grad_gate(sum[0].y, second));
    y[2] = pair_of<Storage>(Gate::output(first), Gate::output(second));
    return sum[0];
  }
};

}  // namespace epigrad::sm90
