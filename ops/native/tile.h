// SPDX-License-Identifier: Apache-2.0
// A tile of 256 x 256 of a product A B of 16-bit floats, by one block: both
// operands through LDS into matrix instructions, sums in registers.
#pragma once
#include "wave.h"

namespace tile {

// Two stages fill the 64 KiB of LDS. Both are fetched together, 128 bytes of a
// row: L1 (32 KiB) would lose a line of L2 (128 bytes) before its second half
// were wanted.
constexpr int kChunk = 2 * kStage;

struct Shared {
  Stage stages[2][2];  // Each of A, then of B.
};

__device__ __forceinline__ int least(int a, int b) { return a < b ? a : b; }
__host__ __device__ __forceinline__ int tiles_of(int size, int tile) {
  return (size + tile - 1) / tile;
}

// The order of rows x columns tiles, for `grid_of` blocks: the 38 CU of a die
// work on 4 tiles of rows times 9 or 10 of columns, which have 13 or 14 panels
// to read; 38 in a line have 18 or more. Of ZAYA1's experts, 4 are the rows of
// 1024 tokens.
constexpr int kGroup = 4;
inline dim3 grid_of(int rows, int columns) {
  return dim3(tiles_of(rows, kGroup) * kGroup * columns);
}
// False: this block has no tile. The grid may be larger than that of `rows`;
// dies share what there is, not the room that there could be.
__device__ __forceinline__ bool turn_of(int rows, int columns, int& row,
                                        int& column) {
  int blocks = tiles_of(rows, kGroup) * kGroup * columns;
  if (int(blockIdx.x) >= blocks) return false;
  int item = xcd_order(blockIdx.x, blocks);
  int within = item % (kGroup * columns);
  row = item / (kGroup * columns) * kGroup + within % kGroup;
  column = within / kGroup;
  return row < rows;
}

// Behind the end of n, of 8, 16, ..., the last 8 come again: they are loaded,
// computed and stored, the same twice, without branches.
__device__ __forceinline__ int within(int i, int n) {
  int again = n - 8 + (i & 7);
  return i < n ? i : again;
}

// An operand that lies along the depth. Of each stage this thread carries a
// piece of two rows from memory to LDS.
struct Along {
  const uint16_t* from[2];
  int depth;

  // `row_at(row)` is where the row of the tile begins, of all 256. Rows behind
  // the end of a matrix may repeat others: their products are not stored.
  template <class RowAt>
  __device__ __forceinline__ Along(int depth, RowAt row_at) : depth(depth) {
    ZAYA_UNROLL
    for (int i = 0; i < 2; ++i)
      from[i] = row_at(int(threadIdx.x) / 4 + i * (kTile / 2));
  }
  __device__ __forceinline__ static int piece() { return threadIdx.x % 4; }

  __device__ __forceinline__ void fetch(int k, bits8 (&pieces)[4]) const {
    ZAYA_UNROLL
    for (int i = 0; i < 4; ++i) {
      int at = k + i / 2 * kStage + piece() * 8;
      at = at < depth ? at : depth - 8;
      pieces[i] = *(const ZAYA_GLOBAL bits8*)(from[i % 2] + at);
    }
  }

  // Zeros past the depth: here, since at `fetch` it would wait for the memory.
  __device__ __forceinline__ void put(int stage, int k,
                                      const bits8 (&pieces)[4],
                                      Stage& to) const {
    bool inside = k + stage * kStage + piece() * 8 < depth;
    ZAYA_UNROLL
    for (int i = 0; i < 2; ++i) {
      int row = int(threadIdx.x) / 4 + i * (kTile / 2);
      *reinterpret_cast<bits8*>(&to[place(row, piece())]) =
          inside ? pieces[2 * stage + i] : bits8{};
    }
  }
};

// An operand that lies across the depth, and is turned on its way: this thread
// carries 4 of depth of 8 rows (of A^T, or columns of B), half of the waves
// those of each stage. 8 lanes have a line of 128 bytes.
struct Across {
  const uint16_t* from;
  int stride, depth;

  // `start` is where row() of the tile is at depth 0. In memory the 8 rows
  // follow each other; `stride` leads from one depth to the next one.
  __device__ __forceinline__ Across(const uint16_t* start, int stride,
                                    int depth)
      : from(start), stride(stride), depth(depth) {}
  __device__ __forceinline__ static int row() {
    return threadIdx.x / 8 % 32 * 8;
  }
  __device__ __forceinline__ static int stage() { return threadIdx.x / 256; }
  __device__ __forceinline__ static int first() { return threadIdx.x % 8 * 4; }

  __device__ __forceinline__ void fetch(int k, bits8 (&pieces)[4]) const {
    ZAYA_UNROLL
    for (int i = 0; i < 4; ++i) {
      int at = k + stage() * kStage + first() + i;
      at = at < depth ? at : depth - 1;
      pieces[i] = *(const ZAYA_GLOBAL bits8*)(from + size_t(at) * stride);
    }
  }

  __device__ __forceinline__ void put(int stage, int k,
                                      const bits8 (&pieces)[4],
                                      Stage& to) const {
    if (stage != Across::stage()) return;
    int left = depth - (k + stage * kStage + first());
    ZAYA_UNROLL
    for (int row = 0; row < 8; ++row) {
      bits4 turned;
      ZAYA_UNROLL
      for (int i = 0; i < 4; ++i) turned[i] = i < left ? pieces[i][row] : 0;
      int at = place(Across::row() + row, first() / 8) + first() % 8;
      *reinterpret_cast<bits4*>(&to[at]) = turned;
    }
  }
};

// sums += A B of a depth > 0. A wave of which nothing is wanted carries only.
//
// All that waits for memory is hidden by MFMA, 512 cycles a quarter of the two
// waves of a SIMD: LDS is read one or two quarters ahead, and written between
// two; memory is read a stage or two ahead. A stage is written as soon as all
// waves have read it: one barrier per stage.
template <class T, class A, class B>
__device__ __forceinline__ void accumulate(const A& a, const B& b, int depth,
                                           bool wanted, Shared& shared,
                                           Sums& sums) {
  static_assert(kStage == 32, "four quarters");
  Wave wave;
  bits8 of_a[4], of_b[4];
  auto fetch = [&](int k) {
    a.fetch(k, of_a);
    b.fetch(k, of_b);
  };
  auto put = [&](int stage, int k) {
    a.put(stage, k, of_a, shared.stages[stage][0]);
    b.put(stage, k, of_b, shared.stages[stage][1]);
  };
  wanted = uniform(wanted);
  Operands operands;
  auto read = [&](int stage, int quarter) {
    if (wanted)
      Mfma<kEdge>::read(shared.stages[stage], quarter, wave, operands);
  };
  auto multiply = [&](int quarter) {
    ZAYA_IN_THIS_ORDER();
    if (wanted) Mfma<kEdge>::multiply<T>(operands, quarter, sums.tiles);
    ZAYA_IN_THIS_ORDER();
  };
  fetch(0);
  put(0, 0);
  __syncthreads();
  read(0, 2);
  read(0, 3);
  for (int k = 0; k < depth; k += kChunk) {
    int next = k + kChunk;
    read(0, 0);
    multiply(0);
    read(0, 1);
    put(1, k);
    multiply(1);
    if (next < depth) fetch(next);
    __syncthreads();
    read(1, 2);
    multiply(2);
    read(1, 3);
    multiply(3);
    read(1, 0);
    multiply(0);
    read(1, 1);
    if (next < depth) put(0, next);
    multiply(1);
    __syncthreads();
    read(0, 2);
    multiply(2);
    read(0, 3);
    multiply(3);
  }
}

}  // namespace tile
