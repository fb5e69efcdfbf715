// SPDX-License-Identifier: Apache-2.0
// ZAYA's residual merge and the RMSNorm after it, each row read once:
//   new = (branch + b_h) s_h + (x + b_r) s_r
//   normed = new / rms(new) * scale
// and back, with the new row made again of its inputs.
#include "handler.h"

namespace {

// A block has a whole row, a thread 8 numbers of it: 16 bytes of bfloat16. Rows
// of 2048 are blocks of 256 threads.
constexpr int kThreads = 512, kWaves = kThreads / kWave;

struct Shared {
  float sums[2][kWaves];
};

// The sum over the block, the same in all threads. Turns alternate between two
// places, so that one barrier is enough: a wave that is ahead writes into the
// other one.
__device__ __forceinline__ float block_sum(float x, int turn, Shared& shared) {
  float(&sums)[kWaves] = shared.sums[turn % 2];
  x = wave_sum(x);
  if (threadIdx.x % kWave == 0) sums[threadIdx.x / kWave] = x;
  __syncthreads();
  float total = 0;
  for (int i = 0; i < int(blockDim.x) / kWave; ++i) total += sums[i];
  return total;
}

// 8 numbers as they lie in memory: to convert them is to wait for them.
template <class T>
struct Eight {
  bits8 parts[sizeof(T) / 2];

  __device__ __forceinline__ void fetch(const void* rows, size_t at) {
    auto* from = (const ZAYA_GLOBAL bits8*)(static_cast<const T*>(rows) + at);
    ZAYA_UNROLL
    for (int i = 0; i < int(sizeof(T) / 2); ++i) parts[i] = from[i];
  }
  __device__ __forceinline__ void get(float (&to)[8]) const {
    T values[8];
    __builtin_memcpy(values, parts, sizeof(values));
    ZAYA_UNROLL
    for (int i = 0; i < 8; ++i) to[i] = float_of(values[i]);
  }
};

struct Shape {
  int rows, width;
  float inverse;  // Of how many the mean is: without what pads the width to 8.
};

struct Vectors {
  const float *branch_scale, *branch_bias, *residual_scale, *residual_bias,
      *norm_scale;
};

// What a thread has of the vectors. Threads behind the row's end do once more
// what the first one does, but add nothing to sums over the row: with a branch
// around its stores each turn would wait for them, and for what is fetched.
struct Mine {
  float branch_scale[8], residual_scale[8], bias[8], norm_scale[8];
  int column;
  bool inside;

  __device__ __forceinline__ Mine(const Vectors& from, int width)
      : column(threadIdx.x * 8), inside(column < width) {
    column = inside ? column : 0;
    float h[8], r[8];
    load8((const f32*)from.branch_scale + column, 8, branch_scale);
    load8((const f32*)from.residual_scale + column, 8, residual_scale);
    load8((const f32*)from.branch_bias + column, 8, h);
    load8((const f32*)from.residual_bias + column, 8, r);
    load8((const f32*)from.norm_scale + column, 8, norm_scale);
    ZAYA_UNROLL
    for (int i = 0; i < 8; ++i)
      bias[i] = h[i] * branch_scale[i] + r[i] * residual_scale[i];
  }
  __device__ __forceinline__ float merged(int i, float h, float r) const {
    return h * branch_scale[i] + (r * residual_scale[i] + bias[i]);
  }
};

struct Forward {
  const void* branch;
  const float* x;
  float* merged;
  void* normed;
  float* rstd;
};

template <class T>
__device__ __forceinline__ void forward(Forward at, Vectors vectors,
                                        Shape shape, float eps,
                                        Shared& shared) {
  Mine mine(vectors, shape.width);
  Eight<T> branch;
  Eight<f32> x;
  auto fetch = [&](int row) {
    row = row < shape.rows ? row : shape.rows - 1;
    size_t place = size_t(row) * shape.width + mine.column;
    branch.fetch(at.branch, place);
    x.fetch(at.x, place);
  };
  fetch(blockIdx.x);
  for (int row = blockIdx.x, turn = 0; row < shape.rows;
       row += gridDim.x, ++turn) {
    float h[8], z[8], sum = 0;
    branch.get(h);
    x.get(z);
    fetch(row + gridDim.x);  // On its way while this row is worked on.
    ZAYA_UNROLL
    for (int i = 0; i < 8; ++i) {
      z[i] = mine.merged(i, h[i], z[i]);
      sum += z[i] * z[i];
    }
    float rstd = rsqrtf(block_sum(mine.inside ? sum : 0, turn, shared) *
                            shape.inverse + eps);
    if (threadIdx.x == 0) at.rstd[row] = rstd;
    size_t place = size_t(row) * shape.width + mine.column;
    store8((f32*)at.merged + place, 8, z);
    ZAYA_UNROLL
    for (int i = 0; i < 8; ++i) z[i] *= rstd * mine.norm_scale[i];
    store8(static_cast<T*>(at.normed) + place, 8, z);
  }
}

struct Backward {
  const void* branch;
  const float *x, *rstd, *d_merged;
  const void* d_normed;
  void* d_branch;
  float *d_x, *parts;
};

// Besides, of this block's rows, the sums of what the vectors' gradients are
// made of: dz, dz branch, dz x and d_normed / rms.
template <class T>
__device__ __forceinline__ void backward(Backward at, Vectors vectors,
                                         Shape shape, Shared& shared) {
  Mine mine(vectors, shape.width);
  Eight<T> branch, d_normed;
  Eight<f32> x, d_merged;
  float rstd_ahead;
  auto fetch = [&](int row) {
    row = row < shape.rows ? row : shape.rows - 1;
    size_t place = size_t(row) * shape.width + mine.column;
    branch.fetch(at.branch, place);
    x.fetch(at.x, place);
    d_merged.fetch(at.d_merged, place);
    d_normed.fetch(at.d_normed, place);
    rstd_ahead = at.rstd[row];
  };
  fetch(blockIdx.x);
  float sums[4][8] = {};
  for (int row = blockIdx.x, turn = 0; row < shape.rows;
       row += gridDim.x, ++turn) {
    float h[8], r[8], dz[8], dy[8], unit[8], rstd = rstd_ahead, dot = 0;
    branch.get(h);
    x.get(r);
    d_merged.get(dz);
    d_normed.get(dy);
    fetch(row + gridDim.x);
    ZAYA_UNROLL
    for (int i = 0; i < 8; ++i) {
      unit[i] = mine.merged(i, h[i], r[i]) * rstd;
      dot += dy[i] * mine.norm_scale[i] * unit[i];
    }
    float mean = block_sum(mine.inside ? dot : 0, turn, shared) * shape.inverse;
    float d_branch[8];
    ZAYA_UNROLL
    for (int i = 0; i < 8; ++i) {
      dz[i] += rstd * (dy[i] * mine.norm_scale[i] - unit[i] * mean);
      sums[0][i] += dz[i];
      sums[1][i] += dz[i] * h[i];
      sums[2][i] += dz[i] * r[i];
      sums[3][i] += dy[i] * unit[i];
      d_branch[i] = dz[i] * mine.branch_scale[i];
      dz[i] *= mine.residual_scale[i];
    }
    size_t place = size_t(row) * shape.width + mine.column;
    store8(static_cast<T*>(at.d_branch) + place, 8, d_branch);
    store8((f32*)at.d_x + place, 8, dz);
  }
  ZAYA_UNROLL
  for (int n = 0; n < 4; ++n) {
    size_t place = (size_t(blockIdx.x) * 4 + n) * shape.width + mine.column;
    store8((f32*)at.parts + place, 8, sums[n]);
  }
}

}  // namespace

// Blocks of 512 have 256 registers a thread; needed are 76 and, back, 162: 6
// and 3 waves on a SIMD.
#define KERNELS(type)                                                     \
  extern "C" __global__ __launch_bounds__(kThreads) void                  \
      residual_rms_norm_##type(Forward at, Vectors vectors, Shape shape,  \
                               float eps) {                               \
    ZAYA_SHARED(Shared, shared);                                          \
    forward<type>(at, vectors, shape, eps, shared);                       \
  }                                                                       \
  extern "C" __global__ __launch_bounds__(kThreads) void                  \
      residual_rms_norm_back_##type(Backward at, Vectors vectors,         \
                                    Shape shape) {                        \
    ZAYA_SHARED(Shared, shared);                                          \
    backward<type>(at, vectors, shape, shared);                           \
  }
KERNELS(f32)
KERNELS(bf16)

using F32 = ffi::Buffer<ffi::F32>;

// branch and x [rows, width], and how many columns of the width there are.
static Shape shape_of(ffi::AnyBuffer branch, F32 x, int32_t columns) {
  auto sizes = x.dimensions();
  bool fits = sizes.size() == 2 && sizes[1] % 8 == 0 &&
              sizes[1] <= 8 * kThreads &&
              branch.element_count() == x.element_count();
  return fits ? Shape{int(sizes[0]), int(sizes[1]), 1.f / columns}
              : Shape{0, 0, 0};
}
static dim3 threads_of(Shape shape) {
  return dim3((shape.width / 8 + kWave - 1) / kWave * kWave);
}
static ffi::Error misfit() {
  return ffi::Error::InvalidArgument(
      "residual_rms_norm: needs rows of 8, 16, .. 4096 in float32 or bfloat16");
}

static ffi::Error residual_rms_norm(hipStream_t stream, float eps,
                                    int32_t columns, int32_t blocks,
                                    ffi::AnyBuffer branch, F32 x, F32 s_h,
                                    F32 b_h, F32 s_r, F32 b_r, F32 scale,
                                    ffi::Result<F32> merged,
                                    ffi::Result<ffi::AnyBuffer> normed,
                                    ffi::Result<F32> rstd) {
  Shape shape = shape_of(branch, x, columns);
  if (!shape.width || branch.element_type() != normed->element_type())
    return misfit();
  if (!shape.rows) return ffi::Error::Success();
  Vectors vectors{s_h.typed_data(), b_h.typed_data(), s_r.typed_data(),
                  b_r.typed_data(), scale.typed_data()};
  Forward at{branch.untyped_data(), x.typed_data(), merged->typed_data(),
             normed->untyped_data(), rstd->typed_data()};
  dim3 grid(blocks), block = threads_of(shape);
  if (branch.element_type() == ffi::DataType::F32)
    ZAYA_LAUNCH(residual_rms_norm_f32, Shared, grid, block, stream, at, vectors,
                shape, eps);
  else if (branch.element_type() == ffi::DataType::BF16)
    ZAYA_LAUNCH(residual_rms_norm_bf16, Shared, grid, block, stream, at,
                vectors, shape, eps);
  else
    return misfit();
  return launched();
}

ZAYA_HANDLER(residual_rms_norm, residual_rms_norm,
             Bind()
                 .Ctx<Stream>().Attr<float>("eps").Attr<int32_t>("columns")
                 .Attr<int32_t>("blocks").Arg<ffi::AnyBuffer>().Arg<F32>()
                 .Arg<F32>().Arg<F32>().Arg<F32>().Arg<F32>().Arg<F32>()
                 .Ret<F32>().Ret<ffi::AnyBuffer>().Ret<F32>());

// parts [blocks, 4, width].
static ffi::Error residual_rms_norm_back(
    hipStream_t stream, int32_t columns, ffi::AnyBuffer branch, F32 x, F32 s_h,
    F32 b_h, F32 s_r, F32 b_r, F32 scale, F32 rstd, F32 d_merged,
    ffi::AnyBuffer d_normed, ffi::Result<ffi::AnyBuffer> d_branch,
    ffi::Result<F32> d_x, ffi::Result<F32> parts) {
  Shape shape = shape_of(branch, x, columns);
  if (!shape.width || branch.element_type() != d_normed.element_type())
    return misfit();
  if (!shape.rows) return ffi::Error::Success();
  Vectors vectors{s_h.typed_data(), b_h.typed_data(), s_r.typed_data(),
                  b_r.typed_data(), scale.typed_data()};
  Backward at{branch.untyped_data(), x.typed_data(),
              rstd.typed_data(),     d_merged.typed_data(),
              d_normed.untyped_data(), d_branch->untyped_data(),
              d_x->typed_data(),     parts->typed_data()};
  dim3 grid(parts->dimensions()[0]), block = threads_of(shape);
  if (branch.element_type() == ffi::DataType::F32)
    ZAYA_LAUNCH(residual_rms_norm_back_f32, Shared, grid, block, stream, at,
                vectors, shape);
  else if (branch.element_type() == ffi::DataType::BF16)
    ZAYA_LAUNCH(residual_rms_norm_back_bf16, Shared, grid, block, stream, at,
                vectors, shape);
  else
    return misfit();
  return launched();
}

ZAYA_HANDLER(residual_rms_norm_back, residual_rms_norm_back,
             Bind()
                 .Ctx<Stream>().Attr<int32_t>("columns").Arg<ffi::AnyBuffer>()
                 .Arg<F32>().Arg<F32>().Arg<F32>().Arg<F32>().Arg<F32>()
                 .Arg<F32>().Arg<F32>().Arg<F32>().Arg<ffi::AnyBuffer>()
                 .Ret<ffi::AnyBuffer>().Ret<F32>().Ret<F32>());
