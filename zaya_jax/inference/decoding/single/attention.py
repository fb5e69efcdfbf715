# SPDX-License-Identifier: Apache-2.0
"""Attention of one token to the cache, in two kernels.

Axis letters: those of `decoding.network`; P parts of the cache, which programs
read side by side; Q rows of a tile of queries, the heads that look at the same
keys among them.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from ops.attention import reference
from ops.cca import reference as cca_ops
from zaya_jax.inference.decoding.single import tiles

_PART = 128  # Keys of a part of a short cache;
_PARTS = 16  # of a longer one there are so many parts.
_BLOCK = 128  # Keys that are read at a time.
_ROWS = 16  # Q at least: what matrix units multiply.
_HIDDEN = reference.HIDDEN


class Place(NamedTuple):
  """Where the token stands.

  Attributes:
    length_1: int32, its row of the cache.
    position_1: int32, how many tokens it sees before itself.
    frequency_R: of the rotation of each channel, float32.
    layer: the number of the layer.
    window: rows that it sees, its own included; None: all.
  """

  length_1: jax.Array
  position_1: jax.Array
  frequency_R: jax.Array
  layer: int
  window: int | None


def parts_of(size: int) -> tuple[int, int]:
  """Keys of a part, of a cache of `size` tokens, and how many parts."""
  part = max(_PART, pl.cdiv(pl.cdiv(size, _PARTS), _BLOCK) * _BLOCK)
  part = min(part, pl.next_power_of_2(size))
  return part, pl.cdiv(size, part)


def attend(
  y_Z: jax.Array,
  values: tuple[jax.Array, jax.Array],
  temperature_K: jax.Array,
  place: Place,
  cache: tuple[jax.Array, jax.Array],
) -> tuple[jax.Array, ...]:
  """Writes the key and the value of the token, and attends in parts.

  Args:
    y_Z: of `cca.convolve`.
    values: the projections [F], whose end they are, and those of the token
      before, [N, 1, X] of all layers.
    temperature_K: what keys are multiplied by.
    place: of the token.
    cache: keys and values [1, K, S, C].

  Returns:
    The cache; of each part the mean of its values [P, H, C] float32 and the
    logarithm of its weight [P, H] float32.
  """
  _, kv_heads, size, channels = cache[0].shape
  heads = y_Z.size // channels - kv_heads
  part, parts = parts_of(size)
  results = (
    *(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in cache),
    jax.ShapeDtypeStruct((parts, heads, channels), jnp.float32),
    jax.ShapeDtypeStruct((parts, heads), jnp.float32),
  )
  inputs = (*cache, y_Z, *values, temperature_K, *place[:3])
  kernel = functools.partial(
    _attend, part=part, layer=place.layer, window=place.window
  )
  return tiles.call(kernel, 'attend', (kv_heads, parts), results, {0: 0, 1: 1})(
    *inputs
  )


def _attend(*refs, part, layer, window):
  k, v, y, z, delayed, temperature, length, position, *refs = refs
  frequency, new_k, new_v, mean, weight = refs
  head, number = pl.program_id(0), pl.program_id(1)
  _, kv_heads, size, channels = k.shape
  many = y.shape[0] // channels // kv_heads - 1
  offset, before = length[jnp.int32(0)], position[jnp.int32(0)]
  column, all_ = tiles.span(channels)
  block = min(_BLOCK, part)

  def read(n):
    row = number * part + n * block + jnp.arange(block, dtype=jnp.int32)
    seen = (row >= offset - before) & (row <= offset) & (row < size)
    if window is not None:
      seen &= offset - row < window
    at = jnp.int32(0), head, row[:, None], column[None]
    mask = (seen & (row != offset))[:, None] & all_[None]
    there = (tiles.load(ref, at, mask).astype(ref.dtype) for ref in (k, v))
    return row, seen, tuple(there)

  found = read(0) if part == block else None
  turn = functools.partial(_turn, y, channels, frequency, before)
  key_row = jnp.full(1, kv_heads * many + head, jnp.int32)
  key = turn(key_row, key_row >= 0, temperature[head])
  key = jnp.sum(key, axis=0).astype(k.dtype)
  value = _value(z, delayed, layer, head * channels + column).astype(v.dtype)
  row = jnp.arange(max(_ROWS, pl.next_power_of_2(many)), dtype=jnp.int32)
  query = turn(head * many + row, row < many, channels**-0.5).astype(k.dtype)

  def step(n, state):
    at, seen, there = found or read(n)
    mine = (at == offset)[:, None]
    keys, values = (
      jnp.where(mine, new[None], old)
      for new, old in zip((key, value), there, strict=True)
    )
    return _more(state, query, keys, values, seen)

  state = (
    jnp.full(row.shape, _HIDDEN, jnp.float32),
    jnp.zeros(row.shape, jnp.float32),
    jnp.zeros((*row.shape, *column.shape), jnp.float32),
  )
  if found:
    state = step(0, state)
  else:
    blocks = pl.cdiv(offset + 1 - number * part, block)
    state = jax.lax.fori_loop(
      0, jnp.clip(blocks, 0, part // block), step, state
    )
  row_Q = head * many + row
  _tell(state, (mean, weight), number, row_Q, row < many)
  here = (offset // part == number) & (offset < size)
  at = jnp.int32(0), head, jnp.minimum(offset, size - 1), column
  tiles.store(new_k, at, key, all_ & here)
  tiles.store(new_v, at, value, all_ & here)


def _tell(state, refs, number, head_Q, mask_Q):
  """Writes what a running softmax has come to."""
  (top, total, out), (mean, weight) = state, refs
  column, all_ = tiles.span(mean.shape[2])
  some = jnp.maximum(total, 1e-30)
  at = number, head_Q[:, None], column[None]
  tiles.store(mean, at, out / some[:, None], mask_Q[:, None] & all_[None])
  scale = jnp.where(total > 0, top + jnp.log(some), _HIDDEN)
  tiles.store(weight, (number, head_Q), scale, mask_Q)


def _more(state, query_QC, key_SC, value_SC, seen_S):
  """A running softmax with another block of keys."""
  top, total, out = state
  dot = functools.partial(
    jax.lax.dot_general, preferred_element_type=jnp.float32
  )
  score = dot(query_QC, key_SC, (((1,), (1,)), ((), ())))
  score = jnp.where(seen_S[None], score, _HIDDEN)
  new_top = jnp.maximum(top, jnp.max(score, axis=1))
  weight = jnp.where(seen_S[None], jnp.exp(score - new_top[:, None]), 0.0)
  shrink = jnp.exp(top - new_top)
  added = dot(weight.astype(value_SC.dtype), value_SC, (((1,), (0,)), ((), ())))
  total = total * shrink + jnp.sum(weight, axis=1)
  return new_top, total, out * shrink[:, None] + added


def _turn(y, channels, frequency, position, head_Q, mask_Q, factor):
  """[Q, C]: heads of queries or keys normalized, times a factor, rotated."""
  rotated = frequency.shape[0]
  half = rotated // 2
  column, all_ = tiles.span(channels)
  there = mask_Q[:, None] & all_[None]
  own = tiles.load(y, (head_Q[:, None] * channels + column[None],), there)
  turns = column < rotated
  other = jnp.where(column < half, column + half, column - half)
  other = jnp.where(turns, other, 0)
  place = head_Q[:, None] * channels + other[None]
  other = tiles.load(y, (place,), there & turns[None])
  angle = position.astype(jnp.float32) * tiles.load(frequency, (column,), turns)
  cos, sin = jnp.cos(angle), jnp.sin(angle)
  sin = jnp.where(column < half, -sin, sin)
  square = jnp.maximum(jnp.sum(own * own, axis=1), cca_ops.NORM_EPS**2)
  scale = jax.lax.rsqrt(square) * math.sqrt(channels) * factor
  return (own * cos[None] + other * sin[None]) * scale[:, None]


def _value(z, delayed, layer, index):
  """Values: the first half of this token, the second of the one before."""
  half = delayed.shape[-1]
  current = tiles.load(z, (z.shape[0] - 2 * half + index,), index < half)
  past = jnp.int32(layer), jnp.int32(0), index - half
  return current + tiles.load(delayed, past, index >= half)


def out(
  parts: Sequence[jax.Array],
  w_DX: jax.Array,
  vectors_5D: jax.Array,
  x_D: jax.Array,
  dtype: Any,
) -> jax.Array:
  """[D] float32: the stream with what attention adds.

  Args:
    parts: of `attend`.
    w_DX: the last projection.
    vectors_5D: of the merge.
    x_D: the stream.
    dtype: in which attention gives its result.
  """
  rows = x_D.size
  each, programs = tiles.share('out', rows)

  def kernel(mean, weight, w, vectors, x, new):
    row, mask = tiles.own(rows, each)
    matrix = tiles.matrix(w, row, mask)
    merge = tiles.merge(vectors, x, row, mask)
    o = tiles.rounded(_joined(mean, weight), dtype)
    tiles.store(new, (row,), merge(tiles.product(matrix, o)), mask)

  result = jax.ShapeDtypeStruct((rows,), jnp.float32)
  return tiles.call(kernel, 'out', programs, result)(
    *parts, w_DX, vectors_5D, x_D
  )


def _joined(mean, weight):
  """[H * C] float32 of all parts."""
  count, heads, channels = mean.shape
  part, there = tiles.span(count)
  head, one = tiles.span(heads)
  there = there[:, None] & one[None]
  weights = tiles.load(weight, (part[:, None], head[None]), there)
  column, all_ = tiles.span(channels)
  place = part[:, None, None], head[None, :, None], column[None, None]
  means = tiles.load(mean, place, there[:, :, None] & all_[None, None])
  weights = jnp.where(there, weights, _HIDDEN)
  top = jnp.max(weights, axis=0)
  weights = jnp.where(there, jnp.exp(weights - top[None]), 0)
  weights /= jnp.maximum(jnp.sum(weights, axis=0), 1e-30)[None]
  return jnp.sum(means * weights[:, :, None], axis=0).reshape(-1)
