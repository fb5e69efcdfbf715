# SPDX-License-Identifier: Apache-2.0
"""The experts by grouped products in Pallas (Triton).

What the backward pass gets, at ZAYA1's shape with 16,384 tokens on an H200:

- What the first product leads to is saved: silu(gate) * up, and its derivatives
  by gate and up instead of both, so that the kernel which meets them has no
  exponential left. These 201 MB cost 0.06 ms to write and read beyond what the
  forward pass does; computed anew they would cost 275 GFLOP, 0.39 ms. Under a
  remat of the layer they live for one layer only, and are not made three times.

No permutation is in memory in the forward pass: the first product reads tokens
where they are, the second writes them there, which saves 268 MB (0.07 ms). The
backward pass permutes x and dy once each: the gradients of the matrices walk
along the rows, and would load the place of each row before the row itself.
"""

import functools
import types
from collections.abc import Callable

import jax
import jax.numpy as jnp

from ops import tiles
from ops.experts import blocked, grouped

KERNELS = ('up', 'down', 'd_up', 'd_x', 'd_weights')


def unsupported(
  x_TD: jax.Array, expert_T: jax.Array, gate_up: jax.Array, down: jax.Array
) -> str | None:
  """Why it cannot run."""
  del expert_T
  names = {jnp.dtype(a.dtype).name for a in (x_TD, gate_up, down)}
  if len(names) > 1:
    return f'tokens and matrices must share a type, not {sorted(names)}'
  if names - {'float16', 'bfloat16', 'float32'}:
    return f'computes in float16, bfloat16 or float32, not {names.pop()}'
  return None


def expert_mlp(
  x_TD: jax.Array,
  expert_T: jax.Array,
  gate_up_EDF: jax.Array,
  down_EFD: jax.Array,
  *,
  products: types.ModuleType = grouped,
  padding: Callable[[int, jnp.dtype], int] | None = None,
) -> jax.Array:
  """See `ops.expert_mlp`.

  Args:
    x_TD: tokens.
    expert_T: their experts.
    gate_up_EDF: matrices.
    down_EFD: matrices.
    products: has the functions of `grouped`.
    padding: (size of D or F, type) -> what is added to it; None: what makes
      tiles of it.
  """
  (tokens, width), (num_experts, inner, _) = x_TD.shape, down_EFD.shape
  if not tokens:
    return x_TD
  order_T, _, starts = blocked.sort_by_expert(expert_T, num_experts)
  # Zeros beside the matrices add nothing; at real sizes there are none.
  d, f = ((padding or _padding)(size, x_TD.dtype) for size in (width, inner))
  if d or f:
    gate_up_EDF = jnp.pad(
      gate_up_EDF.reshape(num_experts, width, 2, inner),
      ((0, 0), (0, d), (0, 0), (0, f)),
    ).reshape(num_experts, width + d, 2 * (inner + f))
    down_EFD = jnp.pad(down_EFD, ((0, 0), (0, f), (0, d)))
    x_TD = jnp.pad(x_TD, ((0, 0), (0, d)))
  y_TD = _mlp(products, x_TD, order_T, starts, gate_up_EDF, down_EFD)
  return y_TD[:, :width]


def _padding(size: int, dtype: jnp.dtype) -> int:
  """What makes `size` a multiple of every tile that divides it."""
  found = [tiles.tile(f'experts_{name}', dtype) for name in KERNELS]
  most = max(side for tile in found for side in (tile.m, tile.n, tile.k))
  return -size % min(most, max(16, 1 << (size - 1).bit_length()))


def _tile(name, dtype, m, n, k):
  """For [m, k] @ [k, n]; the number of tokens cuts nothing."""
  return tiles.tile(f'experts_{name}', dtype).fit(m, n, k)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _mlp(products, x_TD, order_T, starts, gate_up, down):
  return _forward(products, x_TD, order_T, starts, gate_up, down)[0]


def _forward(products, x_TD, order_T, starts, gate_up, down, save=False):
  (tokens, width), inner = x_TD.shape, down.shape[1]
  tile = functools.partial(_tile, dtype=x_TD.dtype)
  size = tile('up', m=tokens, n=inner, k=width)
  a_TF, *slopes = products.up(x_TD, order_T, starts, gate_up, size, save=save)
  size = tile('down', m=tokens, n=width, k=inner)
  return products.matmul(a_TF, order_T, starts, down, size), a_TF, *slopes


def _mlp_fwd(products, x_TD, order_T, starts, gate_up, down):
  inputs = x_TD, order_T, starts, gate_up, down
  y_TD, *made = _forward(products, *inputs, save=True)
  return y_TD, (*inputs, *made)


def _mlp_bwd(products, saved, dy_TD):
  x_TD, order_T, starts, gate_up, down, a_TF, slopes_TG = saved
  (tokens, width), inner = x_TD.shape, down.shape[1]
  tile = functools.partial(_tile, dtype=x_TD.dtype)
  dy_TD, x_TD = (
    a.at[order_T].get(unique_indices=True, mode='promise_in_bounds')
    for a in (dy_TD, x_TD)
  )
  size = tile('d_up', m=tokens, n=inner, k=width)
  dh_TG = products.d_up(dy_TD, slopes_TG, starts, down, size)
  size = tile('d_weights', m=inner, n=width, k=tokens)
  d_down = products.d_weights(a_TF, dy_TD, starts, size)
  size = tile('d_weights', m=width, n=2 * inner, k=tokens)
  d_gate_up = products.d_weights(x_TD, dh_TG, starts, size)
  size = tile('d_x', m=tokens, n=width, k=2 * inner)
  dx_TD = products.matmul(
    dh_TG, order_T, starts, gate_up, size, transposed=True
  )
  return dx_TD, None, None, d_gate_up, d_down


_mlp.defvjp(_mlp_fwd, _mlp_bwd)
