// Registers of AVX2 with FMA: f_ is eight floats, d_ four doubles. The names are those of
// vector_avx512.h, which says what they do. engine_avx2_amd64.c includes it.
#pragma once

#include <immintrin.h>

#include "vector.h"

#define TARGET __attribute__((target("avx2,fma,f16c")))

enum { f_lanes = 8, d_lanes = 4 };
// Twelve sums.
enum { panel_height = 4, panel_registers = 3 };
#define FOR_EACH_HEIGHT(macro, registers, name, target) macro(1, registers, name, target) macro(2, registers, name, target) macro(4, registers, name, target)
#define FOR_EACH_PANEL(macro, name, target) \
  FOR_EACH_HEIGHT(macro, 1, name, target) FOR_EACH_HEIGHT(macro, 2, name, target) FOR_EACH_HEIGHT(macro, 3, name, target)

typedef __m256 f_v;
typedef __m256 f_m;
typedef __m256d d_v;
typedef __m256d d_m;

INLINE f_v f_set(float x) { return _mm256_set1_ps(x); }
INLINE d_v d_set(double x) { return _mm256_set1_pd(x); }

INLINE f_v f_fma(f_v a, f_v b, f_v c) { return _mm256_fmadd_ps(a, b, c); }
INLINE d_v d_fma(d_v a, d_v b, d_v c) { return _mm256_fmadd_pd(a, b, c); }

INLINE f_v f_min(f_v a, f_v b) { return _mm256_min_ps(a, b); }
INLINE d_v d_min(d_v a, d_v b) { return _mm256_min_pd(a, b); }

INLINE f_v f_abs(f_v x) { return _mm256_andnot_ps(f_set(-0.0f), x); }
INLINE d_v d_abs(d_v x) { return _mm256_andnot_pd(d_set(-0.0), x); }

INLINE f_v f_with_sign(f_v magnitude, f_v sign) { return _mm256_or_ps(f_abs(magnitude), _mm256_and_ps(f_set(-0.0f), sign)); }
INLINE d_v d_with_sign(d_v magnitude, d_v sign) { return _mm256_or_pd(d_abs(magnitude), _mm256_and_pd(d_set(-0.0), sign)); }

INLINE f_m f_less(f_v a, f_v b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
INLINE d_m d_less(d_v a, d_v b) { return _mm256_cmp_pd(a, b, _CMP_LT_OQ); }
INLINE f_m f_at_most(f_v a, f_v b) { return _mm256_cmp_ps(a, b, _CMP_LE_OQ); }
INLINE d_m d_at_most(d_v a, d_v b) { return _mm256_cmp_pd(a, b, _CMP_LE_OQ); }

INLINE d_m d_within(d_v x, double limit) { return _mm256_cmp_pd(x, d_set(limit), _CMP_NGT_UQ); }

INLINE f_v f_select(f_m mask, f_v yes, f_v no) { return _mm256_blendv_ps(no, yes, mask); }
INLINE d_v d_select(d_m mask, d_v yes, d_v no) { return _mm256_blendv_pd(no, yes, mask); }

INLINE f_m f_denormal(f_v x) { return _mm256_and_ps(f_less(f_set(0), f_abs(x)), f_less(f_abs(x), f_set(0x1p-126f))); }
INLINE d_m d_denormal(d_v x) { return _mm256_and_pd(d_less(d_set(0), d_abs(x)), d_less(d_abs(x), d_set(0x1p-1022))); }
INLINE f_m f_either(f_m a, f_m b) { return _mm256_or_ps(a, b); }
INLINE d_m d_either(d_m a, d_m b) { return _mm256_or_pd(a, b); }
INLINE f_m f_both(f_m a, f_m b) { return _mm256_and_ps(a, b); }
INLINE int f_any(f_m mask) { return _mm256_movemask_ps(mask) != 0; }
INLINE int d_any(d_m mask) { return _mm256_movemask_pd(mask) != 0; }

// The fourth bit, as a sign, chooses between eight and eight.
INLINE f_v f_lookup(const float *table, f_v place) {
  const __m256i bits = _mm256_castps_si256(place);
  const f_v low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), bits), high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + f_lanes), bits);
  return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(bits, 28)));
}

INLINE f_v f_round(f_v x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE d_v d_round(d_v x) { return _mm256_round_pd(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

// 2^k for the exponents of normal numbers: adding 1.5 2^23 (1.5 2^52) leaves k in the lowest bits.
INLINE f_v f_power_of_two(f_v k) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_castps_si256(k + f_set(0x1.8p23f)), _mm256_set1_epi32(127)), 23));
}
INLINE d_v d_power_of_two(d_v k) {
  return _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_add_epi64(_mm256_castpd_si256(k + d_set(0x1.8p52)), _mm256_set1_epi64x(1023)), 52));
}
// In two steps, of which the first is exact.
INLINE f_v f_scale(f_v x, f_v k) {
  f_v half = f_round(k * f_set(0.5f));
  return x * f_power_of_two(half) * f_power_of_two(k - half);
}
INLINE d_v d_scale(d_v x, d_v k) {
  d_v half = d_round(k * d_set(0.5));
  return x * d_power_of_two(half) * d_power_of_two(k - half);
}
INLINE d_v d_scale_where(d_m mask, d_v x, d_v k) { return _mm256_and_pd(mask, d_scale(x, k)); }
INLINE d_v d_scale_normal(d_v x, d_v k) { return x * d_power_of_two(k); }

INLINE d_v d_low(f_v x) { return _mm256_cvtps_pd(_mm256_castps256_ps128(x)); }
INLINE d_v d_high(f_v x) { return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)); }
INLINE f_v f_rounded(d_v low, d_v high) { return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(low)), _mm256_cvtpd_ps(high), 1); }

INLINE f_v f_load_f32(const void *p) { return _mm256_loadu_ps(p); }
INLINE f_v f_load_f16(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128(p)); }
INLINE f_v f_load_bf16(const void *p) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16)); }
INLINE void f_store_f32(void *p, f_v x) { _mm256_storeu_ps(p, x); }
INLINE void f_store_f16(void *p, f_v x) { _mm_storeu_si128(p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)); }
INLINE void f_store_bf16(void *p, f_v x) {
  __m256i bits = _mm256_castps_si256(x);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  __m256 quiet = _mm256_or_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x400000)));
  __m256 either = _mm256_blendv_ps(_mm256_castsi256_ps(rounded), quiet, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  __m256i high = _mm256_srli_epi32(_mm256_castps_si256(either), 16);
  _mm_storeu_si128(p, _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1)));
}
INLINE d_v d_load_f32(const void *p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }
INLINE d_v d_load_f64(const void *p) { return _mm256_loadu_pd(p); }
INLINE void d_store_f32(void *p, d_v x) { _mm_storeu_ps(p, _mm256_cvtpd_ps(x)); }
INLINE void d_store_f64(void *p, d_v x) { _mm256_storeu_pd(p, x); }

INLINE void f_store_left(float *first, float *second, f_v x) {
  _mm_storeu_ps(first, _mm256_castps256_ps128(x));
  _mm_storeu_ps(second, _mm256_extractf128_ps(x, 1));
}
INLINE void d_store_left(double *first, double *second, d_v x) { _mm256_storeu_pd(first, x); }

INLINE void f_transpose(f_v *r) {
  __m256 t[8];
  UNROLL for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  UNROLL for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  UNROLL for (int i = 0; i < 4; i++) {
    __m256 low = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20), high = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
    r[i] = low;
    r[i + 4] = high;
  }
}
INLINE void d_transpose(d_v *r) {
  __m256d a = _mm256_unpacklo_pd(r[0], r[1]), b = _mm256_unpackhi_pd(r[0], r[1]);
  __m256d c = _mm256_unpacklo_pd(r[2], r[3]), d = _mm256_unpackhi_pd(r[2], r[3]);
  r[0] = _mm256_permute2f128_pd(a, c, 0x20);
  r[1] = _mm256_permute2f128_pd(b, d, 0x20);
  r[2] = _mm256_permute2f128_pd(a, c, 0x31);
  r[3] = _mm256_permute2f128_pd(b, d, 0x31);
}

enum { VECTOR_BYTES = 32 };
