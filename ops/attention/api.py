# SPDX-License-Identifier: Apache-2.0
"""What the kernels of `ops.attention` share: whole blocks and what is saved."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

# Log-sum-exp of a row that sees nothing; finite, or differences were NaN.
NOTHING = -1e30


Arrays = dict[str, jax.Array]


class Kernels(NamedTuple):
  """Those of an engine.

  Attributes:
    forward: (inputs, extras), both of `padded` -> 'out', as the queries, and
      'lse' [B, H, L] float32, the log-sum-exp of each row to the base 2.
    backward: the same, with 'd_out', 'lse' and 'delta' of `delta` among the
      inputs -> the gradients 'q', 'k' and 'v'.
  """

  forward: Callable[[Arrays, Any], Arrays]
  backward: Callable[[Arrays, Any], Arrays]


def unsupported(
  q_BLHC: jax.Array, k_BSKC: jax.Array, offset: Any
) -> str | None:
  """Why only an engine for a cache can run; or None: rows are whole."""
  if not isinstance(offset, int) or offset:
    return 'queries do not start at row 0'
  if q_BLHC.shape[1] != k_BSKC.shape[1]:
    return 'there are not as many keys as queries'
  return None


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attention(kernels: Kernels, inputs: Arrays, extras: Any) -> jax.Array:
  """Results of all rows; `inputs` are 'q', 'k' and 'v', `extras` integers."""
  return _forward_rule(kernels, inputs, extras)[0]


def _forward_rule(kernels, inputs, extras):
  found = kernels.forward(inputs, extras)
  return found['out'], (inputs, extras, found)


def _backward_rule(kernels, saved, d_out):
  inputs, extras, found = saved
  given = inputs | {
    'd_out': d_out,
    'lse': found['lse'],
    'delta': delta(d_out, found['out']),
  }
  return kernels.backward(given, extras), None


attention.defvjp(_forward_rule, _backward_rule)


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
  q_rows_L: jax.Array | None = None,
) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
  """Arguments of `ops.attention` by name, with a multiple of rows.

  Rows behind the last one are hidden as keys, as later ones; as queries they
  are to be cut off.

  Returns:
    'q', 'k' and 'v'; where given, 'q_segments' and 'k_segments' [B, L] int32,
    'window' [1] int32 and 'q_rows' [L] int32.
  """
  del offset

  def pad(a):
    behind = [(0, -a.shape[1] % multiple)] + [(0, 0)] * (a.ndim - 2)
    return jnp.pad(a, [(0, 0), *behind])

  extras = {}
  if q_rows_L is not None:
    behind = -q_BLHC.shape[1] % multiple
    extras['q_rows'] = jnp.pad(q_rows_L, (0, behind), mode='edge')
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
