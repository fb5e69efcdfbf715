# SPDX-License-Identifier: Apache-2.0
"""The order of tokens by expert, and the tiles of rows that it falls into.

Axis letters: T tokens, P tiles.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


def sort_by_expert(
  expert_T: jax.Array, num_experts: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """The stable order of tokens by expert.

  Args:
    expert_T: [T] int32 in [0, E].
    num_experts: E.

  Returns:
    [T] the token in each sorted row, [T] the sorted row of each token, and
    [E + 1] the first row of each expert and the end of the last; rows of the
    class E follow that end.
  """
  iota_T = jax.lax.iota(jnp.int32, expert_T.size)
  sorted_T, order_T = jax.lax.sort_key_val(expert_T, iota_T)
  _, inverse_T = jax.lax.sort_key_val(order_T, iota_T)
  bounds = jnp.arange(num_experts + 1, dtype=expert_T.dtype)
  starts = jnp.sum(sorted_T[:, None] < bounds[None], axis=0, dtype=jnp.int32)
  return order_T, inverse_T, starts


@jax.custom_vjp
def permute(x_TD: jax.Array, to_T: jax.Array, back_T: jax.Array) -> jax.Array:
  """x[to], whose gradient is the gather dy[back] instead of a scatter-add."""
  del back_T
  return x_TD.at[to_T].get(unique_indices=True, mode='promise_in_bounds')


def _permute_fwd(x_TD, to_T, back_T):
  return permute(x_TD, to_T, back_T), (to_T, back_T)


def _permute_bwd(saved, dy_TD):
  to_T, back_T = saved
  return permute(dy_TD, back_T, to_T), None, None


permute.defvjp(_permute_fwd, _permute_bwd)


class Tiles(NamedTuple):
  """Tiles of rows of one expert each, with room for any division of the tokens.

  Attributes:
    expert_P: int32 in [0, E]; E: rows without an expert.
    first_P: int32, the first row.
    end_P: int32, where the rows of the expert end; 0 behind the last tile.
  """

  expert_P: jax.Array
  first_P: jax.Array
  end_P: jax.Array


def tiles(starts: jax.Array, tokens: int, rows: int) -> Tiles:
  """The tiles of `rows`; `starts` [E + 1] of `sort_by_expert`."""
  bounds = jnp.append(starts, jnp.int32(tokens))
  counts = -(-(bounds[1:] - bounds[:-1]) // rows)
  ends = jnp.cumsum(counts)
  # Of E + 1 classes each may add a partial tile to the full ones.
  program_P = jnp.arange(tokens // rows + starts.size, dtype=jnp.int32)
  class_P = jnp.sum(program_P[:, None] >= ends[None], axis=1, dtype=jnp.int32)
  expert_P = jnp.minimum(class_P, starts.size - 1)
  first_P = bounds[expert_P] + (program_P - (ends - counts)[expert_P]) * rows
  end_P = jnp.where(class_P < starts.size, bounds[expert_P + 1], 0)
  return Tiles(expert_P, first_P, end_P)
