// Instructions of Hopper's that products of groups need beside those of sm90.cuh: multiplications
// of any width, and copies of rows that end where a group does.
#pragma once

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
