// SPDX-License-Identifier: Apache-2.0
// Kernels that try the emulation itself.
#include "handler.h"

struct Shared {
  float values[128];
};

// C = A B of one wave, by the layout that AMD's matrix instruction calculator
// gives for CDNA 3: A[i][k] is in lane i + size * (k / 4), element k % 4; B
// alike; D[i][j] is in lane j + size * (i / 4 % (64 / size)).
template <int size, int depth, class T, class D>
__device__ __forceinline__ void product(const uint16_t* a, const uint16_t* b,
                                        float* c, D d) {
  int lane = threadIdx.x;
  bits4 x, y;
  for (int i = 0; i < 4; ++i) {
    int k = 4 * (lane / size) + i;
    x[i] = a[lane % size * depth + k];
    y[i] = b[k * size + lane % size];
  }
  d = mfma(T(), x, y, d);
  for (int i = 0; i < size; ++i)
    if (i / 4 % (64 / size) == lane / size)
      c[i * size + lane % size] = d[i / 4 / (64 / size) * 4 + i % 4];
}
#define PRODUCT(type)                                                   \
  extern "C" __global__ void product_32_##type(                         \
      const uint16_t* a, const uint16_t* b, float* c) {                 \
    product<32, 8, type>(a, b, c, f32x16{});                            \
  }                                                                     \
  extern "C" __global__ void product_16_##type(                         \
      const uint16_t* a, const uint16_t* b, float* c) {                 \
    product<16, 16, type>(a, b, c, f32x4{});                            \
  }
PRODUCT(bf16)
PRODUCT(f16)

static ffi::Error product_handler(hipStream_t stream, ffi::AnyBuffer a,
                                  ffi::AnyBuffer b,
                                  ffi::Result<ffi::Buffer<ffi::F32>> c) {
  auto* x = static_cast<uint16_t*>(a.untyped_data());
  auto* y = static_cast<uint16_t*>(b.untyped_data());
  float* z = c->typed_data();
  bool wide = c->dimensions()[0] == 32;
  bool bf = a.element_type() == ffi::DataType::BF16;
  if (wide && bf)
    ZAYA_LAUNCH(product_32_bf16, NoShared, dim3(1), dim3(64), stream, x, y, z);
  if (wide && !bf)
    ZAYA_LAUNCH(product_32_f16, NoShared, dim3(1), dim3(64), stream, x, y, z);
  if (!wide && bf)
    ZAYA_LAUNCH(product_16_bf16, NoShared, dim3(1), dim3(64), stream, x, y, z);
  if (!wide && !bf)
    ZAYA_LAUNCH(product_16_f16, NoShared, dim3(1), dim3(64), stream, x, y, z);
  return launched();
}
ZAYA_HANDLER(product, product_handler,
             Bind()
                 .Ctx<Stream>()
                 .Arg<ffi::AnyBuffer>()
                 .Arg<ffi::AnyBuffer>()
                 .Ret<ffi::Buffer<ffi::F32>>());

// Each of 128 threads: the value of the thread 64 away, with one fault.
enum Fault {
  kNone,
  kNoBarrier,
  kSomeAtBarrier,
  kTwoBarriers,
  kSharedEnd,
  kResultEnd,
  kArgument,
  kLaneGone
};
extern "C" __global__ void exchange(float* x, float* y, int fault) {
  ZAYA_SHARED(Shared, shared);
  int i = threadIdx.x;
  shared.values[i] = x[i];
  if (fault == kSomeAtBarrier && i < 3) return;
  if (fault == kTwoBarriers && i < 64)
    __syncthreads();
  else if (fault != kNoBarrier)
    __syncthreads();
  y[i] = shared.values[(i + 64) % 128];
  if (fault == kSharedEnd) shared.values[i + 1] = 0;
  if (fault == kResultEnd) y[i + 1] = 0;
  if (fault == kArgument) x[i] += 1;
  if (fault == kLaneGone && i != 5) y[i] = wave_sum(y[i]);
}
static ffi::Error exchange_handler(hipStream_t stream, int32_t fault,
                                   ffi::Buffer<ffi::F32> x,
                                   ffi::Result<ffi::Buffer<ffi::F32>> y) {
  ZAYA_LAUNCH(exchange, Shared, dim3(1), dim3(128), stream, x.typed_data(),
              y->typed_data(), fault);
  return launched();
}
ZAYA_HANDLER(exchange, exchange_handler,
             Bind()
                 .Ctx<Stream>()
                 .Attr<int32_t>("fault")
                 .Arg<ffi::Buffer<ffi::F32>>()
                 .Ret<ffi::Buffer<ffi::F32>>());

// Of 64 lanes: sum, largest, and the lane before.
extern "C" __global__ void waves(const float* x, float* y) {
  int i = threadIdx.x;
  y[i] = wave_sum(x[i]);
  y[64 + i] = wave_max(x[i]);
  y[128 + i] = __shfl_up(x[i], 1);
}
static ffi::Error waves_handler(hipStream_t stream, ffi::Buffer<ffi::F32> x,
                                ffi::Result<ffi::Buffer<ffi::F32>> y) {
  ZAYA_LAUNCH(waves, NoShared, dim3(1), dim3(64), stream, x.typed_data(),
              y->typed_data());
  return launched();
}
ZAYA_HANDLER(waves, waves_handler,
             Bind()
                 .Ctx<Stream>()
                 .Arg<ffi::Buffer<ffi::F32>>()
                 .Ret<ffi::Buffer<ffi::F32>>());
