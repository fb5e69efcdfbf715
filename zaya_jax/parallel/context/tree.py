# SPDX-License-Identifier: Apache-2.0
"""Tree attention (arXiv 2408.04093): decoding with a cache on several devices.

Every function here runs inside `jax.shard_map`. Device d of mesh axis `axis`
holds rows d*S to (d+1)*S - 1 of the cache; queries and new rows are the same on
all. Each device attends to its own keys; what travels does not depend on S: one
maximum and two sums over the devices.

Axis letters: B sequences, L queries, H query heads, K key/value heads, G = H/K,
C channels of a head, S rows of the cache on one device, P parts of them.
"""

import jax
import jax.numpy as jnp

from ops.attention import reference

_TINY = float(jnp.finfo(jnp.float32).tiny)
# Keys of one of the products side by side: a single one over a long cache would
# occupy few of a GPU's processors, and on a CPU copy the cache.
_PART = 1024


def attention(
  q_BLHC: jax.Array,
  k_BKSC: jax.Array,
  v_BKSC: jax.Array,
  *,
  axis: str,
  offset: jax.Array | int,
  window: jax.Array | int | None = None,
  valid_BS: jax.Array | None = None,
) -> jax.Array:
  """Attends from new tokens to a cache that is sharded over `axis`.

  Query i stands at row `offset + i` of the whole cache, and sees a valid row if
  it is at or before it and less than `window` rows away. The results are the
  same on every device, to the bit.

  Args:
    q_BLHC: [B, L, H, C] queries, the same on all devices.
    k_BKSC: [B, K, S, C] keys of this device; K divides H, query head h uses key
      head h*K//H.
    v_BKSC: [B, K, S, C] values of this device.
    axis: the mesh axis over which the rows are divided.
    offset: row of the first query in the whole cache.
    window: keys that a query sees, its own included; None: all.
    valid_BS: [B, S] bool, rows of this device that are no padding; None: all.

  Returns:
    [B, L, H, C] in the type of `v_BKSC`; 0 for a query that sees no key.

  Raises:
    ValueError: if the shapes do not fit.
  """
  first = offset - jax.lax.axis_index(axis) * k_BKSC.shape[2]
  out_BLHC, lse_BLH = partial(q_BLHC, k_BKSC, v_BKSC, first, window, valid_BS)
  weight_BLH = jnp.exp(lse_BLH - jax.lax.pmax(lse_BLH, axis))
  sum_BLHC = jax.lax.psum(out_BLHC * weight_BLH[..., None], axis)
  sum_BLH = jax.lax.psum(weight_BLH, axis)
  return (sum_BLHC / sum_BLH[..., None]).astype(v_BKSC.dtype)


def partial(
  q_BLHC: jax.Array,
  k_BKSC: jax.Array,
  v_BKSC: jax.Array,
  first: jax.Array | int,
  window: jax.Array | int | None,
  valid_BS: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
  """Attention to some of the keys, and how much it weighs among all.

  Args:
    q_BLHC: [B, L, H, C] queries.
    k_BKSC: [B, K, S, C] some of the keys.
    v_BKSC: [B, K, S, C] their values.
    first: row of the first query, counted from the first of these keys;
      negative if all of them are in its future.
    window: as in `attention`.
    valid_BS: as in `attention`.

  Returns:
    [B, L, H, C] float32 and [B, L, H] float32, the log of the sum of exp of the
    scores; 0 and about -1e30 for a query that sees none of the keys.

  Raises:
    ValueError: if the shapes do not fit.
  """
  batch, length, heads, channels = q_BLHC.shape
  kv_heads, keys = k_BKSC.shape[1:3]
  if heads % kv_heads or k_BKSC.shape != v_BKSC.shape:
    raise ValueError(
      f'tree attention: heads of q {q_BLHC.shape} [B, L, H, C] must be a '
      f'multiple of those of k {k_BKSC.shape} and v {v_BKSC.shape} '
      '[B, K, S, C].'
    )
  parts = keys // _PART if keys % _PART == 0 else 1
  in_parts = lambda x: x.reshape(batch, kv_heads, parts, -1, channels)
  visible = reference.visible_keys(length, keys, None, None, first, window)
  if valid_BS is not None:
    visible &= valid_BS[:, None]
  visible = visible.reshape(-1, length, parts, keys // parts).swapaxes(1, 2)
  scores_BKPLGS = jnp.einsum(
    'BLKGC,BKPSC->BKPLGS',
    q_BLHC.reshape(batch, length, kv_heads, -1, channels),
    in_parts(k_BKSC),
    preferred_element_type=jnp.float32,
  )
  scores_BKPLGS = jnp.where(
    visible[:, None, :, :, None], scores_BKPLGS * channels**-0.5, -jnp.inf
  )
  # Finite where nothing is visible: exp(-inf - HIDDEN) is 0, without a NaN.
  top = jnp.max(
    scores_BKPLGS, axis=(2, 5), keepdims=True, initial=reference.HIDDEN
  )
  weights_BKPLGS = jnp.exp(scores_BKPLGS - top)
  total = jnp.sum(weights_BKPLGS, axis=(2, 5), keepdims=True)
  total = jnp.maximum(total, _TINY)
  out_BKPLGC = jnp.einsum(
    'BKPLGS,BKPSC->BKPLGC',
    weights_BKPLGS.astype(v_BKSC.dtype),
    in_parts(v_BKSC),
    preferred_element_type=jnp.float32,
  )
  out_BK1LGC = jnp.sum(out_BKPLGC, axis=2, keepdims=True) / total
  by_query = lambda x: (
    x[:, :, 0].swapaxes(1, 2).reshape(batch, length, heads, -1)
  )
  return by_query(out_BK1LGC), by_query(top + jnp.log(total))[..., 0]


def write(
  old: jax.Array,
  new: jax.Array,
  offset: jax.Array | int,
  *,
  axis: str,
  dim: int = 2,
) -> jax.Array:
  """Puts new rows into the shards that own them; nothing is communicated.

  Args:
    old: rows of this device along `dim`: keys or values [B, K, S, C], or with
      `dim=1` a mask [B, S].
    new: the same shape but for L rows along `dim`, the same on all devices.
    offset: where the first new row goes in the whole cache; rows beyond its end
      are dropped.
    axis: the mesh axis over which the rows are divided.
    dim: the dimension of the rows.

  Returns:
    `old` with the rows that are this device's.
  """
  size, length = old.shape[dim], new.shape[dim]
  count = min(length, size)
  first = offset - jax.lax.axis_index(axis) * size
  # The `count` rows of this device that have all that is its own among them.
  start = jnp.clip(first, 0, size - count)
  source = start - first + jnp.arange(count)
  mine = jnp.expand_dims(
    (source >= 0) & (source < length), [d for d in range(old.ndim) if d != dim]
  )
  rows = jnp.where(
    mine,
    jnp.take(new, source, axis=dim, mode='clip').astype(old.dtype),
    jax.lax.dynamic_slice_in_dim(old, start, count, dim),
  )
  return jax.lax.dynamic_update_slice_in_dim(old, rows, start, dim)
