// SPDX-License-Identifier: Apache-2.0
// Muon's momentum of many tensors in one launch, one pass over memory.
#include "handler.h"

namespace {

// Tensors of a launch: their table is 3 KiB, of 4 that arguments may have.
constexpr int kTensors = 64;
// A thread has 8 values at a time, 16 bytes of bfloat16: with 8 waves per SIMD
// a CU has 96 KiB of reads on the way, five times what a microsecond of HBM
// brings it. Four times in turn, so that finding the tensor costs little.
constexpr int kThreads = 256, kTurns = 4, kBlock = kThreads * 8 * kTurns;

struct Tensor {
  const void *x, *y;  // momentum and gradient
  void *out, *ahead;
  int64_t size;
  int32_t first_block;
};
struct Table {
  Tensor tensors[kTensors];
  int count;
};

// The tensor of this block: a block has no parts of two.
__device__ __forceinline__ const Tensor& of_block(const Table& table) {
  int low = 0, high = table.count;
  while (high - low > 1) {
    int middle = (low + high) / 2;
    if (int(blockIdx.x) >= table.tensors[middle].first_block)
      low = middle;
    else
      high = middle;
  }
  return table.tensors[low];
}

// Calls f(place, how many of 8) for what this thread has of the tensor.
template <class F>
__device__ __forceinline__ void each(const Tensor& t, F f) {
  int64_t start = int64_t(int(blockIdx.x) - t.first_block) * kBlock;
  ZAYA_UNROLL
  for (int turn = 0; turn < kTurns; ++turn) {
    int64_t at = start + (turn * kThreads + int(threadIdx.x)) * 8;
    int64_t left = t.size - at;
    if (left > 0) f(at, left < 8 ? int(left) : 8);
  }
}

template <class Grad, class Ahead>
__device__ __forceinline__ void momentum(const Table& table,
                                         const float* scale,
                                         const int32_t* apply, float decay,
                                         int nesterov) {
  const Tensor& t = of_block(table);
  float factor = *scale;
  bool changes = *apply;
  each(t, [&](int64_t at, int count) {
    float m[8], g[8];
    load8(static_cast<const f32*>(t.x) + at, count, m);
    load8(static_cast<const Grad*>(t.y) + at, count, g);
    ZAYA_UNROLL
    for (int i = 0; i < 8; ++i) {
      g[i] *= factor;
      float now = decay * m[i] + g[i];
      g[i] = nesterov ? g[i] + decay * now : now;
      m[i] = changes ? now : m[i];
    }
    store8(static_cast<f32*>(t.out) + at, count, m);
    store8(static_cast<Ahead*>(t.ahead) + at, count, g);
  });
}

}  // namespace

#define MOMENTUM(grad, ahead)                                      \
  extern "C" __global__ __launch_bounds__(kThreads) void           \
      muon_momentum_##grad##_##ahead(                              \
          Table table, const float* scale, const int32_t* apply,   \
          float decay, int nesterov) {                             \
    momentum<grad, ahead>(table, scale, apply, decay, nesterov);   \
  }
MOMENTUM(f32, f32)
MOMENTUM(f32, bf16)
MOMENTUM(f32, f16)
MOMENTUM(bf16, f32)
MOMENTUM(bf16, bf16)
MOMENTUM(bf16, f16)

// Fills tables of x = args[0 .. n), y = args[n .. 2n), out = rets[0 .. n) and
// ahead = rets[n .. 2n); launch(grid, table) for each.
template <class Launch>
static ffi::Error for_tables(ffi::RemainingArgs args, ffi::RemainingRets rets,
                             size_t n, Launch launch) {
  Table table;
  table.count = 0;
  int64_t blocks = 0;
  auto flush = [&] {
    if (blocks) launch(dim3(blocks), table);
    table.count = 0, blocks = 0;
  };
  for (size_t i = 0; i < n; ++i) {
    auto x = *args.get<ffi::AnyBuffer>(i), y = *args.get<ffi::AnyBuffer>(n + i);
    auto out = *rets.get<ffi::AnyBuffer>(i);
    int64_t size = x.element_count();
    int64_t mine = (size + kBlock - 1) / kBlock;
    if (table.count == kTensors || blocks + mine > INT32_MAX) flush();
    if (!mine) continue;
    table.tensors[table.count++] = Tensor{
        x.untyped_data(), y.untyped_data(), out->untyped_data(),
        (*rets.get<ffi::AnyBuffer>(n + i))->untyped_data(), size,
        int32_t(blocks)};
    blocks += mine;
  }
  flush();
  return launched();
}

static ffi::Error muon_momentum(hipStream_t stream,
                                ffi::Buffer<ffi::F32> scale,
                                ffi::Buffer<ffi::S32> apply, float decay,
                                int32_t nesterov, ffi::RemainingArgs args,
                                ffi::RemainingRets rets) {
  size_t n = args.size() / 2;
  const float* factor = scale.typed_data();
  const int32_t* changes = apply.typed_data();
  if (!n) return ffi::Error::Success();
  auto grad = (*args.get<ffi::AnyBuffer>(n)).element_type();
  auto ahead = (*rets.get<ffi::AnyBuffer>(n))->element_type();
#define CASE(grad_type, GRAD, ahead_type, AHEAD)                             \
  if (grad == ffi::DataType::GRAD && ahead == ffi::DataType::AHEAD)          \
    return for_tables(args, rets, n, [&](dim3 grid, Table& table) {          \
      ZAYA_LAUNCH(muon_momentum_##grad_type##_##ahead_type, NoShared, grid,  \
                  dim3(kThreads), stream, table, factor, changes, decay,     \
                  nesterov);                                                 \
    });
  CASE(f32, F32, f32, F32)
  CASE(f32, F32, bf16, BF16)
  CASE(f32, F32, f16, F16)
  CASE(bf16, BF16, f32, F32)
  CASE(bf16, BF16, bf16, BF16)
  CASE(bf16, BF16, f16, F16)
#undef CASE
  return ffi::Error::InvalidArgument("muon_momentum: no kernel of these types");
}

ZAYA_HANDLER(muon_momentum, muon_momentum,
             Bind()
                 .Ctx<Stream>()
                 .Arg<ffi::Buffer<ffi::F32>>()
                 .Arg<ffi::Buffer<ffi::S32>>()
                 .Attr<float>("decay")
                 .Attr<int32_t>("nesterov")
                 .RemainingArgs()
                 .RemainingRets());
