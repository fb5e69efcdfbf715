# SPDX-License-Identifier: Apache-2.0
"""Ring decoding, the peer that `benchmarks.tree_decode` compares tree with.

The same arguments and meaning as `tree.attention`, in two ways. Each ends with
the result on every device, to rounding: the devices add in different orders, so
`jax.shard_map` needs `check_vma=False` to take it as replicated.
"""

import jax
import jax.numpy as jnp

from zaya_jax.parallel.context import tree


def rotate_partials(
  q_BLHC, k_BKSC, v_BKSC, *, axis, offset, window=None, valid_BS=None
) -> jax.Array:
  """The stronger ring: each device's small result goes round, n - 1 times.

  Output and log-sum-exp travel as one message of float32 [B, L, H, C + 1]; each
  device adds what arrives to its own.
  """
  first = offset - jax.lax.axis_index(axis) * k_BKSC.shape[2]
  total = tree.partial(q_BLHC, k_BKSC, v_BKSC, first, window, valid_BS)
  message = jnp.concatenate([total[0], total[1][..., None]], axis=-1)
  for _ in range(jax.lax.axis_size(axis) - 1):
    message = _pass_on(message, axis)
    total = _merge(total, (message[..., :-1], message[..., -1]))
  return total[0].astype(v_BKSC.dtype)


def rotate_keys(
  q_BLHC, k_BKSC, v_BKSC, *, axis, offset, window=None, valid_BS=None
) -> jax.Array:
  """The ring of the papers (arXiv 2310.01889): keys and values go round.

  Each device meets all keys in turn. The next ones are asked for before the
  present ones are used, so that a scheduler can hide the transfer.
  """
  n, size = jax.lax.axis_size(axis), k_BKSC.shape[2]
  block, total = (k_BKSC, v_BKSC, valid_BS), None
  for step in range(n):
    k, v, valid = block
    if step < n - 1:
      block = jax.tree.map(lambda a: _pass_on(a, axis), block)
    owner = (jax.lax.axis_index(axis) - step) % n
    part = tree.partial(q_BLHC, k, v, offset - owner * size, window, valid)
    total = part if total is None else _merge(total, part)
  return total[0].astype(v_BKSC.dtype)


def _pass_on(x, axis):
  n = jax.lax.axis_size(axis)
  return jax.lax.ppermute(x, axis, [(i, (i + 1) % n) for i in range(n)])


def _merge(one, two):
  """The attention to two sets of keys from the attention to each."""
  top = jnp.maximum(one[1], two[1])
  a, b = jnp.exp(one[1] - top), jnp.exp(two[1] - top)
  out = one[0] * a[..., None] + two[0] * b[..., None]
  return out / (a + b)[..., None], top + jnp.log(a + b)
