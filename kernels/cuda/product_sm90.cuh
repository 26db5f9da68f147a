// A product and its epilogue in one kernel, for Hopper:
//
//   result = epilogue(left right),  left [rows, depth],  right [depth, columns]
//
// in half types, with sums in float. One block runs on each processor and walks over tiles of the
// result. It has three groups of four warps:
//
//   loader       one thread, which copies tiles of both operands into a ring of stages
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
//   outputs               the most tensors that it writes; a run may want fewer
//   apply(p, y, a, b)     from two neighbours of a row, bias added, the pairs y[outputs] as they
//                         are stored
#pragma once

#include "activation.cuh"
#include "sm90.cuh"

namespace epigrad::sm90 {

constexpr int most_outputs = 2;
constexpr int group_threads = 128, consumers = 2, threads = (1 + consumers) * group_threads;

// ProductParameters are the kernel's. go/backend/cuda/sm90.go says what boxes the maps have. An
// output that is not wanted has no map.
struct ProductParameters {
  TensorMap left, right, outputs[most_outputs];
  const void *bias;                    // [columns], or null
  double parameters[most_parameters];  // of the activation
  int32_t depth, columns;
  int32_t tiles_down, tiles_across;
  int32_t band;     // tiles are walked in bands of so many rows of tiles
  uint32_t wanted;  // bit i: output i
};
static_assert(sizeof(ProductParameters) == 576, "go/backend/cuda has the same layout");

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
  // 64 rows at a time are multiplied, and stored by 64 columns
  static constexpr int blocks = rows / 64, boxes = blocks * (columns / 64);
  static constexpr int box_bytes = 64 * 64 * 2, slot_bytes = Epilogue::outputs * box_bytes;
  static constexpr int left_bytes = rows * depth * 2, right_bytes = columns * depth * 2, stage_bytes = left_bytes + right_bytes;
  static constexpr int bias_bytes = columns * 2;

  // Shared memory: stages, then each consumer's slots for boxes that leave, its bias, and barriers.
  static constexpr int most_shared = 227 * 1024;
  static constexpr int stages = columns == 192 ? 4 : 5;
  static constexpr int slots_at = stages * stage_bytes;
  static constexpr int fitting = (most_shared - 256 - slots_at - consumers * bias_bytes) / (consumers * slot_bytes);
  static constexpr int slots = fitting < boxes ? fitting : boxes;
  static constexpr int bias_at = slots_at + consumers * slots * slot_bytes;
  static constexpr int full_at = bias_at + consumers * bias_bytes, empty_at = full_at + 8 * stages;
  static constexpr int shared_bytes = empty_at + 8 * stages;
  static_assert(slots >= 1 && shared_bytes <= most_shared && slots_at % 1024 == 0);
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
  column = rest / height * P::columns;
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
        for (int i = 0; i < P::columns / 64; i++) load_box(&p.right, right + i * P::box_bytes, full, step * P::depth, column + i * 64);
      } else {
        load_box(&p.right, right, full, column, step * P::depth);
      }
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
  uint32_t *const bias;  // pairs of columns
  const int group, thread = threadIdx.x % group_threads, warp = thread / 32, lane = thread % 32;
  Place<P::stages> place;
  int slot = 0;

  EPG_INLINE Consumer(const ProductParameters &parameters, uint8_t *memory, int number)
      : p(parameters), shared(shared_address(memory)), bias(reinterpret_cast<uint32_t *>(memory + P::bias_at + number * P::bias_bytes)), group(number) {}

  // Named barriers: of the group, and for the turn to multiply.
  EPG_INLINE void meet_group() const { meet(1 + group, group_threads); }
  EPG_INLINE void wait_for_turn() const { meet(3 + group, consumers * group_threads); }
  EPG_INLINE void give_turn() const { leave(3 + (group ^ 1), consumers * group_threads); }

  // The bias comes while the tile is multiplied.
  EPG_INLINE void load_bias(int column) {
    column += 2 * thread;  // the number of columns is even
    if (thread < P::columns / 2) bias[thread] = p.bias && column < p.columns ? __ldg(static_cast<const uint32_t *>(p.bias) + column / 2) : 0;
  }

  EPG_INLINE void release(int stage) const {
    if (thread == 0) barrier_arrive(shared + P::empty_at + 8 * stage);
  }

  EPG_INLINE void multiply_tile(float (&sums)[P::blocks][P::columns / 2], int steps, bool others) {
    int before = 0;
    for (int step = 0; step < steps; step++, place.next()) {
      barrier_wait(shared + P::full_at + 8 * place.stage, place.round & 1);
      const uint32_t at = shared + place.stage * P::stage_bytes;
      const uint64_t left = operand<false>(at), right = operand<P::across>(at + P::left_bytes);
      constexpr int further = P::across ? 16 * 128 : 16 * 2;  // bytes to the next 16 of the depth
      begin_products();
#pragma unroll
      for (int k = 0; k < P::depth / 16; k++)
#pragma unroll
        for (int block = 0; block < P::blocks; block++)
          multiply<Storage, P::columns, P::across>(sums[block], left + ((block * 64 * P::depth * 2 + k * 32) >> 4), right + (k * further >> 4), step | k);
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

  EPG_INLINE void store_tile(float (&sums)[P::blocks][P::columns / 2], int row, int column) {
    const Parameters<float> parameters(p.parameters);
    const uint32_t line = warp * 16 + lane % 16, swizzle = line % 8, right_half = lane / 16;
#pragma unroll
    for (int box = 0; box < P::boxes; box++) {
      const int block = box % P::blocks, box_column = box / P::blocks * 64;
      const uint32_t at = shared + P::slots_at + (group * P::slots + slot) * P::slot_bytes;
      if (thread == 0) stores_have_read<P::slots - 1>();
      meet_group();  // the slot is free, and the bias is there
#pragma unroll
      for (int sixteen = 0; sixteen < 4; sixteen++) {
        uint32_t y[Epilogue::outputs][4];
#pragma unroll
        for (int part = 0; part < 4; part++) {  // columns 0-7 of rows 0-7 and 8-15, columns 8-15
          const int place = box_column / 2 + (2 * sixteen + part / 2) * 4;
          const float2 b = numbers_of<Storage>(bias[place + lane % 4]);
          const float *sum = &sums[block][place + part % 2 * 2];
          uint32_t pairs[Epilogue::outputs];
          Epilogue::apply(parameters, pairs, sum[0] + b.x, sum[1] + b.y);
#pragma unroll
          for (int i = 0; i < Epilogue::outputs; i++) y[i][part] = pairs[i];
        }
#pragma unroll
        for (int i = 0; i < Epilogue::outputs; i++) store_matrices(at + i * P::box_bytes + line * 128 + (((2 * sixteen + right_half) ^ swizzle) << 4), y[i]);
      }
      show_to_copies();
      meet_group();
      if (thread == 0) {
#pragma unroll
        for (int i = 0; i < Epilogue::outputs; i++)
          if (p.wanted >> i & 1) store_box(&p.outputs[i], at + i * P::box_bytes, row + block * 64, column + box_column);
        end_stores();
      }
      slot = slot + 1 == P::slots ? 0 : slot + 1;
    }
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
      meet_group();  // nobody reads the last tile's bias
      load_bias(column);
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
    barriers_are_made();
    prefetch_map(&p.left);
    prefetch_map(&p.right);
  }
  __syncthreads();
  const int group = __shfl_sync(~0u, threadIdx.x / group_threads, 0);
  if (group == 0) {
    give_registers<24>();
    if (threadIdx.x == 0) load_tiles<P>(p, shared);
  } else {
    take_registers<240>();
    Consumer<P>(p, memory, group - 1).run();
  }
}

// Forward is out = act(pre) and pre = sum + bias, which the activation reads as it is stored.
template <class Storage, class Activation>
struct Forward {
  static constexpr int outputs = 2;
  EPG_INLINE static void apply(const Parameters<float> &p, uint32_t (&y)[outputs], float first, float second) {
    y[1] = pair_of<Storage>(first, second);
    const float2 x = numbers_of<Storage>(y[1]);
    y[0] = pair_of<Storage>(Activation::value(x.x, Activation::parts(x.x, p)), Activation::value(x.y, Activation::parts(x.y, p)));
  }
};

}  // namespace epigrad::sm90
