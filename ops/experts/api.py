# SPDX-License-Identifier: Apache-2.0
"""The experts by grouped products of a kernel, whichever engine has them.

What the backward pass gets, at ZAYA1's shape with 16,384 tokens on an H200:

- What the first product leads to is saved: silu(gate) * up, and its derivatives
  by gate and up instead of both, so that the kernel which meets them has no
  exponential left. These 201 MB cost 0.06 ms to write and read beyond what the
  forward pass does; computed anew they would cost 275 GFLOP, 0.39 ms. Under a
  remat of the layer they live for one layer only, and are not made three times.

The backward pass sorts x and dy once each: the gradients of the matrices walk
along the rows, and would load the place of each row before the row itself.

Axis letters: T tokens; P sorted rows, as many as the engine has; G the 2F fused
columns, gate first.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ops.experts import sink as sink_lib
from ops.experts import sorting

# Rows that are added for each expert at most, and for some programs more.
_PADDING, _MORE = 1024, 32


class Products(NamedTuple):
  """What an engine has; `places` are what its first function makes.

  Attributes:
    place: (expert_T, E) -> where tokens go, a tree of arrays.
    sort: (x_TD, places) -> [P, D] rows of one expert after another.
    up: (x_TD, places, gate_up, save=) -> silu(gate) * up [P, F] of x @ gate_up
      and, to save, its derivatives by gate and by up [P, G].
    matmul: (x_PK, places, w, transposed=) -> x @ w [T, N], or by the transposed
      matrices, each row where its token is; zeros without an expert.
    d_up: (dy_PD, slopes_PG, places, down) -> the gradient of gate and up [P, G]
      of the slopes that `up` saved and the gradient of the product with `down`.
    d_weights: (x_PK, dy_PN, places) -> [E, K, N], x^T dy over the rows of each
      expert.
    in_place: (a_PF, places, down) -> a @ down [P, D], which is then the result;
      None: it is that of `matmul`.
    d_weights_into: (x_PK, dy_PN, places, stack, at) -> the stack with them in
      it, see `sink.Sink`; None: they are made apart and put there.
  """

  place: Callable[..., Any]
  sort: Callable[..., jax.Array]
  up: Callable[..., list[jax.Array]]
  matmul: Callable[..., jax.Array]
  d_up: Callable[..., jax.Array]
  d_weights: Callable[..., jax.Array]
  in_place: Callable[..., jax.Array] | None = None
  d_weights_into: Callable[..., jax.Array] | None = None


class Made(NamedTuple):
  """Results of experts, and where they are.

  Attributes:
    rows: [P, D], or [T, D] in the order of the tokens.
    row_T: [T] int32, the row of each token; P: none, its result is zero. None:
      they are in order.
    spare_Q: [Q] int32, rows that no token has and whose gradient must be zero;
      P: none.
    stacks: those of the sink, if there is one.
  """

  rows: jax.Array
  row_T: jax.Array | None
  spare_Q: jax.Array | None
  stacks: sink_lib.Stacks | None = None


def unsupported(
  x_TD: jax.Array, gate_up: jax.Array, down: jax.Array, *types: str
) -> str | None:
  """Why kernels for these types cannot run."""
  names = {jnp.dtype(a.dtype).name for a in (x_TD, gate_up, down)}
  if len(names) > 1 or not names <= {*types}:
    return (
      f'tokens and matrices must all be {" or all ".join(types)}, '
      f'not {", ".join(sorted(names))}'
    )
  return uncounted(x_TD, gate_up)


def uncounted(x_TD: jax.Array, gate_up: jax.Array) -> str | None:
  """Why rows cannot be numbered; how long they are does not matter."""
  tokens, num_experts = x_TD.shape[0], gate_up.shape[0]
  if tokens + (num_experts + _MORE) * _PADDING < 2**31:
    return None
  return f'{tokens} tokens are more rows than 32 bits can number'


def place(expert_T: jax.Array, num_experts: int) -> tuple[jax.Array, jax.Array]:
  """`Products.place` of tokens without gaps: the order and the starts."""
  order_T, _, starts = sorting.sort_by_expert(expert_T, num_experts)
  return order_T, starts


def sort(x_TD: jax.Array, places: tuple[jax.Array, jax.Array]) -> jax.Array:
  """`Products.sort` of tokens without gaps."""
  order_T, _ = places
  return x_TD.at[order_T].get(unique_indices=True, mode='promise_in_bounds')


def expert_mlp(
  products: Products,
  padding: Callable[[int], int],
  x_TD: jax.Array,
  expert_T: jax.Array,
  gate_up_EDF: jax.Array,
  down_EFD: jax.Array,
  sink: sink_lib.Sink | None = None,
) -> Any:
  """See `ops.expert_mlp`.

  Args:
    products: of the engine.
    padding: size of D or F -> what is to be added to it.
    x_TD: tokens.
    expert_T: their experts.
    gate_up_EDF: matrices.
    down_EFD: matrices.
    sink: of the gradients of the matrices.
  """
  if not x_TD.shape[0]:
    y_TD, stacks = x_TD, sink and sink_lib.tap(gate_up_EDF, down_EFD, sink)[2]
  else:
    inputs = x_TD, expert_T, gate_up_EDF, down_EFD
    y_TD, _, stacks = placed(products, padding, inputs, sink)
  return (y_TD, stacks) if sink else y_TD


def placed(
  products: Products,
  padding: Callable[[int], int],
  inputs: tuple[jax.Array, ...],
  sink: sink_lib.Sink | None = None,
) -> tuple[jax.Array, Any, sink_lib.Stacks | None]:
  """What the last product makes, the places, and the stacks of the sink."""
  x_TD, expert_T, gate_up_EDF, down_EFD = inputs
  width, (num_experts, inner, _) = x_TD.shape[1], down_EFD.shape
  d, f = padding(width), padding(inner)
  if sink and (d or f or not products.d_weights_into):
    gate_up_EDF, down_EFD, stacks = sink_lib.tap(gate_up_EDF, down_EFD, sink)
    inputs = x_TD, expert_T, gate_up_EDF, down_EFD
    return *placed(products, padding, inputs)[:2], stacks
  places = products.place(expert_T, num_experts)
  # Zeros beside the matrices add nothing; at real sizes there are none.
  if d or f:
    gate_up_EDF = jnp.pad(
      gate_up_EDF.reshape(num_experts, width, 2, inner),
      ((0, 0), (0, d), (0, 0), (0, f)),
    ).reshape(num_experts, width + d, 2 * (inner + f))
    down_EFD = jnp.pad(down_EFD, ((0, 0), (0, f), (0, d)))
    x_TD = jnp.pad(x_TD, ((0, 0), (0, d)))
  y_TD, stacks = _mlp(products, x_TD, places, gate_up_EDF, down_EFD, sink)
  return y_TD[:, :width], places, stacks


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _mlp(products, x_TD, places, gate_up, down, sink):
  y_TD, *_ = _forward(products, x_TD, places, gate_up, down)
  return y_TD, sink and sink.stacks


def _forward(products, x_TD, places, gate_up, down, save=False):
  a_PF, *slopes = products.up(x_TD, places, gate_up, save=save)
  last = products.in_place or products.matmul
  return last(a_PF, places, down), a_PF, *slopes


def _mlp_fwd(products, x_TD, places, gate_up, down, sink):
  inputs = x_TD, places, gate_up, down
  y_TD, *made = _forward(products, *inputs, save=True)
  return (y_TD, sink and sink.stacks), (*inputs, *made, sink and sink.at)


def _mlp_bwd(products, saved, gradients):
  x_TD, places, gate_up, down, a_PF, slopes_PG, at = saved
  dy_TD, stacks = gradients
  x_PD = products.sort(x_TD, places)
  dy_PD = dy_TD if products.in_place else products.sort(dy_TD, places)
  dh_PG = products.d_up(dy_PD, slopes_PG, places, down)
  by_down, by_gate_up = (a_PF, dy_PD, places), (x_PD, dh_PG, places)
  if stacks is None:
    d_down = products.d_weights(*by_down)
    made = products.d_weights(*by_gate_up), d_down, None
  else:
    d_down = products.d_weights_into(*by_down, stacks.down, at)
    d_gate_up = products.d_weights_into(*by_gate_up, stacks.gate_up, at)
    filled = sink_lib.Stacks(d_gate_up, d_down)
    made = None, None, sink_lib.Sink(filled, None)
  dx_TD = products.matmul(dh_PG, places, gate_up, transposed=True)
  return dx_TD, None, *made


_mlp.defvjp(_mlp_fwd, _mlp_bwd)
