// SPDX-License-Identifier: Apache-2.0
// scale (alpha A B^T + beta C + diagonal I) for stacks of A and B [n, depth], C
// [n, n], where A B^T and C are known to be symmetric: the products of
// Newton-Schulz but the last. Each matrix has its scale. Tiles on and under the diagonal are computed, half of the work;
// the result is symmetric to the last bit.
#include "handler.h"
#include "tile.h"

namespace {

using tile::Along, tile::kThreads, tile::kTile, tile::row_of, tile::Shared,
    tile::Wave;

struct Scales {
  float alpha, beta, diagonal, all;
};

__device__ __forceinline__ void read(const uint16_t* c, int n, int row,
                                     int column, uint16_t (&old)[16]) {
  // Inside the matrix, whether it will be used or not: no branches.
  c += column < n ? column : n - 1;
  ZAYA_UNROLL
  for (int r = 0; r < 16; ++r) {
    int y = row + row_of(r);
    old[r] = c[size_t(y < n ? y : n - 1) * n];
  }
}

// Writes it, and its mirror image: there, 4 rows are 8 bytes of a row.
template <class T>
__device__ __forceinline__ void write(f32x16 sums, Scales s,
                                      const uint16_t (&old)[16], uint16_t* d,
                                      int n, int row, int column) {
  if (column >= n) return;
  uint16_t* mirror = d + size_t(column) * n;
  bool whole = n % 4 == 0 && row > column;
  ZAYA_UNROLL
  for (int group = 0; group < 4; ++group) {
    bits4 bits;
    ZAYA_UNROLL
    for (int r = 0; r < 4; ++r) {
      int i = 4 * group + r, y = row + row_of(i);
      float value = s.alpha * sums[i];
      if (s.beta != 0) value += s.beta * float_of(T{old[i]});
      if (y == column) value += s.diagonal;
      bits[r] = T::of(s.all * value).bits;
      if (y < n && y >= column) {
        d[size_t(y) * n + column] = bits[r];
        if (!whole) mirror[y] = bits[r];
      }
    }
    int y = row + row_of(4 * group);
    if (whole && y < n) *reinterpret_cast<bits4*>(mirror + y) = bits;
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

  Wave wave;
  f32x16 sums[4][2] = {};
  auto rows_of = [&](const uint16_t* m, int first) {
    return Along(depth, [=](int i) {
      return m + size_t(first + i < n ? first + i : n - 1) * depth;
    });
  };
  tile::accumulate<T>(rows_of(at.a, rows), rows_of(at.b, columns), depth, true,
                      shared, sums);
  // C for the next 32 x 32 is on its way while these are written.
  int row = rows + wave.row_of(0, 0), column = columns + wave.column_of(0);
  uint16_t old[2][16] = {};
  if (scales.beta != 0) read(at.c, n, row, column, old[0]);
  ZAYA_UNROLL
  for (int i = 0; i < 8; ++i) {
    int y = row + 32 * (i / 2), x = column + 32 * (i % 2), next = i + 1;
    if (scales.beta != 0 && next < 8)
      read(at.c, n, row + 32 * (next / 2), column + 32 * (next % 2),
           old[next % 2]);
    write<T>(sums[i / 2][i % 2], scales, old[i % 2], at.d, n, y, x);
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
