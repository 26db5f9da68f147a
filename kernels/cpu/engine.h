// The body of every engine: all that is compiled for one instruction set, and the table of its
// functions. Each engine_*.c includes it once, behind the vector_*.h of its instruction set.
// There ENGINE is the engine's name; PAIRS adds the products of AVX512_BF16, and AMX those of AMX.
//
// Nothing here depends on the compiler's flags for a processor: every function has its target as an
// attribute, so one build runs everywhere.
#ifdef __clang__
// gcc contracts nothing under -std=c11; where a product is fused, the source says so.
#pragma STDC FP_CONTRACT OFF
#endif

#include "arithmetic.h"
#include "cpu.h"

#define ARITHMETIC half
#define REGISTERS f
#include "activation.h"

#define DTYPE bf16
#define STORAGE bfloat16
#define SIZE 2
#define ACCUMULATOR float32
#define ACCUMULATOR_SIZE 4
#include "elementwise.h"
#undef DTYPE
#undef STORAGE
#define DTYPE f16
#define STORAGE float16
#include "elementwise.h"
#undef DTYPE
#undef STORAGE
#undef SIZE
#undef ARITHMETIC
#undef REGISTERS

#define ARITHMETIC single
#define REGISTERS d
#include "activation.h"

#define DTYPE f32
#define STORAGE float32
#define SIZE 4
#include "elementwise.h"
#undef DTYPE
#undef STORAGE
#undef SIZE
#undef ACCUMULATOR
#undef ACCUMULATOR_SIZE
#undef ARITHMETIC

#define ARITHMETIC exact
#include "activation.h"

#define DTYPE f64
#define STORAGE float64
#define SIZE 8
#define ACCUMULATOR float64
#define ACCUMULATOR_SIZE 8
#include "elementwise.h"
#undef DTYPE
#undef STORAGE
#undef SIZE
#undef ACCUMULATOR
#undef ACCUMULATOR_SIZE
#undef ARITHMETIC
#undef REGISTERS

#include "gemm.h"
#include "sums.h"
#include "walk.h"

#define KERNELS(dtype) {entries_##dtype, sizeof entries_##dtype / sizeof *entries_##dtype}
#define ENGINE_TABLE JOIN(epg_engine, ENGINE)
#ifdef PAIRS
#define PAIRS_WIDTH(n) (n)
#else
#define PAIRS_WIDTH(n) 0
#endif

enum { f_panel = panel_registers * f_lanes, d_panel = panel_registers * d_lanes };

const epg_engine ENGINE_TABLE = {
    .kernels = {KERNELS(f32), KERNELS(f64), KERNELS(bf16), KERNELS(f16)},
    .elementwise = elementwise,
    .sum = sum,
    .finish_sums = finish_sums,
    .left_width = {f_left, d_left, f_left, f_left, PAIRS_WIDTH(f_left), amx_width, amx_width},
    .right_width = {f_panel, d_panel, f_panel, f_panel, PAIRS_WIDTH(f_panel), amx_width, amx_width},
    .pack = pack,
    .largest = largest,
    .lift = lift,
    .multiply = multiply,
};
