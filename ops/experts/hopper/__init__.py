# SPDX-License-Identifier: Apache-2.0
"""The experts by the products of `hopper`, on GPUs of that generation.

Tokens are copied into blocks of one expert each, and back: 0.03 ms a
time at ZAYA1's shape with 16,384 tokens. What is saved is that of pallas.py;
the copy of the tokens is made again.

Axis letters: T tokens, P rows of all blocks.
"""

import jax
import jax.numpy as jnp

from ops import warp_groups
from ops.experts import hopper
from ops.experts import places as places_lib
from ops.once import once


def unsupported(
  x_TD: jax.Array, expert_T: jax.Array, gate_up: jax.Array, down: jax.Array
) -> str | None:
  """Why it cannot run."""
  del expert_T
  if reason := warp_groups.unavailable():
    return reason
  names = {jnp.dtype(a.dtype).name for a in (x_TD, gate_up, down)}
  if names not in ({'bfloat16'}, {'float16'}):
    return f'multiplies bfloat16 or float16, not {", ".join(sorted(names))}'
  return None


def expert_mlp(
  x_TD: jax.Array,
  expert_T: jax.Array,
  gate_up_EDF: jax.Array,
  down_EFD: jax.Array,
) -> jax.Array:
  """See `ops.expert_mlp`."""
  (tokens, width), (num_experts, inner, _) = x_TD.shape, down_EFD.shape
  if not tokens:
    return x_TD
  # Zeros beside the matrices add nothing; at real sizes there are none.
  d, f = (-size % hopper.COLUMNS for size in (width, inner))
  if d or f:
    gate_up_EDF = jnp.pad(
      gate_up_EDF.reshape(num_experts, width, 2, inner),
      ((0, 0), (0, d), (0, 0), (0, f)),
    ).reshape(num_experts, width + d, 2 * (inner + f))
    down_EFD = jnp.pad(down_EFD, ((0, 0), (0, f), (0, d)))
    x_TD = jnp.pad(x_TD, ((0, 0), (0, d)))
  places = places_lib.find(expert_T, num_experts, hopper.ROWS)
  return _mlp(x_TD, places, gate_up_EDF, down_EFD)[:, :width]


def _at(x, rows):
  """Rows of `x`, and zeros where there are none."""
  return x.at[rows].get(mode='fill', fill_value=0)


@jax.custom_vjp
def _mlp(x_TD, places, gate_up, down):
  return _forward(x_TD, places, gate_up, down)[0]


def _forward(x_TD, places, gate_up, down, save=False):
  token_P, row_T, *blocks = places
  x_PD = _at(x_TD, token_P)
  a_PF, *slopes = once(hopper.up(x_PD, gate_up, *blocks, save=save))
  return _at(hopper.matmul(a_PF, down, *blocks), row_T), a_PF, *slopes


def _mlp_fwd(x_TD, places, gate_up, down):
  inputs = x_TD, places, gate_up, down
  y_TD, *made = _forward(*inputs, save=True)
  return y_TD, (*inputs, *made)


def _mlp_bwd(saved, dy_TD):
  x_TD, places, gate_up, down, a_PF, slopes_PG = saved
  token_P, row_T, *blocks = places
  first = blocks[1]
  x_PD, dy_PD = _at(x_TD, token_P), _at(dy_TD, token_P)
  dh_PG = hopper.d_up(dy_PD, down, slopes_PG, *blocks)
  d_down = hopper.d_weights(a_PF, dy_PD, first)
  d_gate_up = hopper.d_weights(x_PD, dh_PG, first)
  dx_PD = hopper.matmul(dh_PG, gate_up, *blocks, transposed=True)
  return _at(dx_PD, row_T), None, d_gate_up, d_down


_mlp.defvjp(_mlp_fwd, _mlp_bwd)
