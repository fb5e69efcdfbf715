// SPDX-License-Identifier: Apache-2.0
// A wave's part of a tile of tile.h: which matrix instructions multiply it,
// what they read of LDS, and where the sums are.
#pragma once
#include "port.h"

namespace tile {

// 8 waves of 128 x 64: 128 accumulators a lane, which leaves 128 of the 256
// registers that two waves per SIMD may have. Per 16 of depth a wave reads
// 6 KiB of LDS for 16 MFMA of 32 cycles: 48 of the 128 bytes per cycle that LDS
// gives. 128 x 128 tiles would read twice as much from L2, 32 bytes per cycle
// and CU, where it gives about 54.
constexpr int kTile = 256, kThreads = 512, kRows = 128, kColumns = 64;
// The depth of a stage; LDS has two.
constexpr int kStage = 32;

// The matrix instruction, a choice of the build: 32 x 32 of 8 of depth, or 16 x
// 16 of 16 in half the time. Both need the same registers and reads of LDS.
#if !defined(ZAYA_MFMA)
#define ZAYA_MFMA 32
#endif
constexpr int kEdge = ZAYA_MFMA;
static_assert(kEdge == 32 || kEdge == 16, "ZAYA_MFMA is 32 or 16");
// Of its wave's part a lane has so many columns, and of each column so many
// times four consecutive rows.
constexpr int kOwn = kColumns / kEdge, kFours = kRows * kEdge / kWave / 4;

// One operand of a stage: `kStage` of depth, of each row of A or column of B.
typedef uint16_t Stage[kTile * kStage];

// 16-byte pieces of a row are permuted by the row: LDS serves 16-byte reads to
// 8 lanes at a time (4 + 4 consecutive rows here), which so meet all 32 banks.
// Padding instead would not fit. Two rows fill the banks, and change places in
// every second run of 8: so do the 8-byte writes of `Across`, 8 rows apart.
__device__ __forceinline__ int place(int row, int piece) {
  return (row ^ (row >> 3 & 1)) * kStage + (piece ^ (row >> 1 & 3)) * 8;
}

// The part of the tile that this thread's wave computes. Of the first 128
// columns each SIMD has one wave, and one of the others.
struct Wave {
  int lane, row, column;
  __device__ __forceinline__ Wave()
      : lane(threadIdx.x % kWave),
        row(threadIdx.x / kWave % 2 * kRows),
        column(threadIdx.x / kWave / 2 * kColumns) {}
  // Of the sums: the first of the `four`-th four rows, and the `own`-th column.
  __device__ __forceinline__ int row_of(int four) const {
    return row + 4 * (kWave / kEdge * four + lane / kEdge);
  }
  __device__ __forceinline__ int column_of(int own) const {
    return column + kEdge * own + lane % kEdge;
  }
};

// What a wave multiplies of a stage, 16 bytes along the depth of each row, in
// four quarters of 256 cycles. Before each quarter, `read` replaces what none
// needs any more by what the next one or two need: in front of the third and
// the fourth, of the next stage.
struct Operands {
  bits8 a[2][4], b[2][2];
};
template <int count>
__device__ __forceinline__ void read(const Stage& stage, int row, int piece,
                                     bits8 (&to)[count]) {
  ZAYA_UNROLL
  for (int i = 0; i < count; ++i)
    to[i] = *reinterpret_cast<const bits8*>(
        &stage[place(row + kEdge * i, piece)]);
}

template <int edge>
struct Mfma;

// A quarter is 8 of depth of the wave's part. Of 16 of depth lane l has
// 8 (l / 32) + 0..7, 4 for each of two quarters.
template <>
struct Mfma<32> {
  typedef f32x16 Tile;

  __device__ __forceinline__ static void read(const Stage (&stage)[2],
                                              int quarter, Wave wave,
                                              Operands& to) {
    if (quarter % 2) return;
    int next = 1 - quarter / 2, piece = 2 * next + wave.lane / 32;
    tile::read(stage[0], wave.row + wave.lane % 32, piece, to.a[next]);
    tile::read(stage[1], wave.column + wave.lane % 32, piece, to.b[next]);
  }

  template <class T>
  __device__ __forceinline__ static void multiply(const Operands& of,
                                                  int quarter,
                                                  Tile (&tiles)[4][2]) {
    int step = quarter / 2, half = quarter % 2;
    ZAYA_UNROLL
    for (int i = 0; i < 4; ++i)
      ZAYA_UNROLL
      for (int j = 0; j < 2; ++j)
        tiles[i][j] = mfma(T(), half_of(of.a[step][i], half),
                           half_of(of.b[step][j], half), tiles[i][j]);
  }
};

// A quarter is 64 x 32 of the wave's part, of all depth. Of 32 of depth lane l
// has 8 (l / 16) + 0..7, 4 for each of two MFMA.
template <>
struct Mfma<16> {
  typedef f32x4 Tile;

  __device__ __forceinline__ static void read(const Stage (&stage)[2],
                                              int quarter, Wave wave,
                                              Operands& to) {
    int row = wave.lane % 16, piece = wave.lane / 16;
    if (quarter == 0)
      tile::read(stage[1], wave.column + 32 + row, piece, to.b[1]);
    if (quarter == 1)
      tile::read(stage[0], wave.row + 64 + row, piece, to.a[1]);
    if (quarter == 2) tile::read(stage[0], wave.row + row, piece, to.a[0]);
    if (quarter == 3) tile::read(stage[1], wave.column + row, piece, to.b[0]);
  }

  template <class T>
  __device__ __forceinline__ static void multiply(const Operands& of,
                                                  int quarter,
                                                  Tile (&tiles)[8][4]) {
    int down = quarter / 2, right = quarter % 2;
    ZAYA_UNROLL
    for (int n = 0; n < 16; ++n) {
      int half = n / 8, i = n / 2 % 4, j = n % 2;
      auto& tile = tiles[4 * down + i][2 * right + j];
      tile = mfma(T(), half_of(of.a[down][i], half),
                  half_of(of.b[right][j], half), tile);
    }
  }
};

// All that a lane sums.
struct Sums {
  Mfma<kEdge>::Tile tiles[kRows / kEdge][kColumns / kEdge];
  __device__ __forceinline__ f32x4 four(int four, int own) const {
    constexpr int kEach = kEdge * kEdge / kWave / 4;  // Fours of a tile.
    f32x4 out;
    ZAYA_UNROLL
    for (int r = 0; r < 4; ++r)
      out[r] = tiles[four / kEach][own][four % kEach * 4 + r];
    return out;
  }
};

// Where rows of A are consecutive in the result, four are one store of 8 bytes.
template <class T>
__device__ __forceinline__ bits4 four_of(const f32x4& values) {
  uint64_t high = T::two(values[2], values[3]);
  return bits_of<bits4>(high << 32 | T::two(values[0], values[1]));
}

}  // namespace tile
