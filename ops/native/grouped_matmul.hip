// SPDX-License-Identifier: Apache-2.0
// Products of sorted tokens with the matrix of each one's expert, forward and
// back: `Products` of ops/experts/api.py, in the same names. Tiles of rows are
// those of ops/experts/sorting.py; a tile has rows of one expert.
#include "handler.h"
#include "tile.h"

namespace {

using tile::Across, tile::Along, tile::kTile, tile::least, tile::Shared,
    tile::tiles_of, tile::Wave;

struct Tiles {
  const int *expert, *first, *end, *live;  // live: how many are not empty.
  int count, experts;
};

// What a block computes: of rows [first, end) the first 256.
struct Item {
  int expert, first, end, column;
  bool has_expert;
  // Where a row of the tile is. Behind the end it is the last one again, which
  // is loaded, computed and stored: the same twice, without branches.
  __device__ __forceinline__ int row(int i) const {
    return least(first + i, end - 1);
  }
  // Whether this wave has a row of its own; others only carry.
  __device__ __forceinline__ bool wants(const Wave& wave) const {
    return first + wave.row < end;
  }
};

// False: this block has nothing to do.
__device__ __forceinline__ bool find(const Tiles& tiles, int columns,
                                     Item& item) {
  int place;
  if (!tile::turn_of(*tiles.live, columns, place, item.column)) return false;
  item.expert = tiles.expert[place];
  item.has_expert = item.expert < tiles.experts;
  item.first = tiles.first[place];
  item.end = tiles.end[place];
  return item.first < item.end;
}

// A tile has 128 columns of gate and the same of up: a wave 32 and 32, so that
// a lane has both factors of what it writes.
constexpr int kHalf = kTile / 2;

struct Up {
  const uint16_t *x, *gate_up;
  const int* order;
  uint16_t *a, *slopes;  // slopes: or null.
};

template <class T>
__device__ __forceinline__ void up(Up at, Tiles tiles, int width, int inner,
                                   Shared& shared) {
  Item item;
  if (!find(tiles, tiles_of(inner, kHalf), item)) return;
  Wave wave;
  f32x16 sums[4][2] = {};
  if (item.has_expert) {
    Along x(width, [&](int i) {
      return at.x + size_t(at.order[item.row(i)]) * width;
    });
    int row = Across::row();
    int column = item.column * kHalf + row / 64 * 32 + row % 32;
    column = least(column, inner - 8) + row / 32 % 2 * inner;
    Across w(at.gate_up + size_t(item.expert) * width * 2 * inner + column,
             2 * inner, width);
    tile::accumulate<T>(x, w, width, item.wants(wave), shared, sums);
  }
  int column = item.column * kHalf + wave.column / 2 + wave.lane % 32;
  if (column >= inner || !item.wants(wave)) return;
  ZAYA_UNROLL
  for (int i = 0; i < 4; ++i)
    ZAYA_UNROLL
    for (int r = 0; r < 16; ++r) {
      size_t row = item.row(wave.row_of(i, r));
      float gate = sums[i][0][r], up = sums[i][1][r];
      float root = rsqrtf(1 + __expf(-gate)), sigmoid = root * root;
      float silu = gate * sigmoid;
      at.a[row * inner + column] = T::of(silu * up).bits;
      if (!at.slopes) continue;
      uint16_t* slopes = at.slopes + row * 2 * inner + column;
      slopes[0] = T::of(up * (sigmoid * (1 + gate - silu))).bits;
      slopes[inner] = T::of(silu).bits;
    }
}

// W of an expert as [depth, columns]; turned: as [columns, depth].
template <class T, bool turned>
__device__ __forceinline__ void rows_sum(const uint16_t* x, const uint16_t* w,
                                         const Item& item, int depth,
                                         int columns, Shared& shared,
                                         f32x16 (&sums)[4][2]) {
  int column = item.column * kTile;
  bool wanted = item.wants(Wave());
  w += size_t(item.expert) * depth * columns;
  Along rows(depth, [&](int i) { return x + size_t(item.row(i)) * depth; });
  if constexpr (turned) {
    Along matrix(depth, [&](int j) {
      return w + size_t(least(column + j, columns - 1)) * depth;
    });
    tile::accumulate<T>(rows, matrix, depth, wanted, shared, sums);
  } else {
    Across matrix(w + least(column + Across::row(), columns - 8), columns,
                  depth);
    tile::accumulate<T>(rows, matrix, depth, wanted, shared, sums);
  }
}

struct Matmul {
  const uint16_t *x, *w;
  const int* order;
  uint16_t* y;
};

template <class T, bool turned>
__device__ __forceinline__ void matmul(Matmul at, Tiles tiles, int depth,
                                       int columns, Shared& shared) {
  Item item;
  if (!find(tiles, tiles_of(columns, kTile), item)) return;
  Wave wave;
  f32x16 sums[4][2] = {};
  if (item.has_expert)
    rows_sum<T, turned>(at.x, at.w, item, depth, columns, shared, sums);
  if (!item.wants(wave)) return;
  // All at once, before stores that they could wait for.
  int target[4][16];
  ZAYA_UNROLL
  for (int i = 0; i < 4; ++i)
    ZAYA_UNROLL
    for (int r = 0; r < 16; ++r)
      target[i][r] = at.order[item.row(wave.row_of(i, r))];
  ZAYA_UNROLL
  for (int j = 0; j < 2; ++j) {
    int column = item.column * kTile + wave.column_of(j);
    if (column >= columns) continue;
    ZAYA_UNROLL
    for (int i = 0; i < 4; ++i)
      ZAYA_UNROLL
      for (int r = 0; r < 16; ++r)
        at.y[size_t(target[i][r]) * columns + column] =
            T::of(sums[i][j][r]).bits;
  }
}

struct DUp {
  const uint16_t *dy, *slopes, *down;
  uint16_t* dh;
};

template <class T>
__device__ __forceinline__ void d_up(DUp at, Tiles tiles, int width, int inner,
                                     Shared& shared) {
  Item item;
  if (!find(tiles, tiles_of(inner, kTile), item)) return;
  Wave wave;
  f32x16 sums[4][2] = {};
  if (item.has_expert)
    rows_sum<T, true>(at.dy, at.down, item, width, inner, shared, sums);
  if (!item.wants(wave)) return;
  // The next 16 slopes are on their way while these are used; a step is half of
  // what there is for the sums of an MFMA.
  uint16_t slopes[2][16];
  // Offsets have 32 bits from the first row on, which is the same for all: 64
  // would not stay in registers.
  size_t first = size_t(item.first) * 2 * inner;
  auto place = [&](const uint16_t* base, int step, int r) {
    unsigned row = item.row(wave.row_of(step / 4, r)) - item.first;
    int column = item.column * kTile + wave.column_of(step / 2 % 2);
    unsigned bytes = (row * (2 * inner) + least(column, inner - 1)) * 2;
    base += first + step % 2 * inner;
    return (ZAYA_GLOBAL uint16_t*)((ZAYA_GLOBAL char*)base + bytes);
  };
  auto read = [&](int step) {
    ZAYA_UNROLL
    for (int r = 0; r < 16; ++r)
      slopes[step % 2][r] = *place(at.slopes, step, r);
  };
  read(0);
  ZAYA_UNROLL
  for (int step = 0; step < 16; ++step) {
    if (step < 15) read(step + 1);
    ZAYA_UNROLL
    for (int r = 0; r < 16; ++r) {
      float slope = float_of(T{slopes[step % 2][r]});
      *place(at.dh, step, r) =
          T::of(sums[step / 4][step / 2 % 2][r] * slope).bits;
    }
  }
}

}  // namespace

#define KERNEL(name, parameters, call)                                      \
  extern "C" __global__ __launch_bounds__(tile::kThreads) void name         \
      parameters {                                                          \
    ZAYA_SHARED(Shared, shared);                                            \
    call;                                                                   \
  }
KERNEL(experts_up_bf16, (Up at, Tiles tiles, int width, int inner),
       up<bf16>(at, tiles, width, inner, shared))
KERNEL(experts_down_bf16, (Matmul at, Tiles tiles, int depth, int columns),
       (matmul<bf16, false>(at, tiles, depth, columns, shared)))
KERNEL(experts_d_x_bf16, (Matmul at, Tiles tiles, int depth, int columns),
       (matmul<bf16, true>(at, tiles, depth, columns, shared)))
KERNEL(experts_d_up_bf16, (DUp at, Tiles tiles, int width, int inner),
       d_up<bf16>(at, tiles, width, inner, shared))

using Bits = ffi::Buffer<ffi::BF16>;
using Ints = ffi::Buffer<ffi::S32>;

static const uint16_t* bits(Bits x) {
  return static_cast<const uint16_t*>(x.untyped_data());
}
static uint16_t* bits(ffi::Result<Bits> x) {
  return static_cast<uint16_t*>(x->untyped_data());
}
static Tiles list(Ints expert, Ints first, Ints end, Ints live, Bits w) {
  return {expert.typed_data(), first.typed_data(), end.typed_data(),
          live.typed_data(), int(expert.element_count()),
          int(w.dimensions()[0])};
}
// Whether there are 16-byte pieces both ways.
static bool fits(int depth, Bits x, int columns) {
  return depth > 0 && columns > 0 && depth % 8 == 0 && columns % 8 == 0 &&
         x.dimensions()[1] == depth;
}
static ffi::Error misfit() {
  return ffi::Error::InvalidArgument(
      "grouped_matmul: needs matching sizes of 8, 16, ..");
}

// order [T], x [S, D], gate_up [E, D, 2F], the list -> a [T, F] and maybe
// slopes [T, 2F].
static ffi::Error experts_up(hipStream_t stream, Ints order, Bits x,
                             Bits gate_up, Ints expert, Ints first, Ints end,
                             Ints live, ffi::Result<Bits> a,
                             ffi::RemainingRets rest) {
  auto sizes = gate_up.dimensions();
  int width = sizes[1], inner = sizes[2] / 2;
  if (!fits(width, x, inner)) return misfit();
  Up at{bits(x), bits(gate_up), order.typed_data(), bits(a), nullptr};
  if (rest.size()) at.slopes = bits(*rest.get<Bits>(0));
  Tiles tiles = list(expert, first, end, live, gate_up);
  ZAYA_LAUNCH(experts_up_bf16, Shared,
              tile::grid_of(tiles.count, tiles_of(inner, kHalf)),
              dim3(tile::kThreads), stream, at, tiles, width, inner);
  return launched();
}

ZAYA_HANDLER(experts_up, experts_up,
             Bind()
                 .Ctx<Stream>().Arg<Ints>().Arg<Bits>().Arg<Bits>().Arg<Ints>()
                 .Arg<Ints>().Arg<Ints>().Arg<Ints>().Ret<Bits>()
                 .RemainingRets());

// order [T], x [T, K], w [E, K, N] or, turned, [E, N, K], the list -> y [S, N].
static ffi::Error experts_matmul(hipStream_t stream, int32_t turned, Ints order,
                                 Bits x, Bits w, Ints expert, Ints first,
                                 Ints end, Ints live, ffi::Result<Bits> y) {
  auto sizes = w.dimensions();
  int depth = sizes[turned ? 2 : 1], columns = sizes[turned ? 1 : 2];
  if (!fits(depth, x, columns)) return misfit();
  Matmul at{bits(x), bits(w), order.typed_data(), bits(y)};
  Tiles tiles = list(expert, first, end, live, w);
  dim3 grid = tile::grid_of(tiles.count, tiles_of(columns, kTile));
  if (turned)
    ZAYA_LAUNCH(experts_d_x_bf16, Shared, grid, dim3(tile::kThreads), stream,
                at, tiles, depth, columns);
  else
    ZAYA_LAUNCH(experts_down_bf16, Shared, grid, dim3(tile::kThreads), stream,
                at, tiles, depth, columns);
  return launched();
}

ZAYA_HANDLER(experts_matmul, experts_matmul,
             Bind()
                 .Ctx<Stream>().Attr<int32_t>("turned").Arg<Ints>().Arg<Bits>()
                 .Arg<Bits>().Arg<Ints>().Arg<Ints>().Arg<Ints>().Arg<Ints>()
                 .Ret<Bits>());

// dy [T, D], slopes [T, 2F], down [E, F, D], the list -> dh [T, 2F].
static ffi::Error experts_d_up(hipStream_t stream, Bits dy, Bits slopes,
                               Bits down, Ints expert, Ints first, Ints end,
                               Ints live, ffi::Result<Bits> dh) {
  auto sizes = down.dimensions();
  int inner = sizes[1], width = sizes[2];
  if (!fits(width, dy, inner)) return misfit();
  DUp at{bits(dy), bits(slopes), bits(down), bits(dh)};
  Tiles tiles = list(expert, first, end, live, down);
  ZAYA_LAUNCH(experts_d_up_bf16, Shared,
              tile::grid_of(tiles.count, tiles_of(inner, kTile)),
              dim3(tile::kThreads), stream, at, tiles, width, inner);
  return launched();
}

ZAYA_HANDLER(experts_d_up, experts_d_up,
             Bind()
                 .Ctx<Stream>().Arg<Bits>().Arg<Bits>().Arg<Bits>().Arg<Ints>()
                 .Arg<Ints>().Arg<Ints>().Arg<Ints>().Ret<Bits>());
