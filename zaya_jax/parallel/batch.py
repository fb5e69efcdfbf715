# SPDX-License-Identifier: Apache-2.0
"""Batches of NumPy arrays onto the mesh."""

from typing import Any

import jax

from zaya_jax.parallel import mesh, zigzag


def put_batch(
  device_mesh: jax.sharding.Mesh, batch: Any
) -> dict[str, jax.Array]:
  """Moves a batch of NumPy arrays onto the mesh.

  Rows are divided over the data axes, and the tokens of each over `context`, in
  zig-zag order. Of several processes each gives its own rows, those of
  `mesh.data_shard`, and all of their tokens.
  """
  rows = mesh.sharding(device_mesh, 'batch', 'length')
  if (parts := device_mesh.shape.get('context', 1)) > 1:
    batch = zigzag.divide(batch, parts)
  if jax.process_count() == 1:
    return jax.device_put(batch, rows)
  index, count = mesh.data_shard(device_mesh)

  def put(a):
    def read(place):
      start, stop, _ = place[0].indices(len(a) * count)
      return a[start - index * len(a) : stop - index * len(a), *place[1:]]

    shape = (len(a) * count, *a.shape[1:])
    return jax.make_array_from_callback(shape, rows, read)

  return jax.tree.map(put, batch)
