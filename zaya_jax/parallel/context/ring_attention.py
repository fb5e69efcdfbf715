# SPDX-License-Identifier: Apache-2.0
"""Attention over `context` by passing keys and values around (2310.01889).

No device ever holds more than two parts of the keys. The next part is asked for
before the present one is used, so that the transfer hides behind the products.

The gradient rotates once more. Differentiating the loop instead would be as
exact, but would keep every part that came by, n times the keys: a gather.
"""

import functools

import jax

from zaya_jax.parallel.context import blocks


def _forward(add, state, kv, axis):
  return _rotate(add, state, kv, axis)


def _backward(gradient, d_q, kv, axis):
  """Sums for each part of the keys follow it and end with their owner."""

  def use(state, part, owner):
    d_q, own, sums = state
    arriving = None if sums is None else _pass_on(sums, axis)
    d_q, d_kv = gradient(d_q, part, owner)
    if own is None:
      return d_q, d_kv, None
    return d_q, own, d_kv if arriving is None else d_kv + arriving

  d_q, own, sums = _rotate(use, (d_q, None, None), kv, axis)
  return d_q, own if sums is None else own + _pass_on(sums, axis)


def _rotate(use, state, kv, axis):
  """The last state = use(state, keys, owner) of all turns, its own first."""
  n, index = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
  for turn in range(n):
    # Nothing else keeps a scheduler from collecting all parts at once.
    kv, state = jax.lax.optimization_barrier((kv, state))
    coming = _pass_on(kv, axis) if turn < n - 1 else None
    state = use(state, kv, (index - turn) % n)
    kv = coming
  return state


def _pass_on(x, axis):
  n = jax.lax.axis_size(axis)
  return jax.lax.ppermute(x, axis, [(i, (i + 1) % n) for i in range(n)])


# See `blocks.attention`.
attention = functools.partial(blocks.attention, (_forward, _backward))
