# SPDX-License-Identifier: Apache-2.0
"""Sums of the rows that go to the same place, always in the same order.

It is what a scatter does that adds; XLA's adds on a GPU as its threads arrive,
so that its sums differ in their last bits from run to run.

Rows are sorted by place. A program takes as many of them as `_Sizes.rows`, one
after another, so that a place which most rows go to is no work for one program.
Sums that lie within a block of rows are written at once. Of those that do not
each block leaves a piece, and a second kernel adds these, block by block.

Axis letters: T rows, D their width, V places, B blocks, C columns of a program.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from ops import dispatch
from ops.triton import backend, launch
from ops.triton.backend import plgpu

_COLUMNS, _WARPS = 512, 4  # Of float32 16 bytes a thread.


class _Sizes(NamedTuple):
  """How rows are divided.

  Attributes:
    rows: of a block.
    turn: rows that are loaded at a time, of which `rows` is a multiple.
  """

  rows: int
  turn: int


_SIZES = {'cuda': _Sizes(64, 8), 'rocm': _Sizes(64, 8), 'cpu': _Sizes(8, 4)}


def unsupported(tokens: int, width: int, places: int) -> str | None:
  """Why `sum_rows` cannot run on [T, D] and V, or None."""
  if reason := backend.unavailable():
    return reason
  if tokens == 0 or width == 0:
    return 'there is nothing to add'
  if (size := max(tokens, places) * width) >= 2**31:
    return f'{size} numbers are more than 32 bits can count'
  return None


def sum_rows(
  row_TD: jax.Array, place_T: jax.Array, places: int, dtype: jnp.dtype
) -> jax.Array:
  """What `jnp.zeros((places, D)).at[place].add(row)` means.

  Args:
    row_TD: [T, D].
    place_T: [T] int32; a row whose place is not in [0, V) is left out.
    places: V.
    dtype: of the result; sums are float32.

  Returns:
    [V, D], the same bits whenever it runs.
  """
  tokens, width = row_TD.shape
  size = _SIZES[dispatch.platform()]
  blocks = pl.cdiv(tokens, size.rows)
  columns = min(pl.next_power_of_2(width), _COLUMNS)
  # Of numbers without a sign XLA:CUDA has CUB sort them. A stable sort: rows of
  # a place keep their order.
  place_T, order_T = jax.lax.sort_key_val(
    place_T.astype(jnp.uint32), jax.lax.iota(jnp.int32, tokens)
  )
  place_T = place_T.astype(jnp.int32)
  call = functools.partial(
    launch.kernel_call,
    grid=(blocks, pl.cdiv(width, columns)),
    warps=_WARPS,
  )
  whole = jax.ShapeDtypeStruct((places, width), dtype)
  pieces = jax.ShapeDtypeStruct((blocks, 2, width), jnp.float32)
  made_VD, piece_B2D = call(
    functools.partial(_add, size=size, columns=columns),
    'row_sums',
    out_shape=(whole, pieces),
    aliases={3: 0},
  )(row_TD, place_T, order_T, jnp.zeros(whole.shape, whole.dtype))
  return call(
    functools.partial(_join, size=size, columns=columns),
    'row_sums_join',
    out_shape=whole,
    aliases={2: 0},
  )(piece_B2D, place_T, made_VD)


def _column(columns, width):
  column_C = pl.program_id(1) * columns + jnp.arange(columns, dtype=jnp.int32)
  return column_C, column_C < width


def _add(
  row_ref,
  place_ref,
  order_ref,
  zero_ref,
  whole_ref,
  piece_ref,
  *,
  size,
  columns,
):
  """Of a block the sums that lie within it, and up to two pieces.

  The first is of a sum that began in an earlier block, the second of one that
  begins here and goes on.
  """
  del zero_ref  # The same memory as whole_ref.
  (tokens, width), (rows, turn) = row_ref.shape, size
  block = pl.program_id(0)
  column_C, exists_C = _column(columns, width)

  def place(index):
    exists = (index >= 0) & (index < tokens)
    at = place_ref.at[jnp.maximum(index, 0)]
    # No real one, nor that of a row which is left out.
    return plgpu.load(at, mask=exists, other=jnp.int32(-(2**31)))

  def value(index):
    row = plgpu.load(order_ref.at[index], mask=index < tokens, other=0)
    mask_C = exists_C & (index < tokens)
    at = row_ref.at[row, column_C]
    return plgpu.load(at, mask=mask_C, other=0).astype(jnp.float32)

  def step(n, state):
    sum_C, before, begun = state
    first = block * rows + n * turn
    found = [place(first + i) for i in range(turn + 1)]
    values = [value(first + i) for i in range(turn)]
    for i, (own, after) in enumerate(zip(found[:-1], found[1:], strict=True)):
      begins, ends = own != before, own != after
      begun = begins | begun
      sum_C = jnp.where(begins, values[i], sum_C + values[i])
      last = (n == rows // turn - 1) & (i == turn - 1)
      mask_C = exists_C & (own >= 0) & (own < whole_ref.shape[0])
      at = whole_ref.at[own, column_C]
      plgpu.store(at, sum_C.astype(whole_ref.dtype), mask=mask_C & begun & ends)
      at = piece_ref.at[block, begun.astype(jnp.int32), column_C]
      is_piece = (ends | last) & ~(begun & ends)
      plgpu.store(at, sum_C, mask=mask_C & is_piece)
      before = own
    return sum_C, before, begun

  nothing = jnp.zeros(columns, jnp.float32)
  state = nothing, place(block * rows - 1), block < 0
  jax.lax.fori_loop(0, rows // turn, step, state)


def _join(piece_ref, place_ref, made_ref, whole_ref, *, size, columns):
  """Of a sum that begins in a block and goes on: the sum of its pieces."""
  del made_ref  # The same memory as whole_ref.
  tokens, (blocks, _, width) = place_ref.shape[0], piece_ref.shape
  rows, turn = size
  block = pl.program_id(0)
  column_C, exists_C = _column(columns, width)
  own = plgpu.load(place_ref.at[jnp.minimum((block + 1) * rows, tokens) - 1])
  block_B = jnp.arange(pl.next_power_of_2(blocks), dtype=jnp.int32)
  head_B = plgpu.load(
    place_ref.at[block_B * rows], mask=block_B < blocks, other=-1
  )
  # Blocks behind this one whose first row still is of that place.
  count = jnp.sum(jnp.where((block_B > block) & (head_B == own), 1, 0))
  before = plgpu.load(place_ref.at[jnp.maximum(block * rows - 1, 0)])
  begins = (block == 0) | (before != own)
  count = jnp.where(begins, count, 0)
  mask_C = exists_C & (count > 0) & (own >= 0) & (own < whole_ref.shape[0])

  def step(n, sum_C):
    for i in range(turn):
      index = n * turn + i
      at = piece_ref.at[block + 1 + index, jnp.int32(0), column_C]
      sum_C += plgpu.load(at, mask=mask_C & (index < count), other=0)
    return sum_C

  at = piece_ref.at[block, jnp.int32(1), column_C]
  first_C = plgpu.load(at, mask=mask_C, other=0)
  sum_C = jax.lax.fori_loop(0, pl.cdiv(count, turn), step, first_C)
  at = whole_ref.at[own, column_C]
  plgpu.store(at, sum_C.astype(whole_ref.dtype), mask=mask_C)
