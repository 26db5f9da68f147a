// The part of CUDA that the kernels use, on a CPU: what a C++ compiler needs to compile the sources
// as they are.
//
// The machine's approximate instructions are replaced by a correctly rounded result that is then
// moved by as much as the instruction may be off, in a direction that depends on the argument. So
// what is measured here bounds what a GPU does; its very bits can differ.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>

#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static

struct dim3 {
  unsigned x, y, z;
};
extern dim3 threadIdx, blockIdx, gridDim;

void __syncthreads();
inline void __syncwarp() { __syncthreads(); }  // all warps together

// What lanes of a warp give each other. All threads of a block do it together.
template <class T>
struct Given {
  static T of[1024];
  explicit Given(T x) {
    of[threadIdx.x] = x;
    __syncthreads();
  }
  ~Given() { __syncthreads(); }
  T from(int lane) const { return of[threadIdx.x / 32 * 32 + lane]; }
};
template <class T>
T Given<T>::of[1024];
template <class T>
__attribute__((noinline)) T __shfl_xor_sync(unsigned, T x, int mask) {
  return Given<T>(x).from(static_cast<int>(threadIdx.x % 32) ^ mask);
}

struct uint4 {
  uint32_t x, y, z, w;
};
struct float2 {
  float x, y;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

// A misaligned or stray address is found by the sanitizers that the emulator is built with.
template <class T>
inline T __ldg(const T *p) {
  return *p;
}

template <class To, class From>
inline To __bits_as(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To y;
  memcpy(&y, &x, sizeof y);
  return y;
}
inline float __uint_as_float(uint32_t x) { return __bits_as<float>(x); }
inline uint32_t __float_as_uint(float x) { return __bits_as<uint32_t>(x); }
inline float __int_as_float(int x) { return __bits_as<float>(x); }
inline int __float_as_int(float x) { return __bits_as<int>(x); }
inline double __hiloint2double(int high, int low) {
  return __bits_as<double>(static_cast<uint64_t>(static_cast<uint32_t>(high)) << 32 | static_cast<uint32_t>(low));
}
inline int __double2loint(double x) { return static_cast<int>(static_cast<uint32_t>(__bits_as<uint64_t>(x))); }
inline long long __double_as_longlong(double x) { return static_cast<long long>(__bits_as<uint64_t>(x)); }
inline int __double2hiint(double x) { return static_cast<int>(static_cast<uint32_t>(__bits_as<uint64_t>(x) >> 32)); }

inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t which) {
  const uint64_t both = static_cast<uint64_t>(y) << 32 | x;
  uint32_t z = 0;
  for (int i = 0; i < 4; i++) z |= static_cast<uint32_t>(both >> (which >> (4 * i) & 7) * 8 & 0xff) << (8 * i);
  return z;
}
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline uint64_t __umul64hi(uint64_t a, uint64_t b) { return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64); }

using std::max;
using std::min;

namespace epigrad {

// moved is x off by as much as an instruction with this error may be.
inline float moved(double x, double error) {
  uint64_t hash = __bits_as<uint64_t>(x) * 0x9e3779b97f4a7c15u >> 62;
  float y = static_cast<float>(x * (1 + error * (static_cast<double>(hash) / 1.5 - 1)));
  return fabsf(y) < 0x1p-126f ? copysignf(0, y) : y;
}

inline float exp2_approximately(float x) { return moved(exp2(static_cast<double>(x)), 0x1p-22); }
inline float power_of_two(float x) {
  float y = static_cast<float>(exp2(static_cast<double>(x)));
  return y < 0x1p-126f ? 0 : y;
}
inline float minimum(float x, float y) { return x > y ? y : x; }
inline float reciprocal_approximately(float x) { return isinf(x) ? copysignf(0, x) : moved(1 / static_cast<double>(x), 0x1p-24); }
inline double reciprocal_approximately(double x) { return __hiloint2double(__double2hiint(1 / x), 0); }

inline uint16_t bf16_bits(float x) {
  uint32_t bits = __float_as_uint(x);
  return static_cast<uint16_t>(isnan(x) ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline uint16_t f16_bits(float x) {
  uint16_t sign = static_cast<uint16_t>(__float_as_uint(x) >> 16 & 0x8000);
  float size = fabsf(x);
  if (isnan(x)) return 0x7fff;
  if (size >= 65520) return sign | 0x7c00;
  int exponent = 0;
  frexpf(size, &exponent);
  // The last place is 2^-24 for denormals, and 11 bits behind the first one otherwise.
  int place = size < 0x1p-14f ? -24 : exponent - 11;
  uint32_t units = static_cast<uint32_t>(rintf(ldexpf(size, -place)));
  return static_cast<uint16_t>(sign | ((static_cast<uint32_t>(place + 24) << 10) + units));
}
inline uint32_t pack_bf16(float low, float high) { return static_cast<uint32_t>(bf16_bits(high)) << 16 | bf16_bits(low); }
inline uint32_t pack_f16(float low, float high) { return static_cast<uint32_t>(f16_bits(high)) << 16 | f16_bits(low); }
inline float unpack_f16(uint16_t bits) {
  int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  float size = exponent == 31  ? (mantissa != 0 ? NAN : INFINITY)
               : exponent == 0 ? ldexpf(static_cast<float>(mantissa), -24)
                               : ldexpf(static_cast<float>(mantissa + 1024), exponent - 25);
  return bits & 0x8000 ? -size : size;
}

// Tensor cores (mma_sm80.cuh). An address in shared memory is an offset.
#define EPG_DYNAMIC_SHARED(name) uint8_t *const name = epigrad::sm80::shared_memory
namespace sm80 {
alignas(128) inline uint8_t shared_memory[100 << 10];
inline uint32_t shared_address(const void *p) { return static_cast<uint32_t>(static_cast<const uint8_t *>(p) - shared_memory); }
inline void copy_piece(uint32_t to, const void *from, int bytes) {
  memset(shared_memory + to, 0, 16);
  memcpy(shared_memory + to, from, static_cast<size_t>(bytes));
}
inline void store_piece(uint32_t to, uint4 x) { memcpy(shared_memory + to, &x, 16); }
inline void end_stage() {}
template <int count>
inline void wait_for_stages() {}
inline uint32_t load_word(uint32_t at) {
  uint32_t x;
  memcpy(&x, shared_memory + at, 4);
  return x;
}
template <bool across>
__attribute__((noinline)) void load_matrices(uint32_t (&x)[4], uint32_t at) {
  const Given<uint32_t> rows(at);
  const int lane = threadIdx.x % 32;
  for (int i = 0; i < 4; i++) {
    const auto element = [&](int row, int column) { return load_word((rows.from(8 * i + row) + 2 * column) / 4 * 4) >> column % 2 * 16 & 0xffff; };
    const int one = lane / 4, two = lane % 4 * 2;
    x[i] = across ? element(two, one) | element(two + 1, one) << 16 : element(one, two) | element(one, two + 1) << 16;
  }
}
inline uint32_t to_tf32(uint32_t x) { return isnan(__uint_as_float(x)) ? x : (x + 0x1000) & ~0x1fffu; }

struct Factors {
  uint32_t a[4], b[2];
};
template <class Storage>
__attribute__((noinline)) void multiply(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const Given<Factors> factors({{a[0], a[1], a[2], a[3]}, {b0, b1}});
  constexpr int each = 4 / sizeof(Storage), depth = 8 * each;  // of a word; of the instruction
  const auto number = [](uint32_t word, int k) {
    if constexpr (each == 1) {
      return __uint_as_float(word);
    } else {
      Storage x;
      x.bits = static_cast<uint16_t>(word >> k % 2 * 16);
      return Storage::reload(&x);
    }
  };
  const int lane = threadIdx.x % 32;
  for (int i = 0; i < 4; i++) {
    const int row = lane / 4, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < depth; k++) {
      const int half = k / (depth / 2), other = k % (depth / 2) / each;
      sum[i] += number(factors.from(4 * row + other).a[2 * half + i / 2], k) * number(factors.from(4 * column + other).b[half], k);
    }
  }
}
}  // namespace sm80

inline void let_next_start() {}
inline void wait_for_previous() {}
inline void copy_ahead(uint4 *to, const void *from) { *to = *static_cast<const uint4 *>(from); }
inline void close_group() {}
template <int but>
inline void wait_for_groups() {}

}  // namespace epigrad

// EPG_REGISTER tells the emulator a kernel's name.
#define EPG_REGISTER(name) static epigrad::Registration registration_##name(#name, &name);

namespace epigrad {

struct Registration {
  const char *name;
  void (*kernel)();
  void (*call)(void (*kernel)(), const void *parameters);
  size_t size;
  Registration *next;
  static Registration *first;

  template <class Parameters>
  Registration(const char *name, void (*kernel)(Parameters))
      : name(name), kernel(reinterpret_cast<void (*)()>(kernel)), call(&call_with<Parameters>), size(sizeof(Parameters)), next(first) {
    first = this;
  }

  template <class Parameters>
  static void call_with(void (*kernel)(), const void *parameters) {
    Parameters p;
    memcpy(&p, parameters, sizeof p);
    reinterpret_cast<void (*)(Parameters)>(kernel)(p);
  }
};

}  // namespace epigrad
