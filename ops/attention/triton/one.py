# SPDX-License-Identifier: Apache-2.0
"""Attention of one new token of each row to a cache, in two kernels.

The first one reads parts of the cache side by side, since a single program
would wait for the memory; the second one puts the parts together. XLA takes six
kernels, of a microsecond or two each, and a token of a small batch is nothing
but such kernels.

Axis letters: as in `ops.attention.cached`; P parts of R rows of the cache, G
query heads of a key head.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from ops.attention import reference
from ops.triton import launch
from ops.triton.backend import plgpu

_ROWS = 64  # Of a part: 40 programs read 1,280 rows of two key heads.
_PARTS = 32  # That are added at once.


def attention(
  q_BKGC: jax.Array,
  k_BKSC: jax.Array,
  v_BKSC: jax.Array,
  at_B: jax.Array,
  valid_BS: jax.Array,
  window: int | None = None,
) -> jax.Array:
  """See `ops.cached_attention`; one token of each row.

  Args:
    q_BKGC: queries, not scaled.
    k_BKSC: keys; C is a power of two.
    v_BKSC: values.
    at_B: int32, the row of each query.
    valid_BS: bool.
    window: rows that a query sees.

  Returns:
    [B, K, G, C] in the type of `v_BKSC`.
  """
  batch, kv_heads, group, channels = q_BKGC.shape
  size = k_BKSC.shape[2]
  parts = pl.cdiv(size, _ROWS)
  shape = (batch, kv_heads, group, parts)
  scalars = jax.ShapeDtypeStruct(shape, jnp.float32)
  made = launch.kernel_call(
    functools.partial(_part, window=window, size=size),
    'attention_part',
    (batch * kv_heads, parts),
    (jax.ShapeDtypeStruct((*shape, channels), jnp.float32), scalars, scalars),
    warps=4,
  )(at_B, valid_BS.astype(jnp.int8), q_BKGC, k_BKSC, v_BKSC)
  return launch.kernel_call(
    _together,
    'attention_together',
    (batch * kv_heads, group),
    jax.ShapeDtypeStruct(q_BKGC.shape, v_BKSC.dtype),
    warps=4,
  )(at_B, *made)


def _part(at_ref, valid_ref, q_ref, k_ref, v_ref, *results, window, size):
  """Of one part: its values, the largest score, and the sum of weights."""
  out_ref, top_ref, total_ref = results
  kv_heads, group, channels = q_ref.shape[1:]
  b, j = jnp.divmod(pl.program_id(0), kv_heads)
  part = pl.program_id(1)
  at = at_ref[b]

  @pl.when(part * _ROWS <= at)
  def _():
    row_R = part * _ROWS + jnp.arange(_ROWS, dtype=jnp.int32)
    channel_C = jnp.arange(channels, dtype=jnp.int32)
    seen_R = (row_R <= at) & (row_R < size)
    if window is not None:
      seen_R &= at - row_R < window
    valid_R = plgpu.load(valid_ref.at[b, row_R], mask=seen_R, other=0)
    seen_R &= valid_R > 0

    def rows(ref):
      where = ref.at[b, j, row_R[:, None], channel_C[None]]
      mask = jnp.broadcast_to(seen_R[:, None], (_ROWS, channels))
      return plgpu.load(where, mask=mask, other=0).astype(jnp.float32)

    k_RC, v_RC = rows(k_ref), rows(v_ref)
    for g in range(group):
      q_C = plgpu.load(q_ref.at[b, j, g, channel_C]).astype(jnp.float32)
      score_R = jnp.sum(k_RC * q_C[None] * channels**-0.5, axis=1)
      score_R = jnp.where(seen_R, score_R, reference.HIDDEN)
      top = jnp.max(score_R)
      weight_R = jnp.where(seen_R, jnp.exp(score_R - top), 0.0)
      out_C = jnp.sum(v_RC * weight_R[:, None], axis=0)
      plgpu.store(out_ref.at[b, j, g, part, channel_C], out_C)
      top_ref[b, j, g, part] = top
      total_ref[b, j, g, part] = jnp.sum(weight_R)


def _together(at_ref, out_ref, top_ref, total_ref, y_ref):
  """The mean of the parts, weighted."""
  _, kv_heads, _, parts, channels = out_ref.shape
  b, j = jnp.divmod(pl.program_id(0), kv_heads)
  g = pl.program_id(1)
  # Others were not written.
  used = at_ref[b] // _ROWS + 1
  turns = (used + _PARTS - 1) // _PARTS
  channel_C = jnp.arange(channels, dtype=jnp.int32)

  def chunk(i):
    part_P = i * _PARTS + jnp.arange(_PARTS, dtype=jnp.int32)
    is_used_P = part_P < used
    # A load may not leave the array, even one that is masked, interpreted.
    return jnp.minimum(part_P, parts - 1), is_used_P

  def highest(i, top):
    part_P, is_used_P = chunk(i)
    top_P = plgpu.load(
      top_ref.at[b, j, g, part_P], mask=is_used_P, other=reference.HIDDEN
    )
    return jnp.maximum(top, jnp.max(top_P))

  top = jax.lax.fori_loop(0, turns, highest, jnp.float32(reference.HIDDEN))

  def add(i, sums):
    out_C, total = sums
    part_P, is_used_P = chunk(i)
    load = lambda ref: plgpu.load(
      ref.at[b, j, g, part_P], mask=is_used_P, other=0
    )
    weight_P = jnp.where(is_used_P, jnp.exp(load(top_ref) - top), 0.0)
    mask = jnp.broadcast_to(is_used_P[:, None], (_PARTS, channels))
    part_PC = plgpu.load(
      out_ref.at[b, j, g, part_P[:, None], channel_C[None]], mask=mask, other=0
    )
    out_C += jnp.sum(part_PC * weight_P[:, None], axis=0)
    return out_C, total + jnp.sum(weight_P * load(total_ref))

  zeros = jnp.zeros((channels,), jnp.float32), jnp.float32(0)
  out_C, total = jax.lax.fori_loop(0, turns, add, zeros)
  y_C = out_C / jnp.maximum(total, 1e-30)
  plgpu.store(y_ref.at[b, j, g, channel_C], y_C.astype(y_ref.dtype))
