// SPDX-License-Identifier: Apache-2.0
// Products of sorted tokens with the matrix of each one's expert, forward and
// back: `Products` of ops/experts/api.py, in the same names. Tiles of rows are
// those of ops/experts/sorting.py; a tile has rows of one expert. They are the
// columns of what is multiplied, W^T x^T: so a lane has consecutive channels.
#include "handler.h"
#include "tile.h"

namespace {

using tile::Across, tile::Along, tile::kFours, tile::kOwn, tile::kTile,
    tile::least, tile::Shared, tile::tiles_of, tile::Wave, tile::within;

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
    return first + wave.column < end;
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

// A tile has 128 channels of gate and the same of up: a wave 64 and 64, so that
// a lane has both factors of what it writes.
constexpr int kHalf = kTile / 2;

__device__ __forceinline__ void put(uint16_t* to, bits4 bits) {
  *(ZAYA_GLOBAL bits4*)to = bits;
}

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
  tile::Sums sums = {};
  if (item.has_expert) {
    Along x(width, [&](int i) {
      return at.x + size_t(at.order[item.row(i)]) * width;
    });
    int row = Across::row();
    int channel = item.column * kHalf + row / 128 * 64 + row % 64;
    channel = within(channel, inner) + row / 64 % 2 * inner;
    Across w(at.gate_up + size_t(item.expert) * width * 2 * inner + channel,
             2 * inner, width);
    tile::accumulate<T>(w, x, width, item.wants(wave), shared, sums);
  }
  if (!item.wants(wave)) return;
  ZAYA_UNROLL
  for (int step = 0; step < 16; ++step) {
    int own = step / (kFours / 2), four = step % (kFours / 2);
    size_t row = item.row(wave.column_of(own));
    int channel = wave.row_of(four) - wave.row / 2;
    channel = within(item.column * kHalf + channel, inner);
    f32x4 gate = sums.four(four, own), up = sums.four(four + kFours / 2, own);
    f32x4 a, by_gate, by_up;
    ZAYA_UNROLL
    for (int r = 0; r < 4; ++r) {
      float root = rsqrtf(1 + __expf(-gate[r])), sigmoid = root * root;
      by_up[r] = gate[r] * sigmoid;
      by_gate[r] = up[r] * (sigmoid * (1 + gate[r] - by_up[r]));
      a[r] = by_up[r] * up[r];
    }
    put(at.a + row * inner + channel, tile::four_of<T>(a));
    if (!at.slopes) continue;
    uint16_t* slopes = at.slopes + row * 2 * inner + channel;
    put(slopes, tile::four_of<T>(by_gate));
    put(slopes + inner, tile::four_of<T>(by_up));
  }
}

// W of an expert as [depth, columns]; turned: as [columns, depth].
template <class T, bool turned>
__device__ __forceinline__ void rows_sum(const uint16_t* x, const uint16_t* w,
                                         const Item& item, int depth,
                                         int columns, Shared& shared,
                                         tile::Sums& sums) {
  int column = item.column * kTile;
  bool wanted = item.wants(Wave());
  w += size_t(item.expert) * depth * columns;
  Along rows(depth, [&](int i) { return x + size_t(item.row(i)) * depth; });
  if constexpr (turned) {
    Along matrix(depth, [&](int i) {
      return w + size_t(within(column + i, columns)) * depth;
    });
    tile::accumulate<T>(matrix, rows, depth, wanted, shared, sums);
  } else {
    Across matrix(w + within(column + Across::row(), columns), columns, depth);
    tile::accumulate<T>(matrix, rows, depth, wanted, shared, sums);
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
  tile::Sums sums = {};
  if (item.has_expert)
    rows_sum<T, turned>(at.x, at.w, item, depth, columns, shared, sums);
  if (!item.wants(wave)) return;
  // All at once, before stores that they could wait for.
  int target[kOwn];
  ZAYA_UNROLL
  for (int own = 0; own < kOwn; ++own)
    target[own] = at.order[item.row(wave.column_of(own))];
  ZAYA_UNROLL
  for (int step = 0; step < 32; ++step) {
    int own = step / kFours, four = step % kFours;
    int channel = item.column * kTile + wave.row_of(four);
    put(at.y + size_t(target[own]) * columns + within(channel, columns),
        tile::four_of<T>(sums.four(four, own)));
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
  tile::Sums sums = {};
  if (item.has_expert)
    rows_sum<T, true>(at.dy, at.down, item, width, inner, shared, sums);
  if (!item.wants(wave)) return;
  // The next 32 slopes are on their way while these are used; a step has four
  // times four sums, each for both halves.
  bits4 slopes[2][8];
  // Offsets have 32 bits from the first row on, which is the same for all: 64
  // would not stay in registers.
  size_t first = size_t(item.first) * 2 * inner;
  auto own_of = [](int step) { return step / (kFours / 4); };
  auto four_of = [](int step, int part) {
    return step % (kFours / 4) * 4 + part / 2;
  };
  auto place = [&](const uint16_t* base, int step, int part) {
    unsigned row = item.row(wave.column_of(own_of(step))) - item.first;
    int channel = item.column * kTile + wave.row_of(four_of(step, part));
    unsigned bytes = (row * (2 * inner) + within(channel, inner)) * 2;
    base += first + part % 2 * inner;
    return (ZAYA_GLOBAL bits4*)((ZAYA_GLOBAL char*)base + bytes);
  };
  auto read = [&](int step) {
    ZAYA_UNROLL
    for (int part = 0; part < 8; ++part)
      slopes[step % 2][part] = *place(at.slopes, step, part);
  };
  read(0);
  ZAYA_UNROLL
  for (int step = 0; step < 8; ++step) {
    if (step < 7) read(step + 1);
    ZAYA_UNROLL
    for (int part = 0; part < 8; ++part) {
      bits4 slope = slopes[step % 2][part];
      f32x4 dh = sums.four(four_of(step, part), own_of(step));
      ZAYA_UNROLL
      for (int r = 0; r < 4; ++r) dh[r] *= float_of(T{uint16_t(slope[r])});
      *place(at.dh, step, part) = tile::four_of<T>(dh);
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
