# SPDX-License-Identifier: Apache-2.0
"""Inputs of kernels that take whole blocks of rows."""

import jax
import jax.numpy as jnp

# Log-sum-exp of a row that sees nothing; finite, or differences were NaN.
NOTHING = -1e30


def padded(
  q_BLHC: jax.Array,
  k_BLKC: jax.Array,
  v_BLKC: jax.Array,
  *,
  multiple: int,
  q_segments_BL: jax.Array | None = None,
  k_segments_BS: jax.Array | None = None,
  offset: int = 0,
  window: jax.Array | int | None = None,
) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
  """Arguments of `ops.attention` by name, with a multiple of rows.

  Rows behind the last one are hidden as keys, as later ones; as queries they
  are to be cut off.

  Returns:
    'q', 'k' and 'v'; where given, 'q_segments' and 'k_segments' [B, L] int32
    and 'window' [1] int32.
  """
  del offset
  padding = -q_BLHC.shape[1] % multiple
  pad = lambda a: jnp.pad(a, [(0, 0), (0, padding)] + [(0, 0)] * (a.ndim - 2))
  extras = {}
  if q_segments_BL is not None:
    extras['q_segments'] = pad(q_segments_BL.astype(jnp.int32))
    extras['k_segments'] = pad(k_segments_BS.astype(jnp.int32))
  if window is not None:
    extras['window'] = jnp.asarray(window, jnp.int32).reshape(1)
  return {'q': pad(q_BLHC), 'k': pad(k_BLKC), 'v': pad(v_BLKC)}, extras


def delta(d_out_BLHC: jax.Array, out_BLHC: jax.Array) -> jax.Array:
  """[B, H, L] float32, what all gradients of a row's weights have too much."""
  product = d_out_BLHC.astype(jnp.float32) * out_BLHC.astype(jnp.float32)
  return jnp.sum(product, axis=-1).swapaxes(1, 2)
