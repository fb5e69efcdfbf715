# SPDX-License-Identifier: Apache-2.0
"""Exponentials of the logits of a chunk, and their sums, for Hopper GPUs."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ops.hopper import persistent, warp_groups
from ops.hopper.persistent import COLUMNS, STEP, Block, Tile
from ops.hopper.warp_groups import HALF, LOG2_E, ROWS

# Logits so far above the shift, in nats, count as that far: all is finite.
MOST = 60.0


# Kernels of the same shape are made once: each takes a second to compile.
@functools.partial(jax.jit, static_argnames='save')
def exponentials(
  x_TD: jax.Array, head_VD: jax.Array, shift_T: jax.Array, *, save: bool
) -> tuple[jax.Array | None, jax.Array]:
  """Of the logits x @ head^T, which are never written.

  Args:
    x_TD: [T, D] bfloat16, T a multiple of 2 ROWS and D of STEP.
    head_VD: [V, D], V a multiple of STEP and COLUMNS at least.
    shift_T: [T] float32, what each row's logits are to be compared with.
    save: whether the first result is wanted.

  Returns:
    [T, V] exp(min(logits - shift, MOST)) in the type of `x` or None, and [T]
    float32 the sums of these before they were rounded.
  """
  (tokens, depth), vocab = x_TD.shape, head_VD.shape[0]
  wide, high = pl.cdiv(vocab, COLUMNS), tokens // ROWS // 2

  def kernel(shift_ref, x_ref, head_ref, totals_ref, e_ref=None):
    def tile(index, place, group):
      # Rows first: programs that run side by side share the head's.
      column, row = warp_groups.divide(index, high)
      row = row * 2 + place
      own = pl.ds(row * ROWS + group * HALF, HALF)
      store = functools.partial(
        _store,
        None if e_ref is None else e_ref.at[own],
        totals_ref.at[column, own],
        shift_ref.at[own],
        column * COLUMNS,
        vocab,
      )
      operands = (
        x_ref.at[pl.ds(row * ROWS, ROWS)],
        head_ref.at[pl.ds(column * COLUMNS, COLUMNS)],
      )
      return Tile(operands, depth // STEP, store)

    return tile, wide * high

  def multiply(group, blocks, sums):
    x, head = blocks
    x = x.at[pl.ds(group * HALF, HALF)]
    plgpu.wgmma(sums[0], x, head.transpose((1, 0)))

  totals_NT, *e = persistent.launch(
    kernel,
    multiply,
    'cross_entropy_exponentials',
    (shift_T * LOG2_E, x_TD, head_VD),
    [
      jax.ShapeDtypeStruct((wide, tokens), jnp.float32),
      jax.ShapeDtypeStruct((tokens, vocab), x_TD.dtype),
    ][: 1 + save],
    blocks=[Block((ROWS, STEP), 1), Block((COLUMNS, STEP), 1, shared=True)],
    sums=(COLUMNS,),
    pair=2,
  )
  return e[0] if save else None, jnp.sum(totals_NT, axis=0)


def _store(e_ref, total_ref, shift_ref, start, vocab, sums, memory):
  """The `Tile.store` of columns from `start` on, of the head's `vocab`."""
  shift = lax.broadcast_in_dim(warp_groups.load(shift_ref), (HALF, STEP), (0,))
  total = 0
  for i in range(0, COLUMNS, STEP):
    z = sums[0][:, i : i + STEP] * LOG2_E - shift
    e = jnp.exp2(jnp.minimum(z, MOST * LOG2_E))
    if vocab % COLUMNS:  # The last tile reaches out of the head.
      column = lax.broadcasted_iota(jnp.int32, (HALF, STEP), 1)
      e = jnp.where(column < vocab - start - i, e, 0)
    total += jnp.sum(e, axis=1)
    if e_ref is not None:
      memory.write(e, e_ref.at[:, pl.ds(start + i, STEP)])
  total_ref[...] = total
