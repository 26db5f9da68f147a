// What the kernels need of Hopper (sm_90a) alone: single instructions by name. Barriers in shared
// memory, copies of boxes of a tensor by the copy engine (TMA), products of a group of four warps
// (wgmma), and 8 x 8 matrices and words between registers and shared memory.
//
// Addresses of shared memory are 32-bit numbers, as the instructions want them.
#pragma once

#include "storage.cuh"

namespace epigrad::sm90 {

#define EPG_INLINE __device__ __forceinline__

// TensorMap is a CUtensorMap, which the host encodes: it lies in the kernel's parameters.
struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

EPG_INLINE uint32_t shared_address(const void *p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// A barrier's phase ends when as many threads have arrived as it was made for, and all bytes that
// they announced are there. has_ended tells whether the phase of a parity has, and wait returns
// once it has.
EPG_INLINE void barrier_make(uint32_t barrier, uint32_t arrivals) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)); }
EPG_INLINE void barrier_arrive(uint32_t barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }
EPG_INLINE void barrier_announce(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
EPG_INLINE bool barrier_has_ended(uint32_t barrier, uint32_t parity) {
  uint32_t ended;
  asm volatile(
      "{ .reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p; }"
      : "=r"(ended)
      : "r"(barrier), "r"(parity)
      : "memory");
  return ended;
}
EPG_INLINE void barrier_wait(uint32_t barrier, uint32_t parity) {
  uint32_t ended;
  do {
    asm volatile(
        "{ .reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p; }"
        : "=r"(ended)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (!ended);
}
// Barriers that were made can be used by the copy engine.
EPG_INLINE void barriers_are_made() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Named barriers of a block: `threads` threads meet at one. leave does not wait.
EPG_INLINE void meet(int number, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory"); }
EPG_INLINE void leave(int number, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory"); }

// Copies of a box of one group's matrix, whose first element is at (row, column), of a map whose
// last coordinate is the group. Elements beyond the matrix are read as zeros, and not written.
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
EPG_INLINE void prefetch_map(const TensorMap *map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

// Stores belong to the group that the next end_stores ends. stores_have_read waits until all groups
// of this thread but the last n have read their memory, stores_are_done until they have written.
EPG_INLINE void end_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int n>
EPG_INLINE void stores_have_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(n) : "memory");
}
EPG_INLINE void stores_are_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
// What this thread has written to shared memory, or knows to be there, can be read by the copy
// engine and by products.
EPG_INLINE void show_to_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// copy_piece copies 16 bytes to shared memory, or writes zeros there in place of those from `bytes`
// on. pieces_arrive is one of the arrivals that a barrier was made for. It comes once the pieces
// that this thread has begun before are there.
EPG_INLINE void copy_piece(uint32_t to, const void *from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
EPG_INLINE void pieces_arrive(uint32_t barrier) { asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory"); }

// Four 8 x 8 matrices of 16-bit elements. Lane l gives the address of row l % 8 of matrix l / 8,
// and has elements 2 (l % 4) and the next one of row l / 4 of each.
EPG_INLINE void store_matrices(uint32_t row, const uint32_t (&pairs)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
               : "memory");
}
EPG_INLINE void load_matrices(uint32_t row, uint32_t (&pairs)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
               : "r"(row)
               : "memory");
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

// Products run beside their threads, in groups. begin_products comes between the last access to the
// sums and the next product; products_are_done<n> waits for all groups but the last n.
EPG_INLINE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
EPG_INLINE void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int n>
EPG_INLINE void products_are_done() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory");
}

// operand describes a tile in shared memory, as load_box writes it with a swizzle of 128 bytes.
//
//   across false  rows of 64 elements of the depth, 128 bytes each
//   across true   blocks of 64 rows (of the operand) by 64 of the depth, 8192 bytes each: a line of
//                 128 bytes has the 64 elements of one step of the depth
//
// Of a description only the lower half depends on the address; operand gives that, and multiply
// adds the other one.
template <bool across>
EPG_INLINE uint32_t operand(uint32_t address) {
  constexpr uint32_t next_block = (across ? 8192 : 16) >> 4;
  return (address & 0x3ffff) >> 4 | next_block << 16;
}
constexpr uint32_t next_eight = 1024 >> 4, swizzle_128 = 1, upper_half = next_eight | swizzle_128 << 30;
EPG_INLINE uint64_t described(uint32_t lower_half) { return static_cast<uint64_t>(upper_half) << 32 | lower_half; }

template <class Storage>
constexpr bool is_bf16 = false;
template <>
constexpr bool is_bf16<bf16> = true;

#define EPG_SUMS_8(i) "+f"(s[i]), "+f"(s[i + 1]), "+f"(s[i + 2]), "+f"(s[i + 3]), "+f"(s[i + 4]), "+f"(s[i + 5]), "+f"(s[i + 6]), "+f"(s[i + 7])
#define EPG_FIRST_8 EPG_SUMS_8(0)
#define EPG_FIRST_16 EPG_FIRST_8, EPG_SUMS_8(8)
#define EPG_FIRST_24 EPG_FIRST_16, EPG_SUMS_8(16)
#define EPG_FIRST_32 EPG_FIRST_24, EPG_SUMS_8(24)
#define EPG_FIRST_40 EPG_FIRST_32, EPG_SUMS_8(32)
#define EPG_FIRST_48 EPG_FIRST_40, EPG_SUMS_8(40)
#define EPG_FIRST_56 EPG_FIRST_48, EPG_SUMS_8(48)
#define EPG_FIRST_64 EPG_FIRST_56, EPG_SUMS_8(56)
#define EPG_FIRST_72 EPG_FIRST_64, EPG_SUMS_8(64)
#define EPG_FIRST_80 EPG_FIRST_72, EPG_SUMS_8(72)
#define EPG_FIRST_88 EPG_FIRST_80, EPG_SUMS_8(80)
#define EPG_FIRST_96 EPG_FIRST_88, EPG_SUMS_8(88)
#define EPG_TWO(t) "%" t "0,%" t "1"
#define EPG_FOUR(t) EPG_TWO(t) ",%" t "2,%" t "3"
#define EPG_SIX(t) EPG_FOUR(t) ",%" t "4,%" t "5"
#define EPG_EIGHT(t) EPG_SIX(t) ",%" t "6,%" t "7"
#define EPG_TEN(t) EPG_EIGHT(t) ",%" t "8,%" t "9"
#define EPG_NAMED_8 EPG_EIGHT("")
#define EPG_NAMED_16 EPG_TEN("") "," EPG_SIX("1")
#define EPG_NAMED_24 EPG_TENS_2 "," EPG_FOUR("2")
#define EPG_NAMED_32 EPG_TENS_3 "," EPG_TWO("3")
#define EPG_NAMED_40 EPG_TENS_3 "," EPG_TEN("3")
#define EPG_NAMED_48 EPG_TENS_4 "," EPG_EIGHT("4")
#define EPG_NAMED_56 EPG_TENS_5 "," EPG_SIX("5")
#define EPG_NAMED_64 EPG_TENS_6 "," EPG_FOUR("6")
#define EPG_NAMED_72 EPG_TENS_7 "," EPG_TWO("7")
#define EPG_NAMED_80 EPG_TENS_7 "," EPG_TEN("7")
#define EPG_NAMED_88 EPG_TENS_8 "," EPG_EIGHT("8")
#define EPG_NAMED_96 EPG_TENS_9 "," EPG_SIX("9")
#define EPG_TENS_2 EPG_TEN("") "," EPG_TEN("1")
#define EPG_TENS_3 EPG_TENS_2 "," EPG_TEN("2")
#define EPG_TENS_4 EPG_TENS_3 "," EPG_TEN("3")
#define EPG_TENS_5 EPG_TENS_4 "," EPG_TEN("4")
#define EPG_TENS_6 EPG_TENS_5 "," EPG_TEN("5")
#define EPG_TENS_7 EPG_TENS_6 "," EPG_TEN("6")
#define EPG_TENS_8 EPG_TENS_7 "," EPG_TEN("7")
#define EPG_TENS_9 EPG_TENS_8 "," EPG_TEN("8")
#define EPG_MULTIPLY(columns, type, registers, left_at, right_at, add_at, across_left_at, across_right_at)      \
  asm volatile("{ .reg .pred add;\nsetp.ne.b32 add, %" add_at                                                   \
               ", 0;\n"                                                                                         \
               "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type " {" EPG_NAMED_##registers \
               "}, %" left_at ", %" right_at ", add, 1, 1, %" across_left_at ", %" across_right_at ";\n}"       \
               : EPG_FIRST_##registers                                                                          \
               : "l"(left), "l"(right), "r"(add), "n"(across_left), "n"(across_right))
#define EPG_MULTIPLY_WIDTH(columns, registers, ...)                                                          \
  if constexpr (width == columns && is_bf16<Storage>) EPG_MULTIPLY(columns, "bf16", registers, __VA_ARGS__); \
  if constexpr (width == columns && !is_bf16<Storage>) EPG_MULTIPLY(columns, "f16", registers, __VA_ARGS__)

// multiply is sums (+)= left rightᵀ of 64 rows, the first `width` columns and 16 of the depth;
// either operand may lie across. The lane of sum 4 i + j has column 8 i + 2 (lane % 4) + j % 2 of
// row 16 warp + lane / 4 + 8 (j / 2).
template <class Storage, int width, bool across_left, bool across_right, int room>
EPG_INLINE void multiply(float (&s)[room], uint32_t lower_left, uint32_t lower_right, int add) {
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

// Registers move between groups of four warps.
template <int registers>
EPG_INLINE void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
EPG_INLINE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

}  // namespace epigrad::sm90
