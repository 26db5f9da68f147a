// Operations on AMX's tiles: registers of 16 rows of 64 bytes, by number. gemm_amx.h includes it.
// EMULATED_AMX makes plain C of them, so that what is built on them is tested where there is no
// AMX.
#pragma once

#include "cpu.h"

enum { tile_words = 16 };  // in a row, and rows

#ifdef EMULATED_AMX

#define TARGET_AMX TARGET

static _Thread_local struct {
  _Alignas(64) float row[tile_words][tile_words];
} emulated_tiles[8];

#define amx_begin()
#define amx_end()
#define tile_zero(tile) memset(&emulated_tiles[tile], 0, sizeof *emulated_tiles)
#define tile_load(tile, from, stride) \
  for (int64_t row = 0; row < tile_words; row++) memcpy(emulated_tiles[tile].row[row], (const char *)(from) + row * (stride), sizeof emulated_tiles->row[0])
#define tile_load_once tile_load
#define tile_store(tile, to, stride) \
  for (int64_t row = 0; row < tile_words; row++) memcpy((char *)(to) + row * (stride), emulated_tiles[tile].row[row], sizeof emulated_tiles->row[0])

// Numbers below 2^-126 become zeros.
INLINE f_v flushed(f_v x) { return f_select(f_less(f_abs(x), f_set(0x1p-126f)), x * f_set(0), x); }

// tile_multiply adds to sums[m][n] the products of left[m][k] and right[k][n], words of two
// bfloat16 each: even ones and odd ones by themselves, then both, as the instruction does.
TARGET static void tile_multiply(int sums, int left, int right) {
  for (int m = 0; m < tile_words; m++) {
    f_v even = f_set(0), odd = f_set(0);
    for (int k = 0; k < tile_words; k++) {
      const f_v x = f_set(emulated_tiles[left].row[m][k]), y = f_load_f32(emulated_tiles[right].row[k]);
      even = flushed(f_fma(flushed(f_low_half(x)), flushed(f_low_half(y)), even));
      odd = flushed(f_fma(flushed(f_high_half(x)), flushed(f_high_half(y)), odd));
    }
    float *at = emulated_tiles[sums].row[m];
    f_store_f32(at, flushed(flushed(f_load_f32(at)) + flushed(even + odd)));
  }
}

#else

#define TARGET_AMX __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,prfchw,amx-tile,amx-bf16")))

// amx_begin makes all tiles as large as they can be; amx_end leaves nothing that a thread would
// have to keep.
TARGET_AMX static void amx_begin(void) {
  static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  } all = {.palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
  _tile_loadconfig(&all);
}
TARGET_AMX static void amx_end(void) { _tile_release(); }

#define tile_zero(tile) _tile_zero(tile)
#define tile_load(tile, from, stride) _tile_loadd(tile, from, stride)
// What is read once in a while is not kept in the nearest cache.
#define tile_load_once(tile, from, stride) _tile_stream_loadd(tile, from, stride)
#define tile_store(tile, to, stride) _tile_stored(tile, to, stride)
#define tile_multiply(sums, left, right) _tile_dpbf16ps(sums, left, right)

#endif
