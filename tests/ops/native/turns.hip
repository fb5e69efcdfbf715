// SPDX-License-Identifier: Apache-2.0
// Which tile each block has, as the kernels ask for it.
#include "handler.h"
#include "tile.h"

extern "C" __global__ void turns_kernel(int rows, int columns, int* found) {
  int row, column;
  bool has = tile::turn_of(rows, columns, row, column);
  found[blockIdx.x] = has ? row * columns + column : -1;
}

static ffi::Error turns(hipStream_t stream, int32_t rows, int32_t columns,
                        ffi::Result<ffi::Buffer<ffi::S32>> found) {
  ZAYA_LAUNCH(turns_kernel, NoShared, dim3(found->element_count()), dim3(1),
              stream, rows, columns, found->typed_data());
  return launched();
}
ZAYA_HANDLER(turns, turns,
             Bind().Ctx<Stream>().Attr<int32_t>("rows")
                 .Attr<int32_t>("columns").Ret<ffi::Buffer<ffi::S32>>());
