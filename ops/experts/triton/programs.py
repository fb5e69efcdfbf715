# SPDX-License-Identifier: Apache-2.0
"""Which rows of the sorted tokens each program of a kernel has.

A program computes a tile of rows of one expert. A list, made once for a batch,
has room for one partial tile of each expert; programs behind its end return at
once. Tiles of one set of rows come one after another, so that the rows and the
matrix of their expert stay in the cache. Rows of the class without an expert
are tiles with an empty sum: zeros.

Axis letters: T sorted tokens, P programs along them, M rows of a tile.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from ops import dispatch
from ops.tiles import Tile


class Programs(NamedTuple):
  """The list.

  Attributes:
    expert_P: int32 in [0, E].
    first_P: int32, the first row.
    end_P: int32, where the rows of the expert end; 0 behind the list.
  """

  expert_P: jax.Array
  first_P: jax.Array
  end_P: jax.Array


def listed(starts: jax.Array, tokens: int, rows: int) -> Programs:
  """The list of tiles of `rows`; `starts` [E + 1] of `sort_by_expert`."""
  bounds = jnp.append(starts, jnp.int32(tokens))
  tiles = -(-(bounds[1:] - bounds[:-1]) // rows)
  ends = jnp.cumsum(tiles)
  # Of E + 1 classes each may add a partial tile to the full ones.
  program_P = jnp.arange(tokens // rows + starts.size, dtype=jnp.int32)
  class_P = jnp.sum(program_P[:, None] >= ends[None], axis=1, dtype=jnp.int32)
  expert_P = jnp.minimum(class_P, starts.size - 1)
  first_P = bounds[expert_P] + (program_P - (ends - tiles)[expert_P]) * rows
  end_P = jnp.where(class_P < starts.size, bounds[expert_P + 1], 0)
  return Programs(expert_P, first_P, end_P)


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
  programs = listed(starts, tokens, size.m)
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

  return launch(
    one,
    name,
    size,
    ((columns or width) // size.n, programs.first_P.size),
    [jax.ShapeDtypeStruct(shape, dtype) for shape in out_shapes],
  )(*programs, *inputs)


def launch(kernel, name, size: Tile, grid, out_shape):
  """A `pallas_call` for Triton, interpreted on a CPU."""
  return functools.partial(
    pl.pallas_call,
    compiler_params=plgpu.CompilerParams(
      num_warps=size.warps, num_stages=size.stages
    ),
    interpret=dispatch.platform() == 'cpu',
  )(kernel, grid=grid, out_shape=out_shape, name=name)
