# SPDX-License-Identifier: Apache-2.0
"""Attention of a few new tokens to a cache of keys and values.

One new token reads the cache once: its time is that of the memory. It is read
in parts, side by side: a single product over a long cache would occupy two of a
GPU's many processors, and on a CPU copy the cache. More tokens (a prompt) walk
over the cache block by block with a running softmax, so that the scores of a
long prompt need no memory, and stop at the last row that is filled.
"""

import functools

import jax
import jax.numpy as jnp

from ops.attention import reference

_BLOCK = 1024  # Keys that a step of a prompt's walk looks at.
_PART = 256  # Keys of one of the products side by side.


def attention(
  q_BLHC: jax.Array,
  k_BKSC: jax.Array,
  v_BKSC: jax.Array,
  *,
  offset: jax.Array,
  valid_BS: jax.Array,
  window: int | None = None,
) -> jax.Array:
  """Attends from new tokens to the rows of a cache at or before them.

  Query i stands at row `offset + i`, its own key included in the cache. It
  sees row s if `s <= offset + i`, if `offset + i - s < window`, and if the row
  is valid. Scores are scaled by 1/sqrt(C); the softmax is taken in float32.

  Args:
    q_BLHC: [B, L, H, C] queries.
    k_BKSC: [B, K, S, C] keys; K divides H.
    v_BKSC: [B, K, S, C] values.
    offset: int32, the row of the first query: a scalar, or [B] of each.
    valid_BS: [B, S] bool, False for padding.
    window: rows that a query sees, its own included; None: all.

  Returns:
    [B, L, H, C] in the type of `v_BKSC`.
  """
  batch, length, heads, channels = q_BLHC.shape
  kv_heads, rows = k_BKSC.shape[1:3]
  q_BKGLC = (
    (q_BLHC * channels**-0.5)
    .astype(k_BKSC.dtype)
    .reshape(batch, length, kv_heads, heads // kv_heads, channels)
    .transpose(0, 2, 3, 1, 4)
  )
  offset_B = jnp.atleast_1d(offset)  # Of one: the same for all.
  row_BL = offset_B[:, None] + jnp.arange(length)[None]
  visible = functools.partial(_visible, row_BL, valid_BS, window)
  if length == 1 or rows <= _BLOCK:
    out = _at_once(q_BKGLC, k_BKSC, v_BKSC, visible)
  else:
    filled = jnp.max(offset_B) + length
    out = _by_blocks(q_BKGLC, k_BKSC, v_BKSC, visible, filled)
  out_BLKGC = out.transpose(0, 3, 1, 2, 4).astype(v_BKSC.dtype)
  return out_BLKGC.reshape(q_BLHC.shape)


def _at_once(q_BKGLC, k_BKSC, v_BKSC, visible):
  batch, kv_heads, rows, channels = k_BKSC.shape
  parts = rows // _PART if rows % _PART == 0 else 1
  in_parts = lambda a: a.reshape(batch, kv_heads, parts, -1, channels)
  scores = _dot('BKGLC,BKPSC->BKPGLS', q_BKGLC, in_parts(k_BKSC))
  seen = visible(0, rows).reshape(
    -1, 1, 1, q_BKGLC.shape[3], parts, rows // parts
  )
  seen = seen.transpose(0, 1, 4, 2, 3, 5)
  scores = jnp.where(seen, scores, reference.HIDDEN)
  top = jnp.max(scores, axis=(2, 5), keepdims=True)
  weights = jnp.exp(scores - top)
  total = jnp.sum(weights, axis=(2, 5))[..., None]
  out = _dot(
    'BKPGLS,BKPSC->BKPGLC', weights.astype(v_BKSC.dtype), in_parts(v_BKSC)
  )
  return jnp.sum(out, axis=2) / total


def _by_blocks(q_BKGLC, k_BKSC, v_BKSC, visible, filled):
  rows = k_BKSC.shape[2]

  def body(i, carry):
    top, total, out = carry
    # The last block may reach back: rows that were seen already are hidden.
    start = jnp.minimum(i * _BLOCK, rows - _BLOCK)
    block = lambda a: jax.lax.dynamic_slice_in_dim(a, start, _BLOCK, axis=2)
    scores = _dot('BKGLC,BKSC->BKGLS', q_BKGLC, block(k_BKSC))
    fresh = (start + jnp.arange(_BLOCK) >= i * _BLOCK)[None, None, None, None]
    scores = jnp.where(visible(start, _BLOCK) & fresh, scores, reference.HIDDEN)
    new_top = jnp.maximum(top, jnp.max(scores, axis=-1, keepdims=True))
    # Hidden scores weigh 0 also in a row that has seen no key yet.
    weights = jnp.where(
      scores > reference.HIDDEN, jnp.exp(scores - new_top), 0.0
    )
    shrink = jnp.exp(top - new_top)
    added = _dot(
      'BKGLS,BKSC->BKGLC', weights.astype(v_BKSC.dtype), block(v_BKSC)
    )
    total = total * shrink + jnp.sum(weights, axis=-1, keepdims=True)
    return new_top, total, out * shrink + added

  scalar = (*q_BKGLC.shape[:-1], 1)
  start = (
    jnp.full(scalar, reference.HIDDEN, jnp.float32),
    jnp.zeros(scalar, jnp.float32),
    jnp.zeros(q_BKGLC.shape, jnp.float32),
  )
  blocks = (filled + _BLOCK - 1) // _BLOCK
  _, total, out = jax.lax.fori_loop(0, blocks, body, start)
  return out / jnp.maximum(total, 1e-30)


def _visible(row_BL, valid_BS, window, start, size):
  """[B, 1, 1, L, size] bool: which rows from `start` on each query sees."""
  columns_11S = start + jnp.arange(size)[None, None]
  distance_BLS = row_BL[..., None] - columns_11S
  visible = distance_BLS >= 0
  if window is not None:
    visible &= distance_BLS < window
  valid_BS = jax.lax.dynamic_slice_in_dim(valid_BS, start, size, axis=1)
  return (visible & valid_BS[:, None])[:, None, None]


_dot = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
