// SPDX-License-Identifier: Apache-2.0
// HIP's names for CUDA, just those that the kernels use, and waves of 64 lanes
// as two warps: to run the kernels of MI300X on NVIDIA, for what they compute,
// not for speed. (AMD's own headers for nvcc do not compile with CUDA 13.)
// Blocks have up to 512 threads, all of which come to a wave's instruction.
#pragma once
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#define ZAYA_CUDA 1
#define __HIP_PLATFORM_NVIDIA__ 1
typedef cudaStream_t hipStream_t;
typedef cudaError_t hipError_t;
constexpr cudaError_t hipSuccess = cudaSuccess;
inline hipError_t hipGetLastError() { return cudaGetLastError(); }
inline const char* hipGetErrorString(hipError_t error) {
  return cudaGetErrorString(error);
}

template <class T, int count>
struct alignas(sizeof(T) * count < 16 ? sizeof(T) * count : 16) Vector {
  T values[count];
  __host__ __device__ T& operator[](int i) { return values[i]; }
  __host__ __device__ const T& operator[](int i) const { return values[i]; }
};
typedef Vector<short, 4> bits4;
typedef Vector<short, 8> bits8;
typedef Vector<float, 4> f32x4;
typedef Vector<float, 16> f32x16;

namespace wave {
constexpr int kWaves = 8;
struct Slot {
  bits4 a[kWaves][64], b[kWaves][64];
};
__device__ inline Slot& slot() {
  __shared__ Slot slot;
  return slot;
}
__device__ inline int thread() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
// Barrier 0 is that of the block.
__device__ inline void sync() {
  asm volatile("bar.sync %0, 64;" ::"r"(thread() / 64 + 1) : "memory");
}
template <class T>
__device__ T shuffle(T value, int from) {
  static_assert(sizeof(T) <= sizeof(bits4), "");
  int lane = thread() % 64;
  auto& row = slot().a[thread() / 64];
  *reinterpret_cast<T*>(&row[lane]) = value;
  sync();
  T out = *reinterpret_cast<T*>(&row[from >= 0 && from < 64 ? from : lane]);
  sync();
  return out;
}
template <class T>
__device__ T shuffle_xor(T value, int mask) {
  return shuffle(value, thread() % 64 ^ mask);
}
template <class T>
__device__ T shuffle_up(T value, int by) {
  return shuffle(value, thread() % 64 - by);
}
template <class T>
__device__ T shuffle_down(T value, int by) {
  return shuffle(value, thread() % 64 + by);
}
}  // namespace wave
#define __shfl wave::shuffle
#define __shfl_xor wave::shuffle_xor
#define __shfl_up wave::shuffle_up
#define __shfl_down wave::shuffle_down

template <class T>
__device__ float float_of_bits(T, short bits) {
  T value;
  memcpy(&value, &bits, sizeof(value));
  return float_of(value);
}

// See port.h for who has what.
template <int size, int depth, class T, class Accumulator>
__device__ Accumulator emulated_mfma(T type, bits4 a, bits4 b, Accumulator c) {
  int lane = wave::thread() % 64, mine = wave::thread() / 64;
  wave::slot().a[mine][lane] = a;
  wave::slot().b[mine][lane] = b;
  wave::sync();
#pragma unroll
  for (int r = 0; r < int(sizeof(Accumulator) / 4); ++r) {
    int row = 4 * (64 / size) * (r / 4) + 4 * (lane / size) + r % 4;
    for (int k = 0; k < depth; ++k)
      c[r] += float_of_bits(
                  type, wave::slot().a[mine][row + size * (k / 4)][k % 4]) *
              float_of_bits(type, wave::slot().b[mine][lane % size +
                                                       size * (k / 4)][k % 4]);
  }
  wave::sync();
  return c;
}
