# SPDX-License-Identifier: Apache-2.0
"""The embedding, whose gradient is the same in every bit each time."""

import functools

import jax

from ops import dispatch
from ops.triton import row_sums


def look_up(table_VD: jax.Array, tokens_BL: jax.Array) -> jax.Array:
  """`table[tokens]`.

  Its gradient adds, to the row of a token, one of each place where the token
  is. On CUDA XLA's scatter adds them as its threads arrive; so a kernel does
  it, in the order of the places. XLA's does so by itself on a CPU.

  Args:
    table_VD: [V, D].
    tokens_BL: [B, L] int32 in [0, V).

  Returns:
    [B, L, D] in the type of the table.
  """
  places, width = table_VD.shape
  cannot = row_sums.unsupported(tokens_BL.size, width, places)
  if dispatch.platform() != 'cuda' or cannot:
    return table_VD[tokens_BL]
  return in_order(places, table_VD, tokens_BL)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def in_order(
  places: int, table_VD: jax.Array, tokens_BL: jax.Array
) -> jax.Array:
  """`table[tokens]` of `places` rows, whose gradient `row_sums` makes."""
  del places
  return table_VD[tokens_BL]


def _forward_rule(places, table_VD, tokens_BL):
  return in_order(places, table_VD, tokens_BL), tokens_BL


def _backward_rule(places, tokens_BL, d_BLD):
  d_TD = d_BLD.reshape(-1, d_BLD.shape[-1])
  tokens_T = tokens_BL.reshape(-1)
  return row_sums.sum_rows(d_TD, tokens_T, places, d_BLD.dtype), None


in_order.defvjp(_forward_rule, _backward_rule)
