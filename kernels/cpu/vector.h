// What the registers of all instruction sets have in common. Each vector_*.h includes it, and
// defines TARGET, the instructions that a function may have.
#pragma once

#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline)) TARGET

// Loops over registers are unrolled whole, so that the registers have names.
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

typedef float f_real;
typedef double d_real;

// A register of what it holds.
#define f_load_real f_load_f32
#define f_store_real f_store_f32
#define d_load_real d_load_f64
#define d_store_real d_store_f64
