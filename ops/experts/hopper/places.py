# SPDX-License-Identifier: Apache-2.0
"""Where tokens go among blocks of rows that are of one expert each.

Two kernels in Triton, one program for as many tokens as a block has.
XLA makes sixteen kernels of the same arithmetic, each with next to nothing to
do; a sort of 16,384 tokens takes a GPU longer than what is done with it.

Axis letters: T tokens, E experts, B blocks, P rows of all blocks, R of one.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from ops.triton import launch
from ops.triton.backend import plgpu

# Programs whose counts are summed at a time, if there are as many: each turn of
# that loop waits for memory.
_CHUNKS = (128, 16)
_LEAST = 16  # Side of a product.


class Places(NamedTuple):
  """Of tokens that are sorted by expert into blocks.

  Attributes:
    token_P: the token of a row; T: none. Behind the rows of all blocks are more
      numbers, which say nothing.
    row_T: the row of a token; P: none, as it has no expert.
    expert_B: of each block.
    first: [E + 1], the first block of each expert, and the end of all.
    spare_Q: rows of the experts' blocks that have no token; P: none.
  """

  token_P: jax.Array
  row_T: jax.Array
  expert_B: jax.Array
  first: jax.Array
  spare_Q: jax.Array


def find(expert_T: jax.Array, num_experts: int, rows: int) -> Places:
  """The places of tokens; those of an expert keep their order.

  Args:
    expert_T: int32; E or more: none.
    num_experts: E.
    rows: R, a power of two, at least 16. Each expert has one block at least.
  """
  tokens = expert_T.size
  blocks = tokens // rows + num_experts
  count = max(blocks, -(-tokens // rows))
  chunk = next((c for c in _CHUNKS if c <= count), _CHUNKS[-1])
  programs = -(-count // chunk) * chunk
  int32 = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.int32)
  wide = max(_LEAST, pl.next_power_of_2(num_experts))
  # Tokens without an expert are written behind all rows.
  room = (programs + 1) * rows
  sizes = {'rows': rows, 'num_experts': num_experts}
  call = functools.partial(launch.kernel_call, grid=(programs,), warps=4)
  counts, token_P = call(
    functools.partial(_count, **sizes),
    'experts_count',
    out_shape=(int32(programs, wide), int32(room)),
  )(expert_T)
  token_P, row_T, expert_B, first, spare_ER = call(
    functools.partial(_place, **sizes, chunk=chunk),
    'experts_place',
    out_shape=(
      *(int32(room), int32(tokens), int32(blocks)),
      *(int32(num_experts + 1), int32(wide, rows)),
    ),
    aliases={2: 0},
  )(expert_T, counts, token_P)
  return Places(token_P, row_T, expert_B, first, spare_ER.reshape(-1))


def _experts(ref, i, rows, num_experts):
  """[R] of the tokens of a program; behind the last one: none."""
  token_R = i * rows + jnp.arange(rows, dtype=jnp.int32)
  mask_R = token_R < ref.shape[0]
  return plgpu.load(ref.at[token_R], mask=mask_R, other=num_experts)


def _count(expert_ref, counts_ref, token_ref, *, rows, num_experts):
  """How many tokens of a program each expert has; and no row has a token."""
  i = pl.program_id(0)
  expert_R = _experts(expert_ref, i, rows, num_experts)
  one_hot_RE = _one_hot(expert_R, counts_ref.shape[1])
  counts_ref[i] = jnp.sum(one_hot_RE.astype(jnp.int32), axis=0)
  tokens = expert_ref.shape[0]
  token_ref[pl.ds(i * rows, rows)] = jnp.full(rows, tokens, jnp.int32)


def _blocks(all_E, expert_E, real_E, rows):
  """Blocks of each expert, and how many end with it."""
  # One block at least for each: its weights' gradient is to be written.
  blocks_E = jnp.maximum(1, (all_E + rows - 1) // rows)
  blocks_E = jnp.where(real_E, blocks_E, 0)
  before_EE = expert_E[:, None] <= expert_E[None]
  return blocks_E, jnp.sum(jnp.where(before_EE, blocks_E[:, None], 0), axis=0)


def _place(
  expert_ref,
  counts_ref,
  empty_ref,
  token_ref,
  row_ref,
  of_block_ref,
  first_ref,
  spare_ref,
  *,
  rows,
  num_experts,
  chunk,
):
  """The rows of a program's tokens, and the expert of its block."""
  del empty_ref  # The same memory as token_ref.
  num_blocks = of_block_ref.shape[0]
  i, (programs, wide) = pl.program_id(0), counts_ref.shape
  all_E, before_E = _sums(counts_ref, i, chunk)
  expert_E = jnp.arange(wide, dtype=jnp.int32)
  real_E = expert_E < num_experts
  blocks_E, ends_E = _blocks(all_E, expert_E, real_E, rows)
  ended = jnp.sum(jnp.where(real_E & (ends_E <= i), 1, 0))

  @pl.when(i < num_blocks)
  def _():
    of_block_ref[i] = jnp.minimum(ended, num_experts - 1)

  start_E = (ends_E - blocks_E) * rows
  lane_R = jnp.arange(rows, dtype=jnp.int32)

  @pl.when(i == 0)
  def _():
    first_ref[0] = 0
    plgpu.store(first_ref.at[expert_E + 1], ends_E, mask=real_E)
    spare_ER = (start_E + all_E)[:, None] + lane_R[None]
    is_spare_ER = real_E[:, None] & (spare_ER < (ends_E * rows)[:, None])
    spare_ref[...] = jnp.where(is_spare_ER, spare_ER, num_blocks * rows)

  expert_R = _experts(expert_ref, i, rows, num_experts)
  one_hot_RE = _one_hot(expert_R, wide)
  earlier_RR = (lane_R[None] < lane_R[:, None]).astype(jnp.bfloat16)
  # Whole numbers up to R: sums of these are exact.
  rank_RE = jax.lax.dot(
    earlier_RR,
    one_hot_RE.astype(jnp.bfloat16),
    preferred_element_type=jnp.float32,
  )
  row_RE = rank_RE.astype(jnp.int32) + (start_E + before_E)[None]
  row_R = jnp.sum(jnp.where(one_hot_RE, row_RE, 0), axis=1)
  has_R = expert_R < num_experts
  token_R = i * rows + lane_R
  plgpu.store(
    row_ref.at[token_R],
    jnp.where(has_R, row_R, num_blocks * rows),
    mask=token_R < row_ref.shape[0],
  )
  target_R = jnp.where(has_R, row_R, programs * rows + lane_R)
  plgpu.store(token_ref.at[target_R], token_R)


def _sums(counts_ref, i, chunk):
  """[E] tokens of all programs, and of those before program i."""
  programs, wide = counts_ref.shape

  def add(j, sums):
    all_E, before_E = sums
    counts = counts_ref[pl.ds(j * chunk, chunk)]
    program = j * chunk + jax.lax.broadcasted_iota(jnp.int32, counts.shape, 0)
    before = jnp.where(program < i, counts, 0)
    return all_E + jnp.sum(counts, axis=0), before_E + jnp.sum(before, axis=0)

  none_E = jnp.zeros(wide, jnp.int32)
  return jax.lax.fori_loop(0, programs // chunk, add, (none_E, none_E))


def _one_hot(expert_R, wide):
  return expert_R[:, None] == jnp.arange(wide, dtype=jnp.int32)[None]
