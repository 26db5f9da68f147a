// How products avoid denormal numbers: packed operands are lifted, which is to multiply them by a
// power of two, and sums are divided by it. gemm.h includes it.
//
// Intel's processors are slow with denormal numbers, and instructions for bfloat16 take numbers
// below 2^-126 for zeros. The powers are too small to make a number infinite. So sums have the same
// bits with and without lifting, unless a sum without it would be rounded where it is denormal.
#pragma once

#include "arithmetic.h"
#include "cpu.h"

// largest_float32 and its like return the exponent of the largest magnitude. They compare numbers
// as integers without their signs; the exponent stands above `digits` bits.
#define LARGEST(form, T, digits)                                          \
  TARGET static int64_t largest_##form(const char *from, int64_t bytes) { \
    T most = 0;                                                           \
    for (int64_t i = 0; i < bytes; i += sizeof most) {                    \
      T x;                                                                \
      memcpy(&x, from + i, sizeof x);                                     \
      x &= (T) ~(T)0 >> 1;                                                \
      most = x > most ? x : most;                                         \
    }                                                                     \
    return most >> digits;                                                \
  }
LARGEST(float32, uint32_t, 23)
LARGEST(float64, uint64_t, 52)
LARGEST(bfloat16, uint16_t, 7)

// A register of floats is scaled as doubles if one of its numbers is denormal or becomes so:
// Intel's processors are slow to scale such floats. Other processors lift pairs, and scale them the
// same way.
typedef struct {
  f_v k, least;
} float_lift;
INLINE float_lift float_lift_by(int64_t powers) { return (float_lift){f_set(powers), f_scale(f_set(0x1p-126f), f_set(powers < 0 ? -powers : 0))}; }
INLINE f_v lift_floats(float_lift by, f_v x) {
  if (f_any(f_both(f_less(f_set(0), f_abs(x)), f_less(f_abs(x), by.least)))) return f_scale_product(f_set(1), x, by.k);
  return f_scale(x, by.k);
}
TARGET static void lift_f(char *at, int64_t bytes, int64_t powers) {
  const float_lift by = float_lift_by(powers);
  for (int64_t i = 0; i < bytes; i += VECTOR_BYTES) f_store_f32(at + i, lift_floats(by, f_load_f32(at + i)));
}
TARGET static void lift_d(char *at, int64_t bytes, int64_t powers) {
  const d_v k = d_set(powers);
  for (int64_t i = 0; i < bytes; i += VECTOR_BYTES) d_store_f64(at + i, d_scale(d_load_f64(at + i), k));
}

#if defined(PAIRS) || defined(AMX)
// Nothing is rounded: a bfloat16 stays one, and what was denormal becomes normal.
TARGET static void lift_pairs(char *at, int64_t bytes, int64_t powers) {
  const float_lift by = float_lift_by(powers);
  for (int64_t i = 0; i < bytes; i += VECTOR_BYTES) {
    const f_v words = f_load_f32(at + i), low = lift_floats(by, f_low_half(words)), high = lift_floats(by, f_high_half(words));
    const __m512i both = _mm512_or_si512(_mm512_castps_si512(high), _mm512_srli_epi32(_mm512_castps_si512(low), 16));
    f_store_f32(at + i, _mm512_castsi512_ps(both));
  }
}
#endif

static int is_of_pairs(int64_t form) { return form == EPG_BFLOAT16_PAIRS || form == EPG_BFLOAT16_TILES; }

TARGET static int64_t largest(int64_t form, const char *from, int64_t bytes) {
  if (is_of_pairs(form)) return largest_bfloat16(from, bytes);
  return form == EPG_FLOAT64 ? largest_float64(from, bytes) : largest_float32(from, bytes);
}

TARGET static void lift(int64_t form, char *at, int64_t bytes, int64_t powers) {
#if defined(PAIRS) || defined(AMX)
  if (is_of_pairs(form)) {
    lift_pairs(at, bytes, powers);
    return;
  }
#endif
  if (form == EPG_FLOAT64)
    lift_d(at, bytes, powers);
  else
    lift_f(at, bytes, powers);
}
