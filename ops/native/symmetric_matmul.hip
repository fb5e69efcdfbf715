// SPDX-License-Identifier: Apache-2.0
// scale (alpha A B^T + beta C + diagonal I) for stacks of A and B [n, depth], C
// [n, n], where A B^T and C are known to be symmetric: the products of
// Newton-Schulz but the last. Each matrix has its scale. Tiles on and under the diagonal are computed, half of the work;
// the result is symmetric to the last bit.
#include "handler.h"
#include "tile.h"

namespace {

using tile::Along, tile::kOwn, tile::kThreads, tile::kTile, tile::Shared,
    tile::Wave;

struct Scales {
  float alpha, beta, diagonal, all;
};

// A step writes four times four rows of one of the lane's columns.
struct Place {
  int row, column;  // Of the tile.
  Wave wave;
  __device__ __forceinline__ int y(int step, int four) const {
    return row + wave.row_of(step / kOwn * 4 + four);
  }
  __device__ __forceinline__ int x(int step) const {
    return column + wave.column_of(step % kOwn);
  }
};

__device__ __forceinline__ void read(const uint16_t* c, int n, Place place,
                                     int step, uint16_t (&old)[16]) {
  // Inside the matrix, whether it will be used or not: no branches.
  int column = place.x(step);
  c += column < n ? column : n - 1;
  ZAYA_UNROLL
  for (int r = 0; r < 16; ++r) {
    int y = place.y(step, r / 4) + r % 4;
    old[r] = c[size_t(y < n ? y : n - 1) * n];
  }
}

// Writes it, and its mirror image: there, 4 rows are 8 bytes of a row.
template <class T>
__device__ __forceinline__ void write(const tile::Sums& sums, Scales s,
                                      const uint16_t (&old)[16], uint16_t* d,
                                      int n, Place place, int step) {
  int column = place.x(step);
  if (column >= n) return;
  uint16_t* mirror = d + size_t(column) * n;
  bool whole = n % 4 == 0 && place.y(step, 0) > column;
  ZAYA_UNROLL
  for (int four = 0; four < 4; ++four) {
    int row = place.y(step, four);
    f32x4 values = sums.four(step / kOwn * 4 + four, step % kOwn);
    bits4 bits;
    ZAYA_UNROLL
    for (int r = 0; r < 4; ++r) {
      int y = row + r;
      float value = s.alpha * values[r];
      if (s.beta != 0) value += s.beta * float_of(T{old[4 * four + r]});
      if (y == column) value += s.diagonal;
      bits[r] = T::of(s.all * value).bits;
      if (y < n && y >= column) {
        d[size_t(y) * n + column] = bits[r];
        if (!whole) mirror[y] = bits[r];
      }
    }
    if (whole && row < n) *reinterpret_cast<bits4*>(mirror + row) = bits;
  }
}

struct Buffers {
  const uint16_t *a, *b, *c;
  const float* scale;
  uint16_t* d;
};

template <class T>
__device__ __forceinline__ void run(Buffers at, int n, int depth, Scales scales,
                                    Shared& shared) {
  // Which tile of which matrix: 0; 1, 2; 3, 4, 5; ... Of 2048 x 2048 there are
  // 36, one for nearly each of the 38 CU of a die, which share its L2.
  int side = (n + kTile - 1) / kTile, tiles = side * (side + 1) / 2;
  int item = xcd_order(blockIdx.x, gridDim.x), tile = item % tiles;
  int y = int((sqrtf(8.f * tile + 1) - 1) / 2);
  while ((y + 1) * (y + 2) / 2 <= tile) ++y;
  while (y * (y + 1) / 2 > tile) --y;
  int rows = y * kTile, columns = (tile - y * (y + 1) / 2) * kTile;
  size_t matrix = item / tiles;
  at.a += matrix * n * depth;
  at.b += matrix * n * depth;
  at.c += matrix * n * n;
  at.d += matrix * n * n;
  scales.all = at.scale[matrix];

  tile::Sums sums = {};
  auto rows_of = [&](const uint16_t* m, int first) {
    return Along(depth, [=](int i) {
      return m + size_t(first + i < n ? first + i : n - 1) * depth;
    });
  };
  tile::accumulate<T>(rows_of(at.a, rows), rows_of(at.b, columns), depth, true,
                      shared, sums);
  // C for the next 16 values is on its way while these are written.
  Place place{rows, columns, Wave()};
  uint16_t old[2][16] = {};
  if (scales.beta != 0) read(at.c, n, place, 0, old[0]);
  ZAYA_UNROLL
  for (int step = 0; step < 8; ++step) {
    int next = step + 1;
    if (scales.beta != 0 && next < 8) read(at.c, n, place, next, old[next % 2]);
    write<T>(sums, scales, old[step % 2], at.d, n, place, step);
  }
}

}  // namespace

#define KERNEL(type)                                              \
  extern "C" __global__ __launch_bounds__(kThreads) void          \
      symmetric_matmul_##type(Buffers at, int n, int depth,       \
                              Scales scales) {                    \
    ZAYA_SHARED(Shared, shared);                                  \
    run<type>(at, n, depth, scales, shared);                      \
  }
KERNEL(bf16)
KERNEL(f16)

// a, b [.., n, depth]; c [.., n, n], which is not read where beta is 0; scale
// [..], of float.
static ffi::Error symmetric_matmul(hipStream_t stream, ffi::AnyBuffer a,
                                   ffi::AnyBuffer b, ffi::AnyBuffer c,
                                   ffi::AnyBuffer scale, float alpha, float beta, float diagonal,
                                   ffi::Result<ffi::AnyBuffer> d) {
  auto shape = a.dimensions();
  if (shape.size() < 2 || shape.back() % 8 || shape.back() == 0 ||
      b.element_count() != a.element_count() ||
      (beta != 0 && c.element_count() != d->element_count()))
    return ffi::Error::InvalidArgument(
        "symmetric_matmul: needs [.., n, depth] with a depth of 8, 16, ...");
  int depth = shape.back(), n = shape[shape.size() - 2];
  if (scale.element_type() != ffi::DataType::F32 ||
      scale.element_count() * n * depth != a.element_count())
    return ffi::Error::InvalidArgument(
        "symmetric_matmul: needs a float scale for each matrix");
  int side = (n + kTile - 1) / kTile;
  size_t blocks = n ? a.element_count() / n / depth * side * (side + 1) / 2 : 0;
  if (!blocks) return ffi::Error::Success();
  auto bits = [](auto& x) { return static_cast<uint16_t*>(x.untyped_data()); };
  Buffers at{bits(a), bits(b), bits(c),
             static_cast<const float*>(scale.untyped_data()), bits(*d)};
  Scales scales{alpha, beta, diagonal, 1};
  if (a.element_type() == ffi::DataType::BF16)
    ZAYA_LAUNCH(symmetric_matmul_bf16, Shared, dim3(blocks), dim3(kThreads),
                stream, at, n, depth, scales);
  else if (a.element_type() == ffi::DataType::F16)
    ZAYA_LAUNCH(symmetric_matmul_f16, Shared, dim3(blocks), dim3(kThreads),
                stream, at, n, depth, scales);
  else
    return ffi::Error::InvalidArgument("symmetric_matmul: needs 16-bit floats");
  return launched();
}

ZAYA_HANDLER(symmetric_matmul, symmetric_matmul,
             Bind()
                 .Ctx<Stream>()
                 .Arg<ffi::AnyBuffer>()
                 .Arg<ffi::AnyBuffer>()
                 .Arg<ffi::AnyBuffer>()
                 .Arg<ffi::AnyBuffer>()
                 .Attr<float>("alpha")
                 .Attr<float>("beta")
                 .Attr<float>("diagonal")
                 .Ret<ffi::AnyBuffer>());
