// SPDX-License-Identifier: Apache-2.0
// The gradients of the experts' matrices: x^T dy over the sorted rows of each.
#include "handler.h"
#include "tile.h"

namespace {

using tile::Across, tile::kFours, tile::kTile, tile::Shared, tile::tiles_of,
    tile::Wave, tile::within;

struct DWeights {
  const uint16_t *x, *dy;
  const int* starts;
  uint16_t* d_w;
};

// Both operands lie across the depth, which is the rows of the expert. What is
// multiplied is dy^T x: so a lane has consecutive columns of a row.
template <class T>
__device__ __forceinline__ void d_weights(DWeights at, int experts, int height,
                                          int width, Shared& shared) {
  int side = tiles_of(height, kTile), place, column;
  if (!tile::turn_of(experts * side, tiles_of(width, kTile), place, column))
    return;
  int expert = place / side, row = place % side * kTile;
  column *= kTile;
  int first = at.starts[expert], depth = at.starts[expert + 1] - first;
  Wave wave;
  bool wanted = row + wave.column < height;
  tile::Sums sums = {};
  if (depth > 0) {
    Across x(at.x + size_t(first) * height +
                 within(row + Across::row(), height),
             height, depth);
    Across dy(at.dy + size_t(first) * width +
                  within(column + Across::row(), width),
              width, depth);
    tile::accumulate<T>(dy, x, depth, wanted, shared, sums);
  }
  if (!wanted) return;
  uint16_t* d_w = at.d_w + size_t(expert) * height * width;
  ZAYA_UNROLL
  for (int step = 0; step < 32; ++step) {
    int own = step / kFours, four = step % kFours;
    int y = within(row + wave.column_of(own), height);
    int x = within(column + wave.row_of(four), width);
    *(ZAYA_GLOBAL bits4*)(d_w + size_t(y) * width + x) =
        tile::four_of<T>(sums.four(four, own));
  }
}

}  // namespace

extern "C" __global__ __launch_bounds__(tile::kThreads) void
experts_d_weights_bf16(DWeights at, int experts, int height, int width) {
  ZAYA_SHARED(Shared, shared);
  d_weights<bf16>(at, experts, height, width, shared);
}

using Bits = ffi::Buffer<ffi::BF16>;
using Ints = ffi::Buffer<ffi::S32>;

// x [T, K], dy [T, N], starts [E + 1] -> d_w [E, K, N].
static ffi::Error experts_d_weights(hipStream_t stream, Bits x, Bits dy,
                                    Ints starts, ffi::Result<Bits> d_w) {
  auto sizes = d_w->dimensions();
  int experts = sizes[0], height = sizes[1], width = sizes[2];
  if (height <= 0 || width <= 0 || height % 8 || width % 8 ||
      x.dimensions()[1] != height || dy.dimensions()[1] != width)
    return ffi::Error::InvalidArgument(
        "experts_d_weights: needs matching sizes of 8, 16, ..");
  auto bits = [](auto& b) { return static_cast<uint16_t*>(b.untyped_data()); };
  DWeights at{bits(x), bits(dy), starts.typed_data(), bits(*d_w)};
  ZAYA_LAUNCH(experts_d_weights_bf16, Shared,
              tile::grid_of(experts * tiles_of(height, kTile),
                            tiles_of(width, kTile)),
              dim3(tile::kThreads), stream, at, experts, height, width);
  return launched();
}

ZAYA_HANDLER(experts_d_weights, experts_d_weights,
             Bind()
                 .Ctx<Stream>().Arg<Bits>().Arg<Bits>().Arg<Ints>()
                 .Ret<Bits>());
