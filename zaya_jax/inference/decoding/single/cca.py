# SPDX-License-Identifier: Apache-2.0
"""Queries, keys and values of one token, in two kernels.

Axis letters: those of `decoding.network`; F rows of the joined projections, X
half of the values, M what a channel is convolved of.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from zaya_jax.inference.decoding.single import tiles

_CHANNELS = 8  # That a program convolves.


def project(
  x_D: jax.Array, norm_D: jax.Array, w_FD: jax.Array, *, eps: float, dtype: Any
) -> jax.Array:
  """[F] in `dtype`: the projections of the normed stream."""
  rows = w_FD.shape[0]
  each, programs = tiles.share('project', rows)

  def kernel(x, norm, w, out):
    row, mask = tiles.own(rows, each)
    matrix = tiles.matrix(w, row, mask)
    h = tiles.norm(tiles.vector(x), tiles.vector(norm), x.shape[0], eps)
    h = tiles.rounded(h, dtype)
    tiles.store(out, (row,), tiles.product(matrix, h), mask)

  result = jax.ShapeDtypeStruct((rows,), dtype)
  return tiles.call(kernel, 'project', programs, result)(x_D, norm_D, w_FD)


def convolve(
  z_F: jax.Array,
  conv_N1TZ: jax.Array,
  layer: int,
  kernel_GCM: jax.Array,
  bias_Z: jax.Array,
  heads: int,
) -> tuple[jax.Array, ...]:
  """Queries and keys before their norms, and what the next token needs.

  Args:
    z_F: of `project`.
    conv_N1TZ: queries and keys before, of all layers.
    layer: which of them.
    kernel_GCM: of both convolutions, of each channel its lags, oldest first.
    bias_Z: of both.
    heads: of queries.

  Returns:
    [Z] float32, convolved and with the mean path, and [T, Z] and [X].
  """
  groups, channels, _ = kernel_GCM.shape
  each = min(_CHANNELS, channels)
  half = (z_F.size - bias_Z.size) // 2
  results = (
    jax.ShapeDtypeStruct(bias_Z.shape, jnp.float32),
    jax.ShapeDtypeStruct(conv_N1TZ.shape[2:], conv_N1TZ.dtype),
    jax.ShapeDtypeStruct((half,), conv_N1TZ.dtype),
  )
  kernel = functools.partial(_convolve, each=each, heads=heads, layer=layer)
  return tiles.call(kernel, 'convolve', groups * channels // each, results)(
    z_F, conv_N1TZ, kernel_GCM, bias_Z
  )


def _convolve(
  z, conv, w, bias, y, next_conv, next_delayed, *, each, heads, layer
):
  groups, channels, mixed = w.shape
  context, mine = next_conv.shape[0], (jnp.int32(layer), jnp.int32(0))
  row, mask = tiles.own(groups * channels, each)
  group = pl.program_id(0) * each // channels
  channel = row - group * channels
  matrix = tiles.matrix(w, channel, mask, group)
  column, there = tiles.span(mixed)
  lag, source = column // channels, group * channels + column % channels
  window = tiles.load(z, (source,), there & (lag == context))
  window += tiles.load(conv, (*mine, lag, source), lag < context)
  mean = _mean(z, group, channel, mask, (heads, groups - heads, channels))
  own = tiles.product(matrix, window) + tiles.load(bias, (row,), mask)
  tiles.store(y, (row,), own + mean, mask)
  for t in range(context):
    if t + 1 < context:
      new = tiles.load(conv, (*mine, jnp.int32(t + 1), row), mask)
    else:
      new = tiles.load(z, (row,), mask)
    tiles.store(next_conv, (jnp.int32(t), row), new, mask)
  index, there = tiles.span(next_delayed.shape[0])
  there &= tiles.first()
  last = z.shape[0] - next_delayed.shape[0] + index
  tiles.store(next_delayed, (index,), tiles.load(z, (last,), there), there)


def _mean(z, group, channel, mask, sizes):
  """The mean path of some channels of a head: see `cca.reference.qk_mean`."""
  heads, kv_heads, channels = sizes
  many, is_key = heads // kv_heads, group >= heads
  kv_head = jnp.where(is_key, group - heads, group // many)
  at = lambda head, mask: tiles.load(z, (head * channels + channel,), mask)
  key = at(heads + kv_head, mask)
  query = jnp.zeros_like(key)
  for n in range(many):
    head = kv_head * many + n
    query += at(head, mask & (is_key | (head == group)))
  query = jnp.where(is_key, query / many, query)
  return (query + key) * 0.5
