// Registers of AVX-512: f_ is sixteen floats, d_ eight doubles. Every engine but avx2 includes it.
// All other headers are written on top of these names, which vector_avx2.h has too.
#pragma once

#include <immintrin.h>

#include "vector.h"

#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,prfchw")))

enum { f_lanes = 16, d_lanes = 8 };
// A product's kernel has so many rows at most, by so many registers: 24 sums, three registers of
// the right operand, one of the left.
enum { panel_height = 8, panel_registers = 3 };
// The heights that there are kernels for, ascending, and all kernels.
#define FOR_EACH_HEIGHT(macro, registers, name, target) \
  macro(1, registers, name, target) macro(2, registers, name, target) macro(4, registers, name, target) macro(8, registers, name, target)
#define FOR_EACH_PANEL(macro, name, target) \
  FOR_EACH_HEIGHT(macro, 1, name, target) FOR_EACH_HEIGHT(macro, 2, name, target) FOR_EACH_HEIGHT(macro, 3, name, target)

typedef __m512 f_v;
typedef __mmask16 f_m;
typedef __m512d d_v;
typedef __mmask8 d_m;

INLINE f_v f_set(float x) { return _mm512_set1_ps(x); }
INLINE d_v d_set(double x) { return _mm512_set1_pd(x); }

// a b + c, rounded once.
INLINE f_v f_fma(f_v a, f_v b, f_v c) { return _mm512_fmadd_ps(a, b, c); }
INLINE d_v d_fma(d_v a, d_v b, d_v c) { return _mm512_fmadd_pd(a, b, c); }

// The smaller of the two; b where one is NaN.
INLINE f_v f_min(f_v a, f_v b) { return _mm512_min_ps(a, b); }
INLINE d_v d_min(d_v a, d_v b) { return _mm512_min_pd(a, b); }

INLINE f_v f_abs(f_v x) { return _mm512_abs_ps(x); }
INLINE d_v d_abs(d_v x) { return _mm512_abs_pd(x); }

INLINE f_v f_with_sign(f_v magnitude, f_v sign) {
  return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(_mm512_set1_epi32(INT32_MIN), _mm512_castps_si512(sign), _mm512_castps_si512(magnitude), 0xca));
}
INLINE d_v d_with_sign(d_v magnitude, d_v sign) {
  return _mm512_castsi512_pd(_mm512_ternarylogic_epi64(_mm512_set1_epi64(INT64_MIN), _mm512_castpd_si512(sign), _mm512_castpd_si512(magnitude), 0xca));
}

// Comparisons are false where an operand is NaN.
INLINE f_m f_less(f_v a, f_v b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
INLINE d_m d_less(d_v a, d_v b) { return _mm512_cmp_pd_mask(a, b, _CMP_LT_OQ); }
INLINE f_m f_at_most(f_v a, f_v b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
INLINE d_m d_at_most(d_v a, d_v b) { return _mm512_cmp_pd_mask(a, b, _CMP_LE_OQ); }

// Where a number is not above a limit, or is NaN.
INLINE d_m d_within(d_v x, double limit) { return _mm512_cmp_pd_mask(x, d_set(limit), _CMP_NGT_UQ); }

// yes where the mask is set, else no.
INLINE f_v f_select(f_m mask, f_v yes, f_v no) { return _mm512_mask_blend_ps(mask, no, yes); }
INLINE d_v d_select(d_m mask, d_v yes, d_v no) { return _mm512_mask_blend_pd(mask, no, yes); }

// Where a number is denormal; where either mask is set; whether any lane of one is.
INLINE f_m f_denormal(f_v x) { return _mm512_fpclass_ps_mask(x, 0x20); }
INLINE d_m d_denormal(d_v x) { return _mm512_fpclass_pd_mask(x, 0x20); }
INLINE f_m f_either(f_m a, f_m b) { return (f_m)(a | b); }
INLINE d_m d_either(d_m a, d_m b) { return (d_m)(a | b); }
INLINE f_m f_both(f_m a, f_m b) { return (f_m)(a & b); }
INLINE int f_any(f_m mask) { return mask != 0; }
INLINE int d_any(d_m mask) { return mask != 0; }

// Of sixteen numbers the one whose place is in a lane's lowest four bits.
INLINE f_v f_lookup(const float *table, f_v place) { return _mm512_permutexvar_ps(_mm512_castps_si512(place), _mm512_loadu_ps(table)); }

// The nearest integer, halves to even.
INLINE f_v f_round(f_v x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE d_v d_round(d_v x) { return _mm512_roundscale_pd(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

// x 2^k with one rounding, also where that is denormal, for an integer k >= -1200. Intel's
// processors take 140 cycles where it is, or where nothing is left.
INLINE f_v f_scale(f_v x, f_v k) { return _mm512_scalef_ps(x, k); }
INLINE d_v d_scale(d_v x, d_v k) { return _mm512_scalef_pd(x, k); }
// The same, and zero where the mask is not set: there nothing takes long.
INLINE d_v d_scale_where(d_m mask, d_v x, d_v k) { return _mm512_maskz_scalef_pd(mask, x, k); }
// The same for results that are zero or normal numbers.
INLINE d_v d_scale_normal(d_v x, d_v k) { return _mm512_scalef_pd(x, k); }
// 2^k for the exponents of normal numbers; anything for others.
INLINE f_v f_power_of_two(f_v k) { return _mm512_scalef_ps(f_set(1), k); }

// A register of floats is two of doubles.
INLINE d_v d_low(f_v x) { return _mm512_cvtps_pd(_mm512_castps512_ps256(x)); }
INLINE d_v d_high(f_v x) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)); }
INLINE f_v f_rounded(d_v low, d_v high) { return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(low)), _mm512_cvtpd_ps(high), 1); }

// Storage. Stores round to nearest even; NaN stays NaN.
INLINE f_v f_load_f32(const void *p) { return _mm512_loadu_ps(p); }
INLINE f_v f_load_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
// A bfloat16 is the upper half of a lane. A permutation moves number i there, to place
//
//   2 i + 1
//
// and back. The upper half of the numbers' register is zero. If it were undefined, clang would take
// it from a register that the iteration before wrote, and so wait for that.
static const uint16_t to_upper_halves[32] = {0, 0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0, 7, 0, 8, 0, 9, 0, 10, 0, 11, 0, 12, 0, 13, 0, 14, 0, 15};
static const uint16_t from_upper_halves[32] = {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
INLINE f_v f_load_bf16(const void *p) {
  const __m512i numbers = _mm512_zextsi256_si512(_mm256_loadu_si256(p));
  return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, _mm512_loadu_si512(to_upper_halves), numbers));
}
INLINE void f_store_f32(void *p, f_v x) { _mm512_storeu_ps(p, x); }
INLINE void f_store_f16(void *p, f_v x) { _mm256_storeu_si256(p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)); }
// AVX512_BF16 has an instruction for it, which takes denormals for zeros.
INLINE void f_store_bf16(void *p, f_v x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __m512i rounded = _mm512_mask_add_epi32(quiet, _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q), bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  _mm256_storeu_si256(p, _mm512_castsi512_si256(_mm512_permutexvar_epi16(_mm512_loadu_si512(from_upper_halves), rounded)));
}
INLINE d_v d_load_f32(const void *p) { return _mm512_cvtps_pd(_mm256_loadu_ps(p)); }
INLINE d_v d_load_f64(const void *p) { return _mm512_loadu_pd(p); }
INLINE void d_store_f32(void *p, d_v x) { _mm256_storeu_ps(p, _mm512_cvtpd_ps(x)); }
INLINE void d_store_f64(void *p, d_v x) { _mm512_storeu_pd(p, x); }

// One step of as many rows of a product's left operand: of the first panel_height, and of the
// second ones if there are more.
INLINE void f_store_left(float *first, float *second, f_v x) {
  _mm256_storeu_ps(first, _mm512_castps512_ps256(x));
  _mm256_storeu_ps(second, _mm512_extractf32x8_ps(x, 1));
}
INLINE void d_store_left(double *first, double *second, d_v x) { _mm512_storeu_pd(first, x); }

// Two bfloat16 in each lane, from two rows.
INLINE f_v f_load_two_rows(const void *low, const void *high) {
  __m512i a = _mm512_cvtepu16_epi32(_mm256_loadu_si256(low)), b = _mm512_cvtepu16_epi32(_mm256_loadu_si256(high));
  return _mm512_castsi512_ps(_mm512_or_si512(a, _mm512_slli_epi32(b, 16)));
}
// The bfloat16 of each lane's low and high half, as floats.
INLINE f_v f_low_half(f_v pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs), 16)); }
INLINE f_v f_high_half(f_v pairs) { return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pairs), _mm512_set1_epi32((int)0xffff0000))); }

// Transposes a square of registers.
INLINE void f_transpose(f_v *rows) {
  __m512i r[16], t[16];
  UNROLL for (int i = 0; i < 16; i++) r[i] = _mm512_castps_si512(rows[i]);
  UNROLL for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  UNROLL for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  UNROLL for (int i = 0; i < 4; i++) {
    __m512i a = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88), b = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    __m512i c = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88), d = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    rows[i] = _mm512_castsi512_ps(_mm512_shuffle_i32x4(a, c, 0x88));
    rows[i + 4] = _mm512_castsi512_ps(_mm512_shuffle_i32x4(b, d, 0x88));
    rows[i + 8] = _mm512_castsi512_ps(_mm512_shuffle_i32x4(a, c, 0xdd));
    rows[i + 12] = _mm512_castsi512_ps(_mm512_shuffle_i32x4(b, d, 0xdd));
  }
}
INLINE void d_transpose(d_v *r) {
  __m512d t[8];
  UNROLL for (int i = 0; i < 8; i += 2) {
    t[i] = _mm512_unpacklo_pd(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_pd(r[i], r[i + 1]);
  }
  UNROLL for (int i = 0; i < 2; i++) {
    __m512d a = _mm512_shuffle_f64x2(t[i], t[i + 2], 0x88), b = _mm512_shuffle_f64x2(t[i], t[i + 2], 0xdd);
    __m512d c = _mm512_shuffle_f64x2(t[i + 4], t[i + 6], 0x88), d = _mm512_shuffle_f64x2(t[i + 4], t[i + 6], 0xdd);
    r[i] = _mm512_shuffle_f64x2(a, c, 0x88);
    r[i + 2] = _mm512_shuffle_f64x2(b, d, 0x88);
    r[i + 4] = _mm512_shuffle_f64x2(a, c, 0xdd);
    r[i + 6] = _mm512_shuffle_f64x2(b, d, 0xdd);
  }
}

enum { VECTOR_BYTES = 64 };
