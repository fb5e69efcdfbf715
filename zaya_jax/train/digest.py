# SPDX-License-Identifier: Apache-2.0
"""What a step is given, in sixteen bytes, by the program that trains on it."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from zaya_jax.data.ledger import digest
from zaya_jax.parallel import mesh, zigzag

_ROWS = mesh.spec('batch', 'length')


def of_batch(batch: dict[str, jax.Array]) -> jax.Array:
  """The digest of a batch that is divided over the mesh.

  Args:
    batch: arrays [B, L] of `pack.model_inputs`.

  Returns:
    uint32 [4], the same on all devices: both sums of `digest.finish` over the
    rows, the tokens, and the targets that count.
  """

  def local(batch):
    columns_L = _columns(batch['tokens'].shape[1])
    *sums, numbers_2 = digest.of_batch(batch, columns_L)
    if mesh.size('context') > 1:
      sums = jax.lax.psum(sums, 'context')
    rows = [jnp.sum(x, dtype=jnp.uint32) for x in digest.finish(*sums)]
    if mesh.size('context') > 1:  # Each of them has made the sum of all.
      first = jax.lax.axis_index('context') == 0
      rows = [jnp.where(first, x, jnp.uint32(0)) for x in rows]
    return mesh.total(jnp.concatenate([jnp.stack(rows), numbers_2]))

  return mesh.on_each(local, in_specs=(_ROWS,), out_specs=P())(batch)


def _columns(length: int) -> jax.Array:
  """Inside of `on_each`: the columns of a row that this device holds, [L]."""
  parts = mesh.size('context')
  if parts == 1:
    return jnp.arange(length, dtype=jnp.uint32)
  order = zigzag.order(length * parts, parts).reshape(parts, length)
  return jnp.asarray(order)[jax.lax.axis_index('context')].astype(jnp.uint32)
