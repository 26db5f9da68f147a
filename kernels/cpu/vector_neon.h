// Registers of NEON: f_ is four floats, d_ two doubles. The names are those of vector_avx512.h,
// which says what they do. engine_neon_arm64.c includes it.
#pragma once

#include <arm_neon.h>

#include "vector.h"

#define TARGET  // every arm64 has it

enum { f_lanes = 4, d_lanes = 2 };
// 24 sums, six registers of the right operand, two of the left. These are AVX2's panels, in
// registers of half its width, so sums have the same bits.
enum { panel_height = 4, panel_registers = 6 };
#define FOR_EACH_HEIGHT(macro, registers, name, target) macro(1, registers, name, target) macro(2, registers, name, target) macro(4, registers, name, target)
#define FOR_EACH_PANEL(macro, name, target) \
  FOR_EACH_HEIGHT(macro, 1, name, target)   \
  FOR_EACH_HEIGHT(macro, 2, name, target)   \
  FOR_EACH_HEIGHT(macro, 3, name, target)   \
  FOR_EACH_HEIGHT(macro, 4, name, target) FOR_EACH_HEIGHT(macro, 5, name, target) FOR_EACH_HEIGHT(macro, 6, name, target)

typedef float32x4_t f_v;
typedef uint32x4_t f_m;
typedef float64x2_t d_v;
typedef uint64x2_t d_m;

INLINE f_v f_set(float x) { return vdupq_n_f32(x); }
INLINE d_v d_set(double x) { return vdupq_n_f64(x); }

INLINE f_v f_fma(f_v a, f_v b, f_v c) { return vfmaq_f32(c, a, b); }
INLINE d_v d_fma(d_v a, d_v b, d_v c) { return vfmaq_f64(c, a, b); }

INLINE f_m f_less(f_v a, f_v b) { return vcltq_f32(a, b); }
INLINE d_m d_less(d_v a, d_v b) { return vcltq_f64(a, b); }
INLINE f_m f_at_most(f_v a, f_v b) { return vcleq_f32(a, b); }
INLINE d_m d_at_most(d_v a, d_v b) { return vcleq_f64(a, b); }

INLINE d_m d_within(d_v x, double limit) { return ~d_less(d_set(limit), x); }

INLINE f_v f_select(f_m mask, f_v yes, f_v no) { return vbslq_f32(mask, yes, no); }
INLINE d_v d_select(d_m mask, d_v yes, d_v no) { return vbslq_f64(mask, yes, no); }

// NEON's own minimum is NaN where either is.
INLINE f_v f_min(f_v a, f_v b) { return f_select(f_less(a, b), a, b); }
INLINE d_v d_min(d_v a, d_v b) { return d_select(d_less(a, b), a, b); }

INLINE f_v f_abs(f_v x) { return vabsq_f32(x); }
INLINE d_v d_abs(d_v x) { return vabsq_f64(x); }

INLINE f_v f_with_sign(f_v magnitude, f_v sign) { return f_select(vdupq_n_u32(1u << 31), sign, magnitude); }
INLINE d_v d_with_sign(d_v magnitude, d_v sign) { return d_select(vdupq_n_u64(1ull << 63), sign, magnitude); }

INLINE f_m f_denormal(f_v x) { return f_less(f_set(0), f_abs(x)) & f_less(f_abs(x), f_set(0x1p-126f)); }
INLINE d_m d_denormal(d_v x) { return d_less(d_set(0), d_abs(x)) & d_less(d_abs(x), d_set(0x1p-1022)); }
INLINE f_m f_either(f_m a, f_m b) { return a | b; }
INLINE d_m d_either(d_m a, d_m b) { return a | b; }
INLINE f_m f_both(f_m a, f_m b) { return a & b; }
INLINE int f_any(f_m mask) { return vmaxvq_u32(mask) != 0; }
INLINE int d_any(d_m mask) { return vmaxvq_u32(vreinterpretq_u32_u64(mask)) != 0; }

INLINE f_v f_lookup(const float *table, f_v place) {
  const uint8x16x4_t bytes = {{vld1q_u8((const uint8_t *)table), vld1q_u8((const uint8_t *)(table + 4)), vld1q_u8((const uint8_t *)(table + 8)),
                               vld1q_u8((const uint8_t *)(table + 12))}};
  const uint32x4_t first = vandq_u32(vreinterpretq_u32_f32(place), vdupq_n_u32(15));
  return vreinterpretq_f32_u8(vqtbl4q_u8(bytes, vreinterpretq_u8_u32(vmlaq_n_u32(vdupq_n_u32(0x03020100), first, 0x04040404))));
}

INLINE f_v f_round(f_v x) { return vrndnq_f32(x); }
INLINE d_v d_round(d_v x) { return vrndnq_f64(x); }

// Where a mask is set, else zero.
INLINE d_v d_where(d_m mask, d_v x) { return vreinterpretq_f64_u64(mask & vreinterpretq_u64_f64(x)); }

// 2^k for the exponents of normal numbers.
INLINE f_v f_power_of_two(f_v k) { return vreinterpretq_f32_s32(vshlq_n_s32(vcvtq_s32_f32(k) + vdupq_n_s32(127), 23)); }
INLINE d_v d_power_of_two(d_v k) { return vreinterpretq_f64_s64(vshlq_n_s64(vcvtq_s64_f64(k) + vdupq_n_s64(1023), 52)); }
// In two steps, of which the first is exact.
INLINE f_v f_scale(f_v x, f_v k) {
  const f_v half = f_round(k * f_set(0.5f));
  return x * f_power_of_two(half) * f_power_of_two(k - half);
}
INLINE d_v d_scale(d_v x, d_v k) {
  const d_v half = d_round(k * d_set(0.5));
  return x * d_power_of_two(half) * d_power_of_two(k - half);
}
INLINE d_v d_scale_where(d_m mask, d_v x, d_v k) { return d_where(mask, d_scale(x, k)); }
// No number has room for a power below 2^-126: of zero, it is all the same which.
INLINE d_v d_scale_normal(d_v x, d_v k) { return x * d_power_of_two(k); }

INLINE d_v d_low(f_v x) { return vcvt_f64_f32(vget_low_f32(x)); }
INLINE d_v d_high(f_v x) { return vcvt_high_f64_f32(x); }
INLINE f_v f_rounded(d_v low, d_v high) { return vcvt_high_f32_f64(vcvt_f32_f64(low), high); }

INLINE f_v f_load_f32(const void *p) { return vld1q_f32(p); }
INLINE f_v f_load_f16(const void *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
INLINE f_v f_load_bf16(const void *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
INLINE void f_store_f32(void *p, f_v x) { vst1q_f32(p, x); }
INLINE void f_store_f16(void *p, f_v x) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x))); }
INLINE void f_store_bf16(void *p, f_v x) {
  const uint32x4_t bits = vreinterpretq_u32_f32(x), odd = vshrq_n_u32(bits, 16) & vdupq_n_u32(1);
  const uint32x4_t rounded = bits + odd + vdupq_n_u32(0x7fff), quiet = bits | vdupq_n_u32(0x400000);
  vst1_u16(p, vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet), 16));
}
INLINE d_v d_load_f32(const void *p) { return vcvt_f64_f32(vld1_f32(p)); }
INLINE d_v d_load_f64(const void *p) { return vld1q_f64(p); }
INLINE void d_store_f32(void *p, d_v x) { vst1_f32(p, vcvt_f32_f64(x)); }
INLINE void d_store_f64(void *p, d_v x) { vst1q_f64(p, x); }

// A register has panel_height rows at most.
INLINE void f_store_left(float *first, float *second, f_v x) { f_store_f32(first, x); }
INLINE void d_store_left(double *first, double *second, d_v x) { d_store_f64(first, x); }

INLINE void f_transpose(f_v *r) {
  const float32x4x2_t top = vtrnq_f32(r[0], r[1]), bottom = vtrnq_f32(r[2], r[3]);
  UNROLL for (int i = 0; i < 2; i++) {
    r[i] = vcombine_f32(vget_low_f32(top.val[i]), vget_low_f32(bottom.val[i]));
    r[i + 2] = vcombine_f32(vget_high_f32(top.val[i]), vget_high_f32(bottom.val[i]));
  }
}
INLINE void d_transpose(d_v *r) {
  const d_v first = vtrn1q_f64(r[0], r[1]);
  r[1] = vtrn2q_f64(r[0], r[1]);
  r[0] = first;
}

enum { VECTOR_BYTES = 16 };
