# SPDX-License-Identifier: Apache-2.0
"""Attention over `context` by passing keys and values around (2310.01889).

No device ever holds more than two parts of the keys. The next part is asked for
before the present one is used, so that the transfer hides behind the products.

The gradient rotates once more. Differentiating the loop instead would be as
exact, but would keep every part that came by, n times the keys: a gather.
"""

import jax

from zaya_jax.context import blocks


def attention(
  q_BLHC: jax.Array,
  k_BLKC: jax.Array,
  v_BLKC: jax.Array,
  *,
  axis: str,
  segments_BS: jax.Array | None = None,
  window: jax.Array | int | None = None,
  zigzag: bool = True,
) -> jax.Array:
  """The same as `gather.attention`, to the order of sums."""
  return blocks.attention(
    (_forward, _backward),
    q_BLHC,
    k_BLKC,
    v_BLKC,
    segments_BS,
    window,
    axis,
    zigzag,
  )


def _forward(add, state, kv, axis):
  for part, owner in _turns(kv, axis):
    state = add(state, part, owner)
  return state


def _backward(gradient, kv, axis):
  """Sums for each part of the keys follow it and end with their owner."""
  turns = _turns(kv, axis)
  d_q, own = gradient(*next(turns))
  d_kv = None
  for part, owner in turns:
    arriving = None if d_kv is None else _pass_on(d_kv, axis)
    more_q, d_kv = gradient(part, owner)
    d_q += more_q
    d_kv = d_kv if arriving is None else d_kv + arriving
  return d_q, own if d_kv is None else own + _pass_on(d_kv, axis)


def _turns(kv, axis):
  """The keys of each device in turn, and whose they are; its own first."""
  n, index = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
  for turn in range(n):
    coming = _pass_on(kv, axis) if turn < n - 1 else None
    yield kv, (index - turn) % n
    kv = coming


def _pass_on(x, axis):
  n = jax.lax.axis_size(axis)
  return jax.lax.ppermute(x, axis, [(i, (i + 1) % n) for i in range(n)])
