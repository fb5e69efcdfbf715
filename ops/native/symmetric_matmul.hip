// SPDX-License-Identifier: Apache-2.0
// alpha A B^T + beta C + diagonal I for stacks of A and B [n, depth], C [n, n],
// where A B^T and C are known to be symmetric: the products of Newton-Schulz
// but the last. Tiles on and under the diagonal are computed, half of the work;
// the result is symmetric to the last bit.
#include "handler.h"

namespace {

// A tile has 256 x 256 values, 8 waves of 128 x 64: 128 accumulators a lane,
// which leaves 128 of the 256 registers that two waves per SIMD may have. Per
// 16 of depth a wave reads 6 KiB of LDS for 16 MFMA of 32 cycles: 48 of the
// 128 bytes per cycle that LDS gives. 128 x 128 tiles would read twice as much
// from L2, 32 bytes per cycle and CU, where it gives about 54.
constexpr int kTile = 256, kThreads = 512, kRows = 128, kColumns = 64;
// Two stages fill the 64 KiB of LDS. Both are fetched together, 128 bytes of a
// row: L1 (32 KiB) would lose a line of L2 (128 bytes) before its second half
// were wanted.
constexpr int kStage = 32, kChunk = 2 * kStage;

struct Shared {
  uint16_t stages[2][2][kTile * kStage];  // Each of rows, then of columns.
};

// 16-byte pieces of a row are permuted by the row: LDS serves 16-byte reads to
// 8 lanes at a time (4 + 4 consecutive rows here), which so meet all 32 banks.
// Padding instead would not fit.
__device__ __forceinline__ int place(int row, int piece) {
  return row * kStage + ((piece ^ (row >> 1 & 3)) * 8);
}

// What one thread carries from memory to LDS: a piece of 2 rows and 2 columns.
struct Carrier {
  const uint16_t* from[4];
  int piece, row, depth;

  __device__ __forceinline__ Carrier(const uint16_t* a, const uint16_t* b,
                                     int n, int depth, int rows, int columns)
      : piece(threadIdx.x % 4), row(threadIdx.x / 4), depth(depth) {
    ZAYA_UNROLL
    for (int i = 0; i < 4; ++i) {
      int at = (i < 2 ? rows : columns) + row + i % 2 * (kTile / 2);
      // Rows past the end repeat the last one; their products are not stored.
      from[i] = (i < 2 ? a : b) + size_t(at < n ? at : n - 1) * depth;
    }
  }

  __device__ __forceinline__ void fetch(int k, bits8 (&pieces)[4]) const {
    k += piece * 8;
    k = k < depth ? k : depth - 8;
    ZAYA_UNROLL
    for (int i = 0; i < 4; ++i)
      pieces[i] = *reinterpret_cast<const bits8*>(from[i] + k);
  }

  // Zeros past the depth: here, since at `fetch` it would wait for the memory.
  __device__ __forceinline__ void put(int k, const bits8 (&pieces)[4],
                      uint16_t (&stage)[2][kTile * kStage]) const {
    bool inside = k + piece * 8 < depth;
    ZAYA_UNROLL
    for (int i = 0; i < 4; ++i) {
      int to = place(row + i % 2 * (kTile / 2), piece);
      *reinterpret_cast<bits8*>(&stage[i / 2][to]) =
          inside ? pieces[i] : bits8{};
    }
  }
};

// Lane l reads depth 8 (l / 32) + 0..7 of each 16: 4 for each of two MFMA.
template <class T>
__device__ __forceinline__ void multiply(
    const uint16_t (&stage)[2][kTile * kStage], int row, int column,
    f32x16 (&sums)[4][2]) {
  int lane = threadIdx.x % kWave;
  ZAYA_UNROLL
  for (int step = 0; step < kStage / 16; ++step) {
    int piece = 2 * step + lane / 32;
    bits8 a[4], b[2];
    ZAYA_UNROLL
    for (int i = 0; i < 4; ++i)
      a[i] = *reinterpret_cast<const bits8*>(
          &stage[0][place(row + 32 * i + lane % 32, piece)]);
    ZAYA_UNROLL
    for (int j = 0; j < 2; ++j)
      b[j] = *reinterpret_cast<const bits8*>(
          &stage[1][place(column + 32 * j + lane % 32, piece)]);
    ZAYA_UNROLL
    for (int half = 0; half < 2; ++half)
      ZAYA_UNROLL
      for (int i = 0; i < 4; ++i)
        ZAYA_UNROLL
        for (int j = 0; j < 2; ++j)
          sums[i][j] = mfma_32x32x8(T(), half_of(a[i], half),
                                    half_of(b[j], half), sums[i][j]);
  }
}

struct Scales {
  float alpha, beta, diagonal;
};

// Of what one MFMA gives, this lane has 4 times 4 rows of a column.
__device__ __forceinline__ int row_of(int r) { return 8 * (r / 4) + r % 4; }

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
      bits[r] = T::of(value).bits;
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

  int wave = threadIdx.x / kWave, lane = threadIdx.x % kWave;
  int row = wave / 4 * kRows, column = wave % 4 * kColumns;
  f32x16 sums[4][2] = {};
  bits8 first[4], second[4];
  Carrier carrier(at.a, at.b, n, depth, rows, columns);
  carrier.fetch(0, first);
  carrier.fetch(kStage, second);
  carrier.put(0, first, shared.stages[0]);
  carrier.put(kStage, second, shared.stages[1]);
  __syncthreads();
  // The next chunk is on its way while this one is multiplied, and goes into a
  // stage as soon as all waves have left it: one barrier per stage.
  for (int k = 0; k < depth; k += kChunk) {
    int next = k + kChunk;
    if (next < depth) {
      carrier.fetch(next, first);
      carrier.fetch(next + kStage, second);
    }
    multiply<T>(shared.stages[0], row, column, sums);
    __syncthreads();
    if (next < depth) carrier.put(next, first, shared.stages[0]);
    multiply<T>(shared.stages[1], row, column, sums);
    __syncthreads();
    if (next < depth) carrier.put(next + kStage, second, shared.stages[1]);
  }
  // C for the next 32 x 32 is on its way while these are written.
  row += rows + 4 * (lane / 32), column += columns + lane % 32;
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

// a, b [.., n, depth]; c [.., n, n], which is not read where beta is 0.
static ffi::Error symmetric_matmul(hipStream_t stream, ffi::AnyBuffer a,
                                   ffi::AnyBuffer b, ffi::AnyBuffer c,
                                   float alpha, float beta, float diagonal,
                                   ffi::Result<ffi::AnyBuffer> d) {
  auto shape = a.dimensions();
  if (shape.size() < 2 || shape.back() % 8 || shape.back() == 0 ||
      b.element_count() != a.element_count() ||
      (beta != 0 && c.element_count() != d->element_count()))
    return ffi::Error::InvalidArgument(
        "symmetric_matmul: needs [.., n, depth] with a depth of 8, 16, ...");
  int depth = shape.back(), n = shape[shape.size() - 2];
  int side = (n + kTile - 1) / kTile;
  size_t blocks = n ? a.element_count() / n / depth * side * (side + 1) / 2 : 0;
  if (!blocks) return ffi::Error::Success();
  auto bits = [](auto& x) { return static_cast<uint16_t*>(x.untyped_data()); };
  Buffers at{bits(a), bits(b), bits(c), bits(*d)};
  Scales scales{alpha, beta, diagonal};
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
                 .Attr<float>("alpha")
                 .Attr<float>("beta")
                 .Attr<float>("diagonal")
                 .Ret<ffi::AnyBuffer>());
