# SPDX-License-Identifier: Apache-2.0
"""Products of sorted tokens with the matrix of each one's expert, in Triton.

For `api.Products`, over the programs of `programs`. Sums are float32, and what
follows a sum happens before it is rounded.

Axis letters: T sorted tokens; S tokens in their own order; G the 2F fused
columns, gate first; K the dimension of a sum, N columns, M rows of a tile.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from ops.experts.triton import programs
from ops.experts.triton.programs import at, block
from ops.triton import launch, tiles
from ops.triton.backend import plgpu

_LOG2_E = 1.4426950408889634


def up(x_SD, places, gate_up_EDG, *, save) -> list[jax.Array]:
  """[T, F] and, to `save`, [T, G].

  Rows are read where they are: sorted ones are never in memory.
  """
  order_T, starts = places
  _, depth, fused = gate_up_EDG.shape
  half = fused // 2
  size = _tile('experts_up', x_SD, half, depth)

  def kernel(place, order_ref, x_ref, w_ref, a_ref, slopes_ref=None):
    row_M = plgpu.load(order_ref.at[place.row_M])
    gate_N, up_N = place.column_N, half + place.column_N

    def turn(k, sums):
      x = plgpu.load(at(x_ref, row_M, block(k, size.k)))
      return tuple(
        acc + _dot(x, _load_matrix(w_ref, place, block(k, size.k), column_N))
        for acc, column_N in zip(sums, (gate_N, up_N), strict=True)
      )

    zeros = jnp.zeros((size.m, size.n), jnp.float32)
    turns = place.turns(depth // size.k)
    gate, up = jax.lax.fori_loop(0, turns, turn, (zeros, zeros))
    # 1 / (1 + exp(-gate)) in half the instructions, and without spills.
    root = jax.lax.rsqrt(1 + jnp.exp2(gate * -_LOG2_E))
    sigmoid = root * root
    silu = gate * sigmoid
    place.store(a_ref, silu * up)
    if save:
      place.store(slopes_ref, up * (sigmoid * (1 + gate - silu)))
      place.store(slopes_ref, silu, up_N)

  shapes = [(order_T.size, half), (order_T.size, fused)][: 1 + save]
  inputs = (order_T, x_SD, gate_up_EDG)
  return programs.call(kernel, 'experts_up', size, starts, shapes, inputs)


def matmul(x_TK, places, w, *, transposed=False) -> jax.Array:
  """[S, N]; `w` is [E, K, N], if `transposed` [E, N, K], read as it lies."""
  order_T, starts = places
  width = w.shape[1 if transposed else 2]
  name = 'experts_d_x' if transposed else 'experts_down'
  size = _tile(name, x_TK, width, x_TK.shape[1])

  def kernel(place, order_ref, x_ref, w_ref, y_ref):
    acc = _rows_sum(place, x_ref, w_ref, size, transposed=transposed)
    target_M = plgpu.load(order_ref.at[place.row_M])
    place.store(y_ref, acc, target_M=target_M)

  shapes = [(order_T.size, width)]
  inputs = (order_T, x_TK, w)
  return programs.call(kernel, name, size, starts, shapes, inputs)[0]


def d_up(dy_TD, slopes_TG, places, down_EFD) -> jax.Array:
  """[T, G]."""
  half = slopes_TG.shape[1] // 2
  size = _tile('experts_d_up', dy_TD, half, dy_TD.shape[1])

  def kernel(place, dy_ref, slopes_ref, w_ref, dh_ref):
    da = _rows_sum(place, dy_ref, w_ref, size, transposed=True)
    for column_N in (place.column_N, half + place.column_N):
      slope = plgpu.load(at(slopes_ref, place.row_M, column_N))
      place.store(dh_ref, da * slope.astype(jnp.float32), column_N)

  shapes, inputs = [slopes_TG.shape], (dy_TD, slopes_TG, down_EFD)
  return programs.call(
    kernel, 'experts_d_up', size, places[1], shapes, inputs, columns=half
  )[0]


def d_weights(x_TK, dy_TN, places) -> jax.Array:
  """[E, K, N]; of no rows, zeros."""
  shape = places[1].size - 1, x_TK.shape[1], dy_TN.shape[1]
  into = jax.ShapeDtypeStruct(shape, x_TK.dtype)
  return _d_weights(x_TK, dy_TN, places[1], into)


def d_weights_into(x_TK, dy_TN, places, stack, at) -> jax.Array:
  """[N, E, K, N] with the same in a layer, or added there: `sink.Sink`."""
  return _d_weights(x_TK, dy_TN, places[1], stack, at)


def _d_weights(x_TK, dy_TN, starts, into, *place):
  """Into the memory of a result or, with `Sink.at`, of an array."""
  tokens, height = x_TK.shape
  width, experts = dy_TN.shape[1], starts.size - 1
  size = tiles.tile('experts_d_weights', x_TK.dtype).fit(height, width, tokens)

  def kernel(starts_ref, x_ref, dy_ref, *refs):
    *given, w_ref = refs
    expert = pl.program_id(2)
    first, end = starts_ref[expert], starts_ref[expert + 1]
    column_M = block(pl.program_id(1), size.m)
    column_N = block(pl.program_id(0), size.n)

    def turn(k, acc, last):
      row_K = first + block(k, size.k)
      valid_K = row_K < end
      row_K = jnp.minimum(row_K, tokens - 1) if last else row_K

      def load(ref, row, column, valid):
        where = ref.at[row, column]
        if not last:
          return plgpu.load(where)
        shape = np.broadcast_shapes(row.shape, column.shape)
        return plgpu.load(where, mask=jnp.broadcast_to(valid, shape), other=0.0)

      # X is loaded turned: on gfx942 it then passes through wide LDS reads.
      x = load(x_ref, row_K[None], column_M[:, None], valid_K[None])
      dy = load(dy_ref, row_K[:, None], column_N[None], valid_K[:, None])
      return acc + _dot(x, dy)

    # The last, partial turn alone needs masks.
    full, turns = (end - first) // size.k, pl.cdiv(end - first, size.k)
    acc = jnp.zeros((size.m, size.n), jnp.float32)
    turn_of = lambda last: functools.partial(turn, last=last)
    acc = jax.lax.fori_loop(0, full, turn_of(False), acc)
    acc = jax.lax.fori_loop(full, turns, turn_of(True), acc)
    rows = pl.ds(pl.program_id(1) * size.m, size.m)
    columns = pl.ds(pl.program_id(0) * size.n, size.n)
    target = expert, rows, columns
    if given:
      at_ref, old_ref = given
      target = at_ref[0], *target
      add = jnp.broadcast_to(at_ref[1] > 0, acc.shape)
      old = plgpu.load(old_ref.at[target], mask=add, other=0.0)
      acc += old.astype(jnp.float32)
    plgpu.store(w_ref.at[target], acc.astype(w_ref.dtype))

  return launch.kernel_call(
    kernel,
    'experts_d_weights',
    (width // size.n, height // size.m, experts),
    jax.ShapeDtypeStruct(into.shape, into.dtype),
    warps=size.warps,
    stages=size.stages,
    aliases={4: 0} if place else None,
  )(starts, x_TK, dy_TN, *place, *([into] if place else []))


def _tile(name, x, n, k):
  """Of the product of all rows of `x` with [k, n]."""
  return tiles.tile(name, x.dtype).fit(len(x), n, k)


def _rows_sum(place, x_ref, w_ref, size, *, transposed):
  """[M, N] of x @ w of the expert, float32."""

  def turn(k, acc):
    depth_K = block(k, size.k)
    x = plgpu.load(at(x_ref, place.row_M, depth_K))
    if transposed:
      w = _load_matrix(w_ref, place, place.column_N, depth_K)
      return acc + _dot(x, w, 1)
    return acc + _dot(x, _load_matrix(w_ref, place, depth_K, place.column_N))

  acc = jnp.zeros((size.m, size.n), jnp.float32)
  turns = place.turns(x_ref.shape[1] // size.k)
  return jax.lax.fori_loop(0, turns, turn, acc)


def _load_matrix(ref, place, row, column):
  return plgpu.load(ref.at[place.expert, row[:, None], column[None]])


def _dot(a, b, axis_b=0):
  dimensions = (((1,), (axis_b,)), ((), ()))
  return jax.lax.dot_general(
    a, b, dimensions, preferred_element_type=jnp.float32
  )
