# SPDX-License-Identifier: Apache-2.0
"""Attention over `context` by gathering all keys and values on every device.

One all-gather forward; backward gathers again instead of keeping all keys of
all layers, and one reduce-scatter sums the gradients in float32.
"""

import functools

import jax

from zaya_jax.parallel.context import blocks


def _forward(add, state, kv, axis):
  return add(state, jax.lax.all_gather(kv, axis, tiled=True))


def _backward(gradient, d_q, kv, axis):
  d_q, d_kv = gradient(d_q, jax.lax.all_gather(kv, axis, tiled=True))
  return d_q, jax.lax.psum_scatter(d_kv, axis, tiled=True)


# See `blocks.attention`.
attention = functools.partial(blocks.attention, (_forward, _backward))
