// Instructions of tensor cores from compute capability 8.0 on, and tiles in shared memory that they
// read.
#pragma once

#include "storage.cuh"

namespace epigrad::sm80 {

#ifdef __CUDACC__
#define EPG_DYNAMIC_SHARED(name) extern __shared__ __align__(1024) uint8_t name[]

__device__ __forceinline__ uint32_t shared_address(const void *p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// copy_piece copies up to 16 bytes to shared memory, and writes zeros behind them.
__device__ __forceinline__ void copy_piece(uint32_t to, const void *from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void store_piece(uint32_t to, uint4 x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
__device__ __forceinline__ void end_stage() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int count>
__device__ __forceinline__ void wait_for_stages() {
  asm volatile("cp.async.wait_group %0;" ::"n"(count) : "memory");
}

// Four 8 x 8 matrices of 16 bits, of which lane l gives the address of row l % 8 of matrix l / 8.
template <bool across>
__device__ __forceinline__ void load_matrices(uint32_t (&x)[4], uint32_t at) {
  if constexpr (across) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(at)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(at) : "memory");
  }
}
__device__ __forceinline__ uint32_t load_word(uint32_t at) {
  uint32_t x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
  return x;
}

// multiply adds the product of 16 rows and 8 columns along 32 bytes of depth.
template <class Storage>
__device__ __forceinline__ void multiply(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
#define EPG_MULTIPLY(Storage, instruction)                                                                               \
  template <>                                                                                                            \
  __device__ __forceinline__ void multiply<Storage>(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { \
    asm volatile("mma.sync.aligned." instruction " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"      \
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                                                \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                        \
  }
EPG_MULTIPLY(bf16, "m16n8k16.row.col.f32.bf16.bf16.f32")
EPG_MULTIPLY(f16, "m16n8k16.row.col.f32.f16.f16.f32")
EPG_MULTIPLY(f32, "m16n8k8.row.col.f32.tf32.tf32.f32")

// to_tf32 rounds a float to the nearest of the ten bits of mantissa that are multiplied.
__device__ __forceinline__ uint32_t to_tf32(uint32_t x) {
  uint32_t y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}
#endif

// An operand's tile has `places` across the sum and 64 bytes along it: its depth. It lies near,
// with the depth contiguous, in a line of four pieces of 16 bytes for each place; or across, in a
// line for each place along the depth. Pieces are exchanged so that eight threads that read one
// column of pieces read different banks.
template <class Storage, bool across_, int places>
struct TileOf {
  static constexpr bool across = across_;
  static constexpr int each = 16 / sizeof(Storage), depth = 64 / sizeof(Storage), bytes = 64 * places;
  static constexpr int pieces = across ? places / each : 4, lines = across ? depth : places;

  static __device__ __forceinline__ uint32_t at(int line, int piece) {
    int exchanged = piece;
    if constexpr (!across) {
      exchanged ^= line / 2 % 4;
    } else if constexpr (sizeof(Storage) == 2) {
      exchanged ^= line % 8;
    } else {
      exchanged ^= line % 4 * 2;
    }
    return (line * pieces + exchanged) * 16;
  }

  // lane_at is where a lane reads 16 places, from `first` on. read gives those that lie `behind`
  // them, along the 32 bytes of depth with number `step`. The instruction takes 16 places of the
  // left operand, and of the right one twice 8, with two words each.
  template <bool is_right>
  static __device__ __forceinline__ uint32_t lane_at(int first, int lane) {
    const int one = lane / 8 % 2, other = lane / 16, place = is_right ? other : one, along = is_right ? one : other;
    if constexpr (!across) {
      return at(first + 8 * place + lane % 8, along);
    } else if constexpr (sizeof(Storage) == 2) {
      return at(8 * along + lane % 8, first / 8 + place);
    } else {
      return at(lane % 4, first / 4 + lane / 16) + lane / 4 % 4 * 4;
    }
  }
  template <bool is_right>
  static __device__ __forceinline__ void read(uint32_t (&x)[4], uint32_t at, int behind, int step) {
    if constexpr (!across) {
      load_matrices<false>(x, (at ^ 32 * step) + 64 * behind);
    } else if constexpr (sizeof(Storage) == 2) {
      load_matrices<true>(x, (at ^ 2 * behind) + bytes / 2 * step);
    } else {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int place = is_right ? i / 2 : i % 2, along = is_right ? i % 2 : i / 2;
        x[i] = load_word((at ^ (4 * behind | 32 * place)) + bytes / 2 * step + bytes / 4 * along);
      }
    }
    if constexpr (sizeof(Storage) == 4) {
#pragma unroll
      for (int i = 0; i < 4; i++) x[i] = to_tf32(x[i]);
    }
  }
};

}  // namespace epigrad::sm80
