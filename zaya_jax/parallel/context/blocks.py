# SPDX-License-Identifier: Apache-2.0
"""Attention of this device's queries, block by block, with an exact gradient.

`gather` and `ring_attention` bring the keys here. Queries and keys are cut into
blocks of rows that follow each other; of each pair of blocks the start of both
in the whole row says what is visible. Pairs wholly in the future or beyond the
window are skipped. The softmax is taken online; the backward pass recomputes
the scores from the saved log-sum-exp, so that no score outlives its block.

Axis letters: B sequences, L rows of this device, H query heads, K key/value
heads, G = H/K, C channels of a head, N blocks of queries, M of keys, R rows of
a block (queries), S the same (keys), X = 2C: a key and its value, which travel
as one message.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ops.attention import reference
from zaya_jax.parallel import zigzag

# Rows of a block: the scores of one pair are B * H * _ROWS**2 float32.
_ROWS = 2048


def attention(
  mode: tuple[Callable[..., Any], Callable[..., Any]],
  q_BLHC: jax.Array,
  k_BLKC: jax.Array,
  v_BLKC: jax.Array,
  *,
  axis: str,
  segments_BS: jax.Array | None = None,
  window: jax.Array | int | None = None,
) -> jax.Array:
  """`ops.attention` of whole rows of which each device holds a part.

  Runs inside `jax.shard_map`. The device holds the L rows that `zigzag.order`
  gives it; all heads are present.

  Args:
    mode: two functions that bring the keys. forward(add, state, kv, axis)
      returns the last state of state = add(state, kv, owner), and
      backward(gradient, d_q, kv, axis) the last d_q of
      d_q, d_kv = gradient(d_q, kv, owner) and the sum of d_kv of all devices.
    q_BLHC: [B, L, H, C] queries of this device.
    k_BLKC: [B, L, K, C] keys of this device; K divides H.
    v_BLKC: [B, L, K, C] values of this device.
    axis: the mesh axis over which the rows are divided.
    segments_BS: [B, n * L] int or bool, the segments of the whole row, device
      after device, on every device: gathered once, they serve all layers.
      None: all the same.
    window: keys that a query sees, its own included; None: all.

  Returns:
    [B, L, H, C] in the type of `v_BLKC`.

  Raises:
    ValueError: if the heads do not divide.
  """
  batch, length, heads, channels = q_BLHC.shape
  kv_heads = k_BLKC.shape[2]
  if heads % kv_heads or k_BLKC.shape != v_BLKC.shape:
    raise ValueError(
      f'context attention: heads of q {q_BLHC.shape} must be a multiple of '
      f'those of k {k_BLKC.shape} and v {v_BLKC.shape} [B, L, heads, C].'
    )
  n = jax.lax.axis_size(axis)
  chunk = length // 2
  rows = next(r for r in range(min(_ROWS, chunk), 0, -1) if chunk % r == 0)
  cut = lambda x, *shape: x.reshape(batch, -1, rows, *shape)
  q_NBKGRC = cut(q_BLHC, kv_heads, heads // kv_heads, channels).transpose(
    1, 0, 3, 4, 2, 5
  )
  kv_BLKX = jnp.concatenate([k_BLKC, v_BLKC], axis=-1)
  kv_MBKSX = cut(kv_BLKX, kv_heads, 2 * channels).transpose(1, 0, 3, 2, 4)
  starts_DM = zigzag.order(n * length, n)[::rows].reshape(n, -1)
  # For each device, then each of its blocks.
  places = {'start': jnp.asarray(starts_DM)}
  if segments_BS is not None:
    places['segments'] = cut(segments_BS).swapaxes(0, 1)
    places['segments'] = places['segments'].reshape(n, -1, batch, rows)
  out_NBKGRC = _attention(mode, axis, q_NBKGRC, kv_MBKSX, places, window)
  return out_NBKGRC.transpose(1, 0, 4, 2, 3, 5).reshape(q_BLHC.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attention(mode, axis, q, kv, places, window):
  return _forward(mode, axis, q, kv, places, window)[0]


def _forward(mode, axis, q, kv, places, window):
  # Or XLA may make masks and scores of all pairs of blocks ahead of the loops.
  q, places = jax.lax.optimization_barrier((q, places))
  add = functools.partial(_add, q, _of(places, axis), places, window)
  sums = jnp.zeros_like(q[..., :1], jnp.float32)
  state = jnp.zeros_like(q, jnp.float32), sums + reference.HIDDEN, sums
  state = mode[0](add, state, kv, axis)
  out, top, total = state
  out = (out / total).astype(kv.dtype)
  return out, (q, kv, places, window, out, top + jnp.log(total))


def _backward(mode, axis, saved, d_out):
  q, kv, places, window, out, lse = saved
  product = d_out.astype(jnp.float32) * out.astype(jnp.float32)
  queries = (q, d_out, lse, jnp.sum(product, axis=-1, keepdims=True))
  gradient = functools.partial(
    _gradient, queries, _of(places, axis), places, window
  )
  d_q = jnp.zeros_like(q, jnp.float32)
  d_q, d_kv = mode[1](gradient, d_q, kv, axis)
  return d_q.astype(q.dtype), d_kv.astype(kv.dtype), None, None


_attention.defvjp(_forward, _backward)


def _add(q, at, places, window, state, kv, owner=None):
  """What the online softmax knows after the keys of `owner` (None: of all)."""

  def query(_, one):
    q, at, state = one

    def key(state, other):
      kv, key_at = other
      return _unless_hidden(_add_block, at, key_at, window, state, q, kv), None

    return None, jax.lax.scan(key, state, (kv, _of(places, owner)))[0]

  return jax.lax.scan(query, None, (q, at, state))[1]


def _add_block(state, q, kv, visible):
  out, top, total = state
  # A row that sees nothing here adds rubbish under the top HIDDEN; as it sees
  # itself in some other block, that is scaled to 0 there or was hidden by it.
  scores = _scores(q, kv, visible)
  new_top = jnp.maximum(top, jnp.max(scores, axis=-1, keepdims=True))
  weights, scale = jnp.exp(scores - new_top), jnp.exp(top - new_top)
  added = _dot('BKGRS,BKSC->BKGRC', weights.astype(kv.dtype), _split(kv)[1])
  total = total * scale + jnp.sum(weights, axis=-1, keepdims=True)
  return out * scale + added, new_top, total


def _gradient(queries, at, places, window, d_q, kv, owner=None):
  """Adds to the gradient of all queries; and that of these keys, in float32."""

  def key(d_q, other):
    kv, key_at = other

    def query(d_kv, one):
      queries, at, d_q = one
      state = _unless_hidden(
        _gradient_block, at, key_at, window, (d_q, d_kv), queries, kv
      )
      return state[::-1]

    d_kv, d_q = jax.lax.scan(
      query, jnp.zeros_like(kv, jnp.float32), (queries, at, d_q)
    )
    return d_q, d_kv

  return jax.lax.scan(key, d_q, (kv, _of(places, owner)))


def _gradient_block(state, queries, kv, visible):
  (q, d_out, lse, delta), (k, v) = queries, _split(kv)
  weights = jnp.exp(_scores(q, kv, visible) - lse)
  d_weights = _dot('BKGRC,BKSC->BKGRS', d_out, v)
  d_scores = weights * (d_weights - delta) * q.shape[-1] ** -0.5
  d_scores = d_scores.astype(q.dtype)
  d_k = _dot('BKGRS,BKGRC->BKSC', d_scores, q)
  d_v = _dot('BKGRS,BKGRC->BKSC', weights.astype(q.dtype), d_out)
  d_q = _dot('BKGRS,BKSC->BKGRC', d_scores, k)
  return state[0] + d_q, state[1] + jnp.concatenate([d_k, d_v], axis=-1)


def _unless_hidden(f, at, key_at, window, state, queries, kv):
  """f(state, queries, kv, visible), or `state` if no key can be visible."""
  rows, distance = kv.shape[2], at['start'] - key_at['start']

  def compute(state):
    visible = reference.visible_keys(
      rows, rows, at.get('segments'), key_at.get('segments'), distance, window
    )
    return f(state, queries, kv, visible[:, None, None])

  # Blocks start at multiples of `rows`.
  near = distance >= 0
  if window is not None:
    near &= distance - rows < window - 1
  return jax.lax.cond(near, compute, lambda state: state, state)


def _of(places, owner) -> Any:
  if isinstance(owner, str):
    owner = jax.lax.axis_index(owner)
  if owner is None:
    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), places)
  return jax.tree.map(
    lambda a: jax.lax.dynamic_index_in_dim(a, owner, keepdims=False), places
  )


def _scores(q, kv, visible):
  scores = _dot('BKGRC,BKSC->BKGRS', q, _split(kv)[0]) * q.shape[-1] ** -0.5
  return jnp.where(visible, scores, reference.HIDDEN)


def _split(kv):
  return jnp.split(kv, 2, axis=-1)


_dot = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
