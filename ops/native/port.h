// SPDX-License-Identifier: Apache-2.0
// What kernels share, in the same words for every compiler: waves of 64 lanes,
// 16-bit floats as bits, matrix instructions, shared memory and launches.
#pragma once
#include <hip/hip_runtime.h>
#include <stdint.h>

constexpr int kWave = 64;  // Lanes of a wave, also where the shim has warps.

#if defined(ZAYA_CUDA)
// The shim defines bits4, bits8, f32x4, f32x16: nvcc has no vector extensions.
#define ZAYA_UNROLL _Pragma("unroll")
#else
typedef short bits4 __attribute__((vector_size(8)));
typedef short bits8 __attribute__((vector_size(16)));  // What a lane moves.
typedef float f32x4 __attribute__((vector_size(16)));
typedef float f32x16 __attribute__((vector_size(64)));
#if defined(__clang__)
#define ZAYA_UNROLL _Pragma("unroll")
#else
#define ZAYA_UNROLL
#endif
#endif

__device__ __forceinline__ bits4 half_of(bits8 x, int half) {
  bits4 out;
  ZAYA_UNROLL
  for (int i = 0; i < 4; ++i) out[i] = x[4 * half + i];
  return out;
}

template <class To, class From>
__device__ __forceinline__ To bits_of(From from) {
  static_assert(sizeof(To) == sizeof(From), "");
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

// The two types that matrix instructions take. float_of and T::of convert, the
// latter to the nearest, ties to even.
struct bf16 {
  typedef uint16_t Word;
  uint16_t bits;
  // In the upper half. Infinity stays; a NaN must not become infinity by
  // rounding. MI300X needs 4 instructions: it has none of its own for bfloat16.
  __device__ static __forceinline__ uint32_t nearest(float x) {
    uint32_t u = bits_of<uint32_t>(x);
    return x != x ? 0x7fc00000u : u + 0x7fffu + (u >> 16 & 1u);
  }
  __device__ static __forceinline__ bf16 of(float x) {
    return {uint16_t(nearest(x) >> 16)};
  }
  // Both in a word, by one instruction more; clang by itself takes three.
  __device__ static __forceinline__ uint32_t two(float low, float high) {
    uint32_t a = nearest(low), b = nearest(high);
#if defined(__HIP_DEVICE_COMPILE__)
    return __builtin_amdgcn_perm(b, a, 0x07060302u);
#else
    return a >> 16 | (b & 0xffff0000u);
#endif
  }
};
struct f16 {
  typedef uint16_t Word;
  uint16_t bits;
  __device__ static __forceinline__ f16 of(float x) {
#if defined(ZAYA_CUDA)
    return {__half_as_ushort(__float2half_rn(x))};
#else
    return {bits_of<uint16_t>(_Float16(x))};
#endif
  }
};
struct f32 {
  typedef float Word;
  float value;
  __device__ static __forceinline__ f32 of(float x) { return {x}; }
};

__device__ __forceinline__ float float_of(bf16 x) {
  return bits_of<float>(uint32_t(x.bits) << 16);
}
__device__ __forceinline__ float float_of(f16 x) {
#if defined(ZAYA_CUDA)
  return __half2float(__ushort_as_half(x.bits));
#else
  return float(bits_of<_Float16>(x.bits));
#endif
}
__device__ __forceinline__ float float_of(f32 x) { return x.value; }

// The compiler moves no instruction across this.
#if defined(__HIP_DEVICE_COMPILE__)
#define ZAYA_IN_THIS_ORDER() __builtin_amdgcn_sched_barrier(0)
#else
#define ZAYA_IN_THIS_ORDER() ((void)0)
#endif

// Eight consecutive values, at 16 bytes, or the first `count` of them. Pointers
// from a table may point anywhere for all that clang knows, and such loads
// would wait for LDS too: these do not.
#if defined(__HIP_DEVICE_COMPILE__)
#define ZAYA_GLOBAL __attribute__((address_space(1)))
#else
#define ZAYA_GLOBAL
#endif
template <class T>
__device__ __forceinline__ void load8(const T* from, int count, float* to) {
  if (count < 8) {
    auto* words = (const ZAYA_GLOBAL typename T::Word*)from;
    ZAYA_UNROLL
    for (int i = 0; i < 8; ++i) to[i] = i < count ? float_of(T{words[i]}) : 0.f;
    return;
  }
  constexpr int kEach = 16 / sizeof(T);
  ZAYA_UNROLL
  for (int part = 0; part < 8 / kEach; ++part) {
    bits8 bits = ((const ZAYA_GLOBAL bits8*)from)[part];
    T values[kEach];
    __builtin_memcpy(values, &bits, sizeof(bits));
    ZAYA_UNROLL
    for (int i = 0; i < kEach; ++i) to[part * kEach + i] = float_of(values[i]);
  }
}
template <class T>
__device__ __forceinline__ void store8(T* to, int count, const float* from) {
  if (count < 8) {
    auto* words = (ZAYA_GLOBAL typename T::Word*)to;
    ZAYA_UNROLL
    for (int i = 0; i < 8; ++i)
      if (i < count) words[i] = bits_of<typename T::Word>(T::of(from[i]));
    return;
  }
  constexpr int kEach = 16 / sizeof(T);
  ZAYA_UNROLL
  for (int part = 0; part < 8 / kEach; ++part) {
    T values[kEach];
    ZAYA_UNROLL
    for (int i = 0; i < kEach; ++i) values[i] = T::of(from[part * kEach + i]);
    bits8 bits;
    __builtin_memcpy(&bits, values, sizeof(bits));
    ((ZAYA_GLOBAL bits8*)to)[part] = bits;
  }
}

// D = A B + C by one wave, as large as C's type says. 32x32x8: lane l has
// A[l % 32][4 (l / 32) + 0..3] and B[the same k][l % 32];
// D[8 (r / 4) + 4 (l / 32) + r % 4][l % 32] in d[r].
// 16x16x16: A[l % 16][4 (l / 16) + 0..3], B alike; D[4 (l / 16) + r][l % 16].
// Any permutation of k that A and B share gives the same product.
#if defined(__HIP_PLATFORM_AMD__) && !defined(ZAYA_EMULATION)
typedef _Float16 half4 __attribute__((vector_size(8)));
__device__ __forceinline__ f32x16 mfma(bf16, bits4 a, bits4 b, f32x16 c) {
  return __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(a, b, c, 0, 0, 0);
}
__device__ __forceinline__ f32x16 mfma(f16, bits4 a, bits4 b, f32x16 c) {
  return __builtin_amdgcn_mfma_f32_32x32x8f16((half4)a, (half4)b, c, 0, 0, 0);
}
__device__ __forceinline__ f32x4 mfma(bf16, bits4 a, bits4 b, f32x4 c) {
  return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, c, 0, 0, 0);
}
__device__ __forceinline__ f32x4 mfma(f16, bits4 a, bits4 b, f32x4 c) {
  return __builtin_amdgcn_mfma_f32_16x16x16f16((half4)a, (half4)b, c, 0, 0, 0);
}
#else
template <class T>
__device__ __forceinline__ f32x16 mfma(T type, bits4 a, bits4 b, f32x16 c) {
  return emulated_mfma<32, 8>(type, a, b, c);
}
template <class T>
__device__ __forceinline__ f32x4 mfma(T type, bits4 a, bits4 b, f32x4 c) {
  return emulated_mfma<16, 16>(type, a, b, c);
}
#endif

// What is the same in all lanes of a wave, said to the compiler: it branches on
// that without masks.
__device__ __forceinline__ bool uniform(bool x) {
#if defined(__HIP_DEVICE_COMPILE__)
  return __builtin_amdgcn_readfirstlane(x);
#else
  return x;
#endif
}

// The same sum in all lanes of the wave; all of them must come here.
__device__ __forceinline__ float wave_sum(float x) {
  ZAYA_UNROLL
  for (int mask = kWave / 2; mask > 0; mask >>= 1) x += __shfl_xor(x, mask);
  return x;
}
__device__ __forceinline__ float wave_max(float x) {
  ZAYA_UNROLL
  for (int mask = kWave / 2; mask > 0; mask >>= 1) {
    float y = __shfl_xor(x, mask);
    x = y > x ? y : x;
  }
  return x;
}

// Blocks go round robin to the 8 dies (XCD) of MI300X, each with its own 4 MiB
// of L2. This gives die d the d-th of eight runs of consecutive work items, so
// that neighbours share what they read. A permutation of 0 .. count - 1.
__device__ __forceinline__ int xcd_order(int block, int count) {
  constexpr int kDies = 8;
  int die = block % kDies, size = count / kDies, more = count % kDies;
  return die * size + (die < more ? die : more) + block / kDies;
}

// A kernel has its shared memory in one struct:
//   struct Shared { float sums[4]; };
//   extern "C" __global__ __launch_bounds__(256) void k(...) {
//     ZAYA_SHARED(Shared, shared);
// and the host says ZAYA_LAUNCH(k, Shared, grid, block, stream, arguments...).
// Without any: NoShared. Not templates, so that reports name them.
struct NoShared {};
#if defined(ZAYA_EMULATION)
#define ZAYA_SHARED(type, name) \
  type& name = *static_cast<type*>(emulation::shared_memory())
#define ZAYA_LAUNCH(kernel, type, grid, block, stream, ...)   \
  ((void)(stream), emulation::launch(#kernel, grid, block, sizeof(type), [&] { \
     kernel(__VA_ARGS__);                                     \
   }))
#elif defined(ZAYA_CUDA)
// Statically nvcc gives 48 KiB.
#define ZAYA_SHARED(type, name)                                  \
  extern __shared__ __align__(16) unsigned char zaya_shared[]; \
  type& name = *reinterpret_cast<type*>(zaya_shared)
#define ZAYA_LAUNCH(kernel, type, grid, block, stream, ...)             \
  (cudaFuncSetAttribute(kernel,                                         \
                        cudaFuncAttributeMaxDynamicSharedMemorySize,    \
                        sizeof(type)),                                  \
   kernel<<<grid, block, sizeof(type), stream>>>(__VA_ARGS__))
#else
#define ZAYA_SHARED(type, name) __shared__ type name
#define ZAYA_LAUNCH(kernel, type, grid, block, stream, ...) \
  kernel<<<grid, block, 0, stream>>>(__VA_ARGS__)
#endif
