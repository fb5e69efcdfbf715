# SPDX-License-Identifier: Apache-2.0
"""Attention over `context` by gathering all keys and values on every device.

One all-gather forward; backward gathers again instead of keeping all keys of
all layers, and one reduce-scatter sums the gradients in float32.
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
  """`ops.attention` of whole rows of which each device holds a part.

  Runs inside `jax.shard_map`. The device holds the L rows that `layout.order`
  gives it; all heads are present.

  Args:
    q_BLHC: [B, L, H, C] queries of this device.
    k_BLKC: [B, L, K, C] keys of this device; K divides H.
    v_BLKC: [B, L, K, C] values of this device.
    axis: the mesh axis over which the rows are divided.
    segments_BS: [B, n * L] int or bool, the segments of the whole row, device
      after device, on every device: gathered once, they serve all layers.
      None: all the same.
    window: keys that a query sees, its own included; None: all.
    zigzag: whether the order is zig-zag.

  Returns:
    [B, L, H, C] in the type of `v_BLKC`.

  Raises:
    ValueError: if the heads do not divide.
  """
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
  return add(state, jax.lax.all_gather(kv, axis, tiled=True))


def _backward(gradient, d_q, kv, axis):
  d_q, d_kv = gradient(d_q, jax.lax.all_gather(kv, axis, tiled=True))
  return d_q, jax.lax.psum_scatter(d_kv, axis, tiled=True)
