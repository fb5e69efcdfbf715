// SPDX-License-Identifier: Apache-2.0
// What tile.h and wave.h decide, for tests: which tile a block has, where in
// LDS 16 bytes of a row are.
#include "handler.h"
#include "tile.h"

using Ints = ffi::Buffer<ffi::S32>;

extern "C" __global__ void turns_kernel(int rows, int columns, int* found) {
  int row, column;
  bool has = tile::turn_of(rows, columns, row, column);
  found[blockIdx.x] = has ? row * columns + column : -1;
}

static ffi::Error turns(hipStream_t stream, int32_t rows, int32_t columns,
                        ffi::Result<Ints> found) {
  ZAYA_LAUNCH(turns_kernel, NoShared, dim3(found->element_count()), dim3(1),
              stream, rows, columns, found->typed_data());
  return launched();
}
ZAYA_HANDLER(turns, turns,
             Bind().Ctx<Stream>().Attr<int32_t>("rows")
                 .Attr<int32_t>("columns").Ret<Ints>());

// In bytes, of each row and piece.
extern "C" __global__ void places_kernel(int* found) {
  int row = threadIdx.x;
  for (int piece = 0; piece < 4; ++piece)
    found[4 * row + piece] = 2 * tile::place(row, piece);
}

static ffi::Error places(hipStream_t stream, ffi::Result<Ints> found) {
  ZAYA_LAUNCH(places_kernel, NoShared, dim3(1), dim3(tile::kTile), stream,
              found->typed_data());
  return launched();
}
ZAYA_HANDLER(places, places, Bind().Ctx<Stream>().Ret<Ints>());
