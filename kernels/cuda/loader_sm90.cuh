// The loader of a product (product_sm90.cuh) copies tiles of the operands into a ring of stages.
#pragma once

#include "tiles_sm90.cuh"

namespace epigrad::sm90 {

// Place walks over a ring of stages.
template <int stages>
struct Place {
  int stage = 0;
  uint32_t round = 0;  // its lowest bit is the parity of barriers' phases
  EPG_INLINE void next() {
    if (++stage == stages) {
      stage = 0;
      round++;
    }
  }
  EPG_INLINE void skip(int n) {
    n += stage;
    round += n / stages;
    stage = n % stages;
  }
};

// load_left copies what a step of the rows kind needs of a weight.
template <class P>
EPG_INLINE void load_left(const ProductParameters &p, const Tile &t, int pair, int depth, uint32_t to, uint32_t full) {
  using Epilogue = typename P::Epilogue;
  constexpr bool halves = Epilogue::rights == 2 && !Epilogue::interleaved;
  const int first = Epilogue::rights == 2 && Epilogue::interleaved ? 2 * t.left : t.left;
#pragma unroll
  for (int i = 0; i < P::blocks; i++) {
    const TensorMap *map = &p.left[pair][halves ? i : 0];
    const int column = halves ? first : first + 64 * i;
    load_box(map, to + i * block_bytes, full, P::across_left ? depth : column, P::across_left ? column : depth, t.group);
  }
}

// load_operands copies all tiles of the operands.
template <class P>
EPG_INLINE void load_operands(const ProductParameters &p, uint32_t shared, const uint8_t *memory) {
  using Shared = typename P::Shared;
  Place<P::stages> place;
  [[maybe_unused]] const int of_first = up(p.depths[0], tile_depth);
  for (Walk<P> walk(p, memory); walk.more(); walk.next()) {
    const Tile t = walk.tile();
    const int blocks = up(t.width, 64);
    for (int step = 0; step < t.steps; step++, place.next()) {
      const uint32_t full = shared + Shared::full_at + 8 * place.stage;
      const uint32_t left = shared + place.stage * Shared::stage_bytes, right = left + Shared::left_bytes;
      barrier_wait(shared + Shared::empty_at + 8 * place.stage, ~place.round & 1);
      barrier_announce(full, Shared::left_bytes + blocks * block_bytes);
      if constexpr (P::of_rows) {
        const int pair = step >= of_first, depth = (step - pair * of_first) * tile_depth;
        load_left<P>(p, t, pair, depth, left, full);
        for (int i = 0; i < blocks; i++) load_ragged_box(&p.right[pair], right + i * block_bytes, full, t.right + 64 * i, depth, t.end);
      } else {
        const int row = t.begin + step * tile_depth;
#pragma unroll
        for (int i = 0; i < P::blocks; i++) load_ragged_box(&p.left[0][0], left + i * block_bytes, full, row, t.left + 64 * i, t.end);
        for (int i = 0; i < blocks; i++) load_ragged_box(&p.right[0], right + i * block_bytes, full, row, t.right + 64 * i, t.end);
      }
    }
  }
}

// load_tokens copies the operands of one pair, and gathers the rows of x by their tokens. All warps
// of the loader do it: eight threads copy the 128 bytes that a step has of a row. They write these
// as a box would, with zeros beyond the depth. Rows beyond the tile are those of token 0, of which
// nothing is stored.
template <class P>
EPG_INLINE void load_tokens(const ProductParameters &p, uint32_t shared, const uint8_t *memory) {
  using Shared = typename P::Shared;
  constexpr int at_once = group_threads / 8, turns = P::tile_right / at_once;
  const int line = threadIdx.x / 8, chunk = threadIdx.x % 8;
  const uint32_t at_piece = Shared::left_bytes + line * 128 + ((chunk ^ line % 8) << 4);
  Place<P::stages> place;
  for (Walk<P> walk(p, memory); walk.more(); walk.next()) {
    const Tile t = walk.tile();
    const uint8_t *x = static_cast<const uint8_t *>(p.x) + 16 * chunk;
    uint32_t rows[turns];  // where they begin, in pieces
#pragma unroll
    for (int i = 0; i < turns; i++) {
      const int row = line + i * at_once;
      rows[i] = row < t.width ? static_cast<uint32_t>(__ldg(p.tokens + t.right + row)) * p.x_stride : 0;
    }
    for (int step = 0; step < t.steps; step++, place.next()) {
      const uint32_t full = shared + Shared::full_at + 8 * place.stage, stage = shared + place.stage * Shared::stage_bytes;
      const int depth = step * tile_depth, bytes = depth + 8 * chunk < p.depths[0] ? 16 : 0;
      barrier_wait(shared + Shared::empty_at + 8 * place.stage, ~place.round & 1);
      if (threadIdx.x == 0) {
        barrier_announce(full, Shared::left_bytes);
        load_left<P>(p, t, 0, depth, stage, full);
      }
      // Two branches, and not one for each copy: the first copy after a branch waits.
#pragma unroll
      for (int half = 0; half < 2; half++) {
        if (half == 1 && t.width <= P::tile_right / 2) break;
#pragma unroll
        for (int i = half * turns / 2; i < (half + 1) * turns / 2; i++)
          copy_piece(stage + at_piece + i * at_once * 128, x + 16 * static_cast<uint64_t>(rows[i]), bytes);
      }
      pieces_arrive(full);
      x += 2 * tile_depth;
    }
  }
}

// load_tokens_along is load_tokens of the depth kind: the rows that it gathers are a step's depth.
// Rows beyond the group are zeros. The tokens of the next step come while this one's are copied.
template <class P>
EPG_INLINE void load_tokens_along(const ProductParameters &p, uint32_t shared, const uint8_t *memory) {
  using Shared = typename P::Shared;
  constexpr int at_once = group_threads / 8, turns = tile_depth / at_once;
  const int line = threadIdx.x / 8, chunk = threadIdx.x % 8;
  const uint32_t at_piece = Shared::left_bytes + line * 128 + ((chunk ^ line % 8) << 4);
  Place<P::stages> place;
  for (Walk<P> walk(p, memory); walk.more(); walk.next()) {
    const Tile t = walk.tile();
    const uint8_t *x = static_cast<const uint8_t *>(p.x) + 2 * t.right + 16 * chunk;
    int32_t tokens[turns];
    const auto fetch = [&](int row) {
#pragma unroll
      for (int i = 0; i < turns; i++) tokens[i] = row + line + i * at_once < t.end ? __ldg(p.tokens + row + line + i * at_once) : -1;
    };
    fetch(t.begin);
    for (int step = 0; step < t.steps; step++, place.next()) {
      const int row = t.begin + step * tile_depth;
      const uint32_t full = shared + Shared::full_at + 8 * place.stage, stage = shared + place.stage * Shared::stage_bytes;
      barrier_wait(shared + Shared::empty_at + 8 * place.stage, ~place.round & 1);
      if (threadIdx.x == 0) {
        barrier_announce(full, Shared::left_bytes);
#pragma unroll
        for (int i = 0; i < P::blocks; i++) load_ragged_box(&p.left[0][0], stage + i * block_bytes, full, row, t.left + 64 * i, t.end);
      }
#pragma unroll
      for (int block = 0; block < P::tile_right / 64; block++) {
        if (64 * block >= t.width) break;
        const bool is_there = t.right + 64 * block + 8 * chunk < p.right_columns;
#pragma unroll
        for (int i = 0; i < turns; i++)
          copy_piece(stage + at_piece + block * block_bytes + i * at_once * 128, x + 128 * block + 16 * static_cast<uint64_t>(max(tokens[i], 0)) * p.x_stride,
                     is_there && tokens[i] >= 0 ? 16 : 0);
      }
      fetch(row + tile_depth);
      pieces_arrive(full);
    }
  }
}

// load_dense copies those of a dense layer, in as few boxes as can be: each has all rows of a tile,
// but for a weight whose columns are contiguous. Whole stages come, and what is beyond is zeros.
template <class P>
EPG_INLINE void load_dense(const ProductParameters &p, uint32_t shared, const uint8_t *memory) {
  using Shared = typename P::Shared;
  using Epilogue = typename P::Epilogue;
  constexpr bool halves = Epilogue::rights == 2;
  Place<P::stages> place;
  for (Walk<P> walk(p, memory); walk.more(); walk.next()) {
    const Tile t = walk.tile();
#pragma unroll 1
    for (int pair = 0; pair < most_pairs; pair++) {
      const TensorMap *const weights = p.left[pair], *const rows = &p.right[pair];
      const int depths = p.depths[pair];
#pragma unroll 1
      for (int depth = 0; depth < depths; depth += tile_depth, place.next()) {
        const uint32_t full = shared + Shared::full_at + 8 * place.stage;
        const uint32_t left = shared + place.stage * Shared::stage_bytes, right = left + Shared::left_bytes;
        barrier_wait(shared + Shared::empty_at + 8 * place.stage, ~place.round & 1);
        barrier_announce(full, Shared::stage_bytes);
        load_ragged_box(rows, right, full, t.right, depth, p.rows);
        if constexpr (!P::across_left && !halves) {
          load_box(weights, left, full, t.left, depth, 0);
        } else {
#pragma unroll
          for (int i = 0; i < P::blocks; i++) {
            const int column = halves ? t.left : t.left + 64 * i;
            load_box(weights + (halves ? i : 0), left + i * block_bytes, full, P::across_left ? depth : column, P::across_left ? column : depth, 0);
          }
        }
      }
    }
  }
}

}  // namespace epigrad::sm90
