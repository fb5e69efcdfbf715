# SPDX-License-Identifier: Apache-2.0
"""The experts by products for Hopper GPUs.

Tokens are copied into blocks of one expert each, and back unless their results
are taken out of the blocks: 0.03 ms a time at ZAYA1's shape with 16,384 tokens.

Axis letters: T tokens, P rows of all blocks.
"""

from typing import Any

import jax

from ops.experts import api
from ops.experts import sink as sink_lib
from ops.experts.hopper import places as places_lib
from ops.experts.hopper import products, rows
from ops.hopper import warp_groups
from ops.once import once
from ops.triton import backend


def unsupported(x_TD, expert_T, gate_up, down) -> str | None:
  """Why it cannot run."""
  del expert_T
  # Rows are moved by kernels in Triton.
  missing = warp_groups.unavailable() or backend.unavailable()
  return missing or api.unsupported(x_TD, gate_up, down, 'bfloat16', 'float16')


def expert_mlp(*inputs: Any) -> Any:
  """See `ops.expert_mlp`."""
  return api.expert_mlp(_PRODUCTS, _padding, *inputs)


def expert_mlp_in_place(
  *inputs: jax.Array, sink: sink_lib.Sink | None = None
) -> api.Made:
  """See `ops.experts.expert_mlp_in_place`."""
  made_PD, places, stacks = api.placed(_IN_PLACE, _padding, inputs, sink)
  return api.Made(made_PD, places.row_T, places.spare_Q, stacks)


def _padding(size):
  return -size % products.COLUMNS


def _place(expert_T, num_experts):
  return places_lib.find(expert_T, num_experts, products.ROWS)


def _sort(x_TD, places):
  # Those of all blocks.
  return rows.take(x_TD, places.token_P, places.expert_B.size * products.ROWS)


def _up(x_TD, places, gate_up, *, save):
  x_PD = _sort(x_TD, places)
  made = products.up(x_PD, gate_up, places.expert_B, places.first, save=save)
  return once(made)


def _matmul(x_PK, places, w, *, transposed=False):
  y_PN = _in_place(x_PK, places, w, transposed=transposed)
  return rows.take(y_PN, places.row_T)


def _in_place(x_PK, places, w, **options):
  return products.matmul(x_PK, w, places.expert_B, places.first, **options)


def _d_up(dy_PD, slopes_PG, places, down):
  return products.d_up(dy_PD, down, slopes_PG, places.expert_B, places.first)


def _d_weights(x_PK, dy_PN, places):
  return products.d_weights(x_PK, dy_PN, places.first)


def _d_weights_into(x_PK, dy_PN, places, stack, at):
  return products.d_weights_into(x_PK, dy_PN, places.first, stack, at)


_PRODUCTS = api.Products(
  *(_place, _sort, _up, _matmul, _d_up, _d_weights),
  d_weights_into=_d_weights_into,
)
_IN_PLACE = _PRODUCTS._replace(
  in_place=lambda *inputs: once(_in_place(*inputs))
)
