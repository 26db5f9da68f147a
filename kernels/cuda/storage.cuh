// The dtypes: what lies in memory, what it is computed in, and the way from one to the other.
//
// A storage type has Real (what formulas and sums are in), width (elements of a 16-byte vector),
// and loads and stores of one element and of a vector; reload is a load of what the kernel itself,
// or one that still runs, may have written. Widening is exact; a store rounds once, to nearest
// even. To add a dtype, add a struct and a line to EPG_FOR_EACH_DTYPE.
#pragma once

#include "arithmetic.cuh"

#define EPG_FOR_EACH_DTYPE(macro, ...) macro(f32, __VA_ARGS__) macro(f64, __VA_ARGS__) macro(bf16, __VA_ARGS__) macro(f16, __VA_ARGS__)

namespace epigrad {

struct f32 {
  using Real = float;
  using Arithmetic = Single;
  static constexpr int width = 4;
  float value;
  static __device__ __forceinline__ Real load(const f32 *p) { return __ldg(&p->value); }
  static __device__ __forceinline__ Real reload(const f32 *p) { return p->value; }
  static __device__ __forceinline__ void store(f32 *p, Real x) { p->value = x; }
  static __device__ __forceinline__ void unpack(Real (&x)[width], uint4 v) {
    x[0] = __uint_as_float(v.x), x[1] = __uint_as_float(v.y), x[2] = __uint_as_float(v.z), x[3] = __uint_as_float(v.w);
  }
  static __device__ __forceinline__ uint4 pack(const Real (&x)[width]) {
    return make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3]));
  }
};

struct f64 {
  using Real = double;
  using Arithmetic = Exact<Double>;
  static constexpr int width = 2;
  double value;
  static __device__ __forceinline__ Real load(const f64 *p) { return __ldg(&p->value); }
  static __device__ __forceinline__ Real reload(const f64 *p) { return p->value; }
  static __device__ __forceinline__ void store(f64 *p, Real x) { p->value = x; }
  static __device__ __forceinline__ void unpack(Real (&x)[width], uint4 v) {
    x[0] = __hiloint2double(static_cast<int>(v.y), static_cast<int>(v.x));
    x[1] = __hiloint2double(static_cast<int>(v.w), static_cast<int>(v.z));
  }
  static __device__ __forceinline__ uint4 pack(const Real (&x)[width]) {
    return make_uint4(static_cast<uint32_t>(__double2loint(x[0])), static_cast<uint32_t>(__double2hiint(x[0])), static_cast<uint32_t>(__double2loint(x[1])),
                      static_cast<uint32_t>(__double2hiint(x[1])));
  }
};

struct bf16 {
  using Real = float;
  using Arithmetic = Half;
  static constexpr int width = 8;
  uint16_t bits;
  static __device__ __forceinline__ Real load(const bf16 *p) { return __uint_as_float(static_cast<uint32_t>(__ldg(&p->bits)) << 16); }
  static __device__ __forceinline__ Real reload(const bf16 *p) { return __uint_as_float(static_cast<uint32_t>(p->bits) << 16); }
  static __device__ __forceinline__ void store(bf16 *p, Real x) { p->bits = static_cast<uint16_t>(pack_bf16(x, 0)); }
  static __device__ __forceinline__ void unpack(Real (&x)[width], uint4 v) {
    const uint32_t words[] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      x[2 * i] = __uint_as_float(words[i] << 16);
      x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }
  static __device__ __forceinline__ uint4 pack(const Real (&x)[width]) {
    return make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
  }
};

struct f16 {
  using Real = float;
  using Arithmetic = Half;
  static constexpr int width = 8;
  uint16_t bits;
  static __device__ __forceinline__ Real load(const f16 *p) { return unpack_f16(__ldg(&p->bits)); }
  static __device__ __forceinline__ Real reload(const f16 *p) { return unpack_f16(p->bits); }
  static __device__ __forceinline__ void store(f16 *p, Real x) { p->bits = static_cast<uint16_t>(pack_f16(x, 0)); }
  static __device__ __forceinline__ void unpack(Real (&x)[width], uint4 v) {
    const uint32_t words[] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      x[2 * i] = unpack_f16(static_cast<uint16_t>(words[i]));
      x[2 * i + 1] = unpack_f16(static_cast<uint16_t>(words[i] >> 16));
    }
  }
  static __device__ __forceinline__ uint4 pack(const Real (&x)[width]) {
    return make_uint4(pack_f16(x[0], x[1]), pack_f16(x[2], x[3]), pack_f16(x[4], x[5]), pack_f16(x[6], x[7]));
  }
};

// Bits of a dtype, for copies: nothing is computed, so that a NaN keeps its payload.
template <class Storage>
struct Bits;

template <class Integer>
struct BitsOf {
  using Real = Integer;
  static constexpr int width = 16 / sizeof(Integer);
  Integer value;
  static __device__ __forceinline__ Real load(const BitsOf *p) { return __ldg(&p->value); }
  static __device__ __forceinline__ void store(BitsOf *p, Real x) { p->value = x; }
  static __device__ __forceinline__ void unpack(Real (&x)[width], uint4 v) {
    const uint32_t words[] = {v.x, v.y, v.z, v.w};
    constexpr int per_word = sizeof(Integer) < 4 ? 4 / sizeof(Integer) : 1;
#pragma unroll
    for (int i = 0; i < width; i++) {
      if constexpr (sizeof(Integer) == 8) {
        x[i] = static_cast<Integer>(words[2 * i]) | static_cast<Integer>(words[2 * i + 1]) << 32;
      } else {
        x[i] = static_cast<Integer>(words[i / per_word] >> (i % per_word * 8 * sizeof(Integer)));
      }
    }
  }
  static __device__ __forceinline__ uint4 pack(const Real (&x)[width]) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if constexpr (sizeof(Integer) == 8) {
        words[i] = static_cast<uint32_t>(x[i / 2] >> (i % 2 * 32));
      } else if constexpr (sizeof(Integer) == 4) {
        words[i] = x[i];
      } else {
        words[i] = static_cast<uint32_t>(x[2 * i]) | static_cast<uint32_t>(x[2 * i + 1]) << 16;
      }
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
};

template <>
struct Bits<f32> : BitsOf<uint32_t> {};
template <>
struct Bits<f64> : BitsOf<unsigned long long> {};
template <>
struct Bits<bf16> : BitsOf<uint16_t> {};
template <>
struct Bits<f16> : BitsOf<uint16_t> {};

}  // namespace epigrad
