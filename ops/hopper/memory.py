# SPDX-License-Identifier: Apache-2.0
"""How programs of `persistent` write results, and read what these need."""

import functools

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ops.hopper import warp_groups
from ops.hopper.warp_groups import HALF

SLOTS = 2  # Parts of a result on their way out.


def columns(dtype: jnp.dtype) -> int:
  """Of a part of a result: rows of 128 bytes, as `PATTERN` has them."""
  return 128 // jnp.dtype(dtype).itemsize


class Memory:
  """How the `store` of a tile reads and writes, for a warp group.

  Attributes:
    group: index of the warp group.
    columns: of what `write` takes.
  """

  def __init__(self, ring, group, parts_ref, number):
    self.group = group
    self._ring, self._number = ring, number
    self._parts_ref, self._turn = parts_ref, 0
    self.columns = columns(parts_ref.dtype)

  def read(self):
    """This group's rows of the next `Tile.extras`."""
    mine = pl.ds(self.group * HALF, HALF)
    values = [ref.at[mine][...] for ref in self._ring.wait(self._number)]
    warp_groups.finish_reads()
    self._ring.release(self._number)
    self._number += 1
    return values

  def write(self, value, target_ref, *, turned=False, when=True, adds=False):
    """Writes [HALF, columns] or its transpose, in the background.

    Args:
      value: what to write.
      target_ref: where.
      turned: whether that is [columns, HALF].
      when: whether to write.
      adds: whether to add to what is there, float32; the copy engine does it.
    """
    part_ref = self._parts_ref.at[self.group, self._turn % SLOTS]
    self._turn += 1
    plgpu.wait_smem_to_gmem(SLOTS - 1, wait_read_only=True)

    def store():
      part = value.astype(part_ref.dtype)
      if turned:
        part = plgpu.layout_cast(part, plgpu.Layout.WGMMA_TRANSPOSED)
        part_ref.transpose((1, 0))[...] = part
      else:
        part_ref[...] = part
      plgpu.commit_smem()
      copy = functools.partial(plgpu.copy_smem_to_gmem, part_ref, target_ref)
      if adds is False:
        copy()
      else:
        lax.cond(adds, functools.partial(copy, reduction_op='add'), copy)

    if when is True:
      store()
    else:  # Nothing counts as a store, so that waiting goes on to work.
      lax.cond(when, store, plgpu.commit_smem_to_gmem_group)
