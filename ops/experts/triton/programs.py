# SPDX-License-Identifier: Apache-2.0
"""Which rows of the sorted tokens each program of a kernel has.

A program computes a tile of `sorting.tiles`; those behind the last one return
at once. Tiles of one set of rows come one after another, so that the rows and
the matrix of their expert stay in the cache. Rows of the class without an
expert are tiles with an empty sum: zeros.

Axis letters: T sorted tokens, M rows and N columns of a tile.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from ops.experts import sorting
from ops.triton import launch
from ops.triton.backend import plgpu
from ops.triton.tiles import Tile


class Place(NamedTuple):
  """Where a program is.

  Attributes:
    expert: whose matrix it reads.
    has_expert: whether its rows have one.
    row_M: rows, for loads.
    target_M: rows, for stores; a different one each.
    valid_M: whether they are of this expert.
    column_N: its columns.
  """

  expert: jax.Array
  has_expert: jax.Array
  row_M: jax.Array
  target_M: jax.Array
  valid_M: jax.Array
  column_N: jax.Array

  def turns(self, count: int) -> jax.Array:
    """Of the loop over a sum of `count` blocks."""
    return self.has_expert.astype(jnp.int32) * count  # where() gives no int32.

  def store(self, ref, value, column_N=None, target_M=None) -> None:
    """Writes what is valid of [M, N] to these rows and columns."""
    target_M = self.target_M if target_M is None else target_M
    # Where nothing is written, rows of the interpreter must differ as well.
    target_M = jnp.where(self.valid_M, target_M, self.target_M + ref.shape[0])
    plgpu.store(
      at(ref, target_M, self.column_N if column_N is None else column_N),
      value.astype(ref.dtype),
      mask=jnp.broadcast_to(self.valid_M[:, None], value.shape),
    )


def at(ref, row_M: jax.Array, column_N: jax.Array):
  """The part of a matrix with these rows and columns."""
  return ref.at[row_M[:, None], column_N[None]]


def block(index: jax.Array, size: int) -> jax.Array:
  """The positions of a block."""
  return index * size + jnp.arange(size, dtype=jnp.int32)


def call(
  kernel: Callable[..., None],
  name: str,
  size: Tile,
  starts: jax.Array,
  out_shapes: Sequence[tuple[int, ...]],
  inputs: Sequence[jax.Array],
  *,
  columns: int | None = None,
) -> list[jax.Array]:
  """Kernel(place, *inputs, *outputs) for each tile of rows and of columns.

  Args:
    kernel: of one program.
    name: of the kernel.
    size: of its tile.
    starts: [E + 1], of `sort_by_expert`.
    out_shapes: [T, columns] each.
    inputs: the first two-dimensional one decides on the type of the outputs.
    columns: those that tiles cover; None: all of the first output.
  """
  tokens, width = out_shapes[0]
  listed = sorting.tiles(starts, tokens, size.m)
  dtype = next(x.dtype for x in inputs if x.ndim > 1)

  def one(expert_ref, first_ref, end_ref, *refs):
    column, program = pl.program_id(0), pl.program_id(1)
    expert, end = expert_ref[program], end_ref[program]
    row_M = first_ref[program] + jnp.arange(size.m, dtype=jnp.int32)

    @pl.when(first_ref[program] < end)
    def _():
      place = Place(
        expert=jnp.minimum(expert, starts.size - 2),
        has_expert=expert < starts.size - 1,
        row_M=jnp.minimum(row_M, tokens - 1),
        target_M=row_M,
        valid_M=row_M < end,
        column_N=block(column, size.n),
      )
      kernel(place, *refs)

  return launch.kernel_call(
    one,
    name,
    ((columns or width) // size.n, listed.first_P.size),
    [jax.ShapeDtypeStruct(shape, dtype) for shape in out_shapes],
    warps=size.warps,
    stages=size.stages,
  )(*listed, *inputs)
