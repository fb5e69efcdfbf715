# SPDX-License-Identifier: Apache-2.0
"""Attention over `context` by gathering all keys and values on every device.

One all-gather forward; backward gathers again instead of keeping all keys of
all layers, and one reduce-scatter sums the gradients in float32. Where kernels
can take rows that stand anywhere they compute all of it; else it goes block by
block.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from ops.attention import rows as rows_lib
from zaya_jax.parallel import zigzag
from zaya_jax.parallel.context import blocks


def attention(
  q_BLHC: jax.Array,
  k_BLKC: jax.Array,
  v_BLKC: jax.Array,
  *,
  axis: str,
  segments_BS: jax.Array | None = None,
  window: jax.Array | int | None = None,
) -> jax.Array:
  """See `blocks.attention`."""
  kernels = rows_lib.kernels(q_BLHC, k_BLKC, v_BLKC)
  if kernels is None:
    return _in_blocks(
      *(q_BLHC, k_BLKC, v_BLKC),
      axis=axis,
      segments_BS=segments_BS,
      window=window,
    )
  kv_BLKX = jnp.concatenate([k_BLKC, v_BLKC], axis=-1)
  places = _places(q_BLHC.shape[1], axis, segments_BS, window)
  return _by_kernels(kernels, axis, q_BLHC, kv_BLKX, places)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _by_kernels(kernels, axis, q, kv, places):
  return _kernels_forward(kernels, axis, q, kv, places)[0]


def _kernels_forward(kernels, axis, q, kv, places):
  keys = _gathered(kv, axis)
  out, saved = rows_lib.forward(kernels, q, *keys, **places)
  return out, (saved, kv, places)


def _kernels_backward(kernels, axis, saved, d_out):
  saved, kv, places = saved
  d_q, *d_keys = rows_lib.backward(
    kernels, saved, d_out, *_gathered(kv, axis), **places
  )
  d_kv = _chunks(jnp.concatenate(d_keys, axis=-1), axis, back=True)
  d_kv = jax.lax.psum_scatter(d_kv, axis, scatter_dimension=1, tiled=True)
  return d_q, d_kv.astype(kv.dtype), None


_by_kernels.defvjp(_kernels_forward, _kernels_backward)


def _places(length, axis, segments_BS, window):
  """Where this device's queries stand, and the segments of all rows."""
  n, index = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
  order = jnp.asarray(zigzag.order(n * length, n).reshape(n, -1), jnp.int32)
  places = {'q_rows_L': order[index], 'window': window}
  if segments_BS is not None:
    own = jax.lax.dynamic_slice_in_dim(segments_BS, index * length, length, 1)
    places['q_segments_BL'] = own
    places['k_segments_BS'] = _chunks(segments_BS, axis)
  return places


def _gathered(kv, axis):
  """Keys and values of all rows, in the order of the sequence."""
  kv = jax.lax.all_gather(kv, axis, axis=1, tiled=True)
  return jnp.split(_chunks(kv, axis), 2, axis=-1)


def _chunks(x, axis, *, back=False):
  """[B, S, ...] from the order of devices to that of rows, or back."""
  n = jax.lax.axis_size(axis)
  chunks = x.reshape(x.shape[0], 2 * n, -1, *x.shape[2:])
  order = zigzag.order(2 * n, n)
  return chunks[:, order if back else np.argsort(order)].reshape(x.shape)


def _forward(add, state, kv, axis):
  return add(state, jax.lax.all_gather(kv, axis, tiled=True))


def _backward(gradient, d_q, kv, axis):
  d_q, d_kv = gradient(d_q, jax.lax.all_gather(kv, axis, tiled=True))
  return d_q, jax.lax.psum_scatter(d_kv, axis, tiled=True)


_in_blocks = functools.partial(blocks.attention, (_forward, _backward))
