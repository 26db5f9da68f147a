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
#include "decay.h"

#define ARITHMETIC exact
#include "activation.h"
#define ARITHMETIC exact
#include "activation_decay.h"
#define DTYPE f64
#include "elementwise.h"

// Exact's functions of floats, for lanes that are beyond the float formulas. They are calls, since
// such lanes are few.
#define EXACT_OF(act)                                                                       \
  TARGET static __attribute__((noinline, cold)) f_v exact_##act##_value_of(f_v x) {         \
    const d_v low = d_low(x), high = d_high(x);                                             \
    return f_rounded(exact_##act##_value(low, exact_##act##_parts(low, (numbers){{0}})),    \
                     exact_##act##_value(high, exact_##act##_parts(high, (numbers){{0}}))); \
  }                                                                                         \
  EXACT_TIMES(act, gradient)                                                                \
  EXACT_TIMES(act, curvature)
#define EXACT_TIMES(act, of)                                                                          \
  TARGET static __attribute__((noinline, cold)) f_v exact_##act##_##of##_of(f_v g, f_v x) {           \
    const d_v low = d_low(x), high = d_high(x);                                                       \
    return f_rounded(exact_##act##_##of(d_low(g), low, exact_##act##_parts(low, (numbers){{0}})),     \
                     exact_##act##_##of(d_high(g), high, exact_##act##_parts(high, (numbers){{0}}))); \
  }
EXACT_OF(sigmoid)
EXACT_OF(tanh)
EXACT_OF(gelu_tanh)
EXACT_OF(silu)

#define ARITHMETIC wide
#include "activation_decay.h"
#include "activation_single.h"
#define ARITHMETIC single
#include "activation.h"
#define DTYPE f32
#include "elementwise.h"

#define ARITHMETIC half
#include "activation.h"
#define ARITHMETIC half
#include "activation_decay.h"
#define DTYPE bf16
#include "elementwise.h"
#define DTYPE f16
#include "elementwise.h"
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
    .multiply_few = multiply_few,
    .finish = finish,
};
