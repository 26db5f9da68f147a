// Packing of a product's operands into panels, in each of the forms that an engine has.
#pragma once

#include "walk.h"

// Panels, and how they lie:
//
//   right: depth x panel_registers
//   left:  depth x panel_height
//
// A left panel has panel_height rows, or as many more as a register has: then its second half lies
// behind its first.
enum { f_left = f_lanes > panel_height ? f_lanes : panel_height, d_left = d_lanes > panel_height ? d_lanes : panel_height };
_Static_assert((f_left == panel_height || f_left == 2 * panel_height) && d_left == panel_height,
               "packing writes registers, or halves of one, to the left operand's panels");

// axis_offset returns the bytes from an axis's start to an index.
INLINE int64_t axis_offset(const epg_axis *a, int64_t index) {
  if (a->rank == 1) return index * a->strides[0];
  int64_t bytes = 0;
  for (int64_t d = a->rank - 1; d >= 0; d--) {
    bytes += index % a->sizes[d] * a->strides[d];
    index /= a->sizes[d];
  }
  return bytes;
}

// panel_units are the words of a panel, of all pairs that are packed together.
INLINE int64_t panel_units(const epg_operand *p, int64_t per_unit) { return p->before + (p->depth + per_unit - 1) / per_unit + p->after; }

// least_of_parts is what packing keeps of a panel (epg_engine.pack): the less of what it found
// and, if other parts count too, of what it kept before.
INLINE int16_t least_of_parts(int64_t too, int16_t before, int16_t found) { return too && before < found ? before : found; }

// As many panels are packed side by side at most, each of as many rows.
enum { side_by_side = 4, most_width = panel_registers * f_lanes };

// A form has, for pack_panels.h,
//
//   registers           of what is packed: f or d
//   unit, bytes         the elements of the depth that one word of a panel has, and their bytes
//   load, load_lines    read a register of words: where they lie, or from `unit` lines, each at one
//                       element of the depth
//   found, find, tell   what is found out about a panel's numbers on the way, and what of it is kept
//                       (epg_engine.pack): of most forms whether numbers are denormal, of float16
//                       nothing. Its bytes are `nothing` at first.
#define CONVERTED_FORM(form, r)                                                \
  enum { form##_unit = 1, form##_nothing = 0 };                                \
  INLINE r##_v form##_load(const char *from) { return r##_load_##form(from); } \
  INLINE r##_v form##_load_lines(const char *const *lines) { return form##_load(lines[0]); }
#define FORM_WITH_DENORMALS(form, r)                                                            \
  CONVERTED_FORM(form, r)                                                                       \
  typedef r##_m form##_found;                                                                   \
  INLINE r##_m form##_find(r##_m found, r##_v x) { return r##_either(found, r##_denormal(x)); } \
  INLINE int16_t form##_tell(r##_m found) { return !r##_any(found); }
FORM_WITH_DENORMALS(f32, f)
FORM_WITH_DENORMALS(f64, d)
FORM_WITH_DENORMALS(bf16, f)
CONVERTED_FORM(f16, f)
typedef char f16_found;
INLINE char f16_find(char found, f_v x) { return found; }
INLINE int16_t f16_tell(char found) { return 1; }

#define f32_registers f
#define FORM f32
#include "pack_panels.h"
#define f64_registers d
#define FORM f64
#include "pack_panels.h"
#define bf16_registers f
#define FORM bf16
#include "pack_panels.h"
#define f16_registers f
#define FORM f16
#include "pack_panels.h"

#if defined(PAIRS) || defined(AMX)
// Magnitudes less 1, so that zero becomes the largest.
INLINE __m512i least_magnitudes(__m512i least, f_v pairs) {
  const __m512i magnitudes = _mm512_and_si512(_mm512_castps_si512(pairs), _mm512_set1_epi16(0x7fff));
  return _mm512_min_epu16(least, _mm512_sub_epi16(magnitudes, _mm512_set1_epi16(1)));
}

INLINE int16_t exponent_of_smallest(__m512i less_1) {
  uint16_t lanes[32], least = UINT16_MAX;
  memcpy(lanes, &less_1, sizeof lanes);
  for (int i = 0; i < 32; i++) least = lanes[i] < least ? lanes[i] : least;
  return (int16_t)((least + 1) >> 7);
}
#endif

#ifdef PAIRS
enum { pairs_unit = 2, pairs_bytes = 2, pairs_nothing = -1 };
typedef __m512i pairs_found;
INLINE f_v pairs_load(const char *from) { return f_load_f32(from); }
INLINE f_v pairs_load_lines(const char *const *lines) { return f_load_two_rows(lines[0], lines[1]); }
INLINE __m512i pairs_find(__m512i found, f_v x) { return least_magnitudes(found, x); }
INLINE int16_t pairs_tell(__m512i found) { return exponent_of_smallest(found); }
#define pairs_registers f
#define FORM pairs
#include "pack_panels.h"
#endif

#ifdef AMX
#include "pack_amx.h"
#endif

TARGET static void pack(const epg_operand *p, int64_t panel, int64_t count, const char *from, char *to, int16_t *smallest) {
  static void (*const forms[EPG_FORMS])(const epg_operand *, int64_t panel, int64_t count, const char *from, char *to, int16_t *smallest) = {
      [EPG_FLOAT32] = pack_f32,
      [EPG_FLOAT64] = pack_f64,
      [EPG_BFLOAT16] = pack_bf16,
      [EPG_FLOAT16] = pack_f16,
#ifdef PAIRS
      [EPG_BFLOAT16_PAIRS] = pack_pairs,
#endif
#ifdef AMX
      [EPG_BFLOAT16_TILES] = pack_bf16_tiles,
      [EPG_FLOAT16_TILES] = pack_f16_tiles,
#endif
  };
  forms[p->form](p, panel, count, from, to, smallest);
}
