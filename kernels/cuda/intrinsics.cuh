// What the kernels need of the machine: single instructions by name, for both widths where there
// are both.
//
// Sources are compiled with -fmad=false: nothing is fused but where fused() says so. So every form
// of a kernel (vector, strided, sums) gives the same bits for the same element.
#pragma once

#ifndef __CUDACC__
#include "emulator/device.h"
#endif

#include <stdint.h>

namespace epigrad {

// fused is a b + c, rounded once.
__device__ __forceinline__ float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ __forceinline__ double fused(double a, double b, double c) { return __fma_rn(a, b, c); }

__device__ __forceinline__ float magnitude(float x) { return fabsf(x); }
__device__ __forceinline__ double magnitude(double x) { return fabs(x); }

// with_sign is x >= 0 with the sign of y.
__device__ __forceinline__ float with_sign(float x, float y) { return copysignf(x, y); }
__device__ __forceinline__ double with_sign(double x, double y) { return copysign(x, y); }

// invertible is x, or the nearest number of its sign for which reciprocal_approximately is good.
__device__ __forceinline__ float invertible(float x) { return copysignf(fminf(fmaxf(fabsf(x), 0x1p-126f), 0x1p126f), x); }
__device__ __forceinline__ double invertible(double x) { return copysign(fmin(fmax(fabs(x), 0x1p-1022), 0x1p1022), x); }

// lesser is the smaller one of two, and the other one where one is NaN.
__device__ __forceinline__ float lesser(float x, float y) { return fminf(x, y); }
__device__ __forceinline__ double lesser(double x, double y) { return fmin(x, y); }

// negative is x < 0. In double, where a comparison takes the time of a sum, it is the sign, of
// zeros and NaN too: of use where either side's formula will do for them.
__device__ __forceinline__ bool negative(float x) { return x < 0; }
__device__ __forceinline__ bool negative(double x) { return __double2hiint(x) < 0; }

// horner is the polynomial with these ascending coefficients.
template <class Real>
__device__ __forceinline__ Real horner(Real, Real last) {
  return last;
}
template <class Real, class... Rest>
__device__ __forceinline__ Real horner(Real x, Real first, Rest... rest) {
  return fused(horner(x, rest...), x, first);
}

#ifdef __CUDACC__
// exp2_approximately is 2^x to 2^-22 relative; results below 2^-126 are 0.
__device__ __forceinline__ float exp2_approximately(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// power_of_two is 2^x for an integer x, exactly; powers below 2^-126 are 0.
__device__ __forceinline__ float power_of_two(float x) { return exp2_approximately(x); }

// minimum is the smaller one of two, and NaN where x is.
__device__ __forceinline__ float minimum(float x, float y) {
  float z;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

// reciprocal_approximately is 1/x to one unit in the last place, for x in [2^-126, 2^126]; it is 0
// beyond.
__device__ __forceinline__ float reciprocal_approximately(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// For double it is to 2^-20, for normal x whose reciprocal is normal.
__device__ __forceinline__ double reciprocal_approximately(double x) {
  double y;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
  return y;
}

// The half types, one and two at a time; of two, the first is in the low half. Rounding is to
// nearest even.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
__device__ __forceinline__ float unpack_f16(uint16_t bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}

// let_next_start lets blocks of the next launch start, where that asked for it, once all blocks of
// this one have called this; wait_for_previous waits, in such a launch, until the one before it has
// ended and its writes can be read. Both do nothing in other launches and on older machines.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// copy_ahead starts a copy of 16 bytes to shared memory, for the thread that asks for it alone.
// Copies belong to the group that the next close_group closes. wait_for_groups<n> waits for all
// groups but the last n.
__device__ __forceinline__ void copy_ahead(uint4 *to, const void *from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(from));
}
__device__ __forceinline__ void close_group() { asm volatile("cp.async.commit_group;"); }
template <int but>
__device__ __forceinline__ void wait_for_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(but) : "memory");
}
#endif

}  // namespace epigrad
