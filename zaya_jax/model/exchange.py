# SPDX-License-Identifier: Apache-2.0
"""Experts on several devices: tokens travel to them, and what they give back.

Inside of `mesh.on_each`: device r of the mesh axis `expert` holds experts r*E/n
to (r+1)*E/n - 1 and tokens of its own. Nothing is dropped: what a device
receives has room for all tokens of all of its n peers, a slot of T rows each.
On a GPU only the tokens travel (ragged all-to-all), on a CPU whole slots.

Axis letters: T tokens of this device, D their width, E experts of all devices,
e of this one, F inner width of an expert, n devices along the axis.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

import ops
from ops import experts
from zaya_jax import mesh

AXIS = 'expert'


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Route:
  """Which of the rows, sorted by expert, go where; all [n] int32.

  Attributes:
    offsets: the first row for each peer.
    sizes: rows for each peer.
    arriving: rows from each peer.
    theirs: the first row that each peer has for this device.
  """

  offsets: jax.Array
  sizes: jax.Array
  arriving: jax.Array
  theirs: jax.Array


def expert_mlp(
  x_TD: jax.Array,
  expert_T: jax.Array,
  gate_up_eDF: jax.Array,
  down_eFD: jax.Array,
) -> jax.Array:
  """`ops.expert_mlp` with the experts of all devices along the axis.

  Args:
    x_TD: [T, D] tokens of this device.
    expert_T: [T] int32 in [0, E]; the class E has no expert and yields zeros.
    gate_up_eDF: [e, D, 2F] matrices of this device's experts, gate first.
    down_eFD: [e, F, D].

  Returns:
    [T, D] in the type of `x_TD`.
  """
  n, mine = jax.lax.axis_size(AXIS), gate_up_eDF.shape[0]
  order_T, inverse_T, starts = experts.sort_by_expert(expert_T, n * mine)
  sorted_TD = experts.permute(x_TD, order_T, inverse_T)
  bounds = starts[::mine]
  counts_ne = _swap((starts[1:] - starts[:-1]).reshape(n, mine))
  route = _Route(
    offsets=bounds[:-1],
    sizes=bounds[1:] - bounds[:-1],
    arriving=jnp.sum(counts_ne, axis=1, dtype=jnp.int32),
    theirs=_swap(bounds[:-1]),
  )
  received_RD = _send(sorted_TD, route)
  # Each slot is sorted by expert; behind its end stands the class of no expert.
  ends_ne = jnp.cumsum(counts_ne, axis=1)
  rows_T = jnp.arange(x_TD.shape[0], dtype=jnp.int32)
  expert_nT = jnp.sum(rows_T[None, :, None] >= ends_ne[:, None], axis=2)
  y_RD = ops.expert_mlp(
    received_RD,
    expert_nT.reshape(-1).astype(jnp.int32),
    gate_up_eDF,
    down_eFD,
  )
  return experts.permute(_return(y_RD, route), inverse_T, order_T)


def _swap(x):
  """Row r of all peers, from peer r each."""
  return jax.lax.all_to_all(x, AXIS, 0, 0, tiled=True)


@jax.custom_vjp
def _send(sorted_TD, route):
  """[n * T, D]: from each peer a slot with its rows for this device, then 0."""
  n, (tokens, _) = route.sizes.size, sorted_TD.shape
  if _ragged():
    slots = mesh.vary(
      jnp.zeros((n * tokens, *sorted_TD.shape[1:]), sorted_TD.dtype)
    )
    me = jax.lax.axis_index(AXIS) * tokens
    return jax.lax.ragged_all_to_all(
      sorted_TD,
      slots,
      route.offsets,
      route.sizes,
      jnp.full_like(route.sizes, me),
      route.arriving,
      axis_name=AXIS,
    )
  rows_T = jnp.arange(tokens, dtype=jnp.int32)
  mine = rows_T[None] < route.sizes[:, None]
  index = jnp.where(mine, route.offsets[:, None] + rows_T[None], tokens)
  slots = sorted_TD.at[index].get(mode='fill', fill_value=0)
  return _swap(slots).reshape(n * tokens, -1)


@jax.custom_vjp
def _return(y_RD, route):
  """[T, D]: the rows of `_send` where they were, 0 for those that stayed."""
  n = route.sizes.size
  tokens = y_RD.shape[0] // n
  slots = jnp.arange(n, dtype=jnp.int32) * tokens
  if _ragged():
    rows = mesh.vary(jnp.zeros((tokens, *y_RD.shape[1:]), y_RD.dtype))
    return jax.lax.ragged_all_to_all(
      y_RD,
      rows,
      slots,
      route.arriving,
      route.theirs,
      route.sizes,
      axis_name=AXIS,
    )
  back_RD = _swap(y_RD.reshape(n, tokens, -1)).reshape(y_RD.shape)
  rows_T = jnp.arange(tokens, dtype=jnp.int32)
  ends = route.offsets + route.sizes
  peer_T = jnp.sum(rows_T[:, None] >= ends[None], axis=1)
  index_T = peer_T * tokens + rows_T - route.offsets[jnp.minimum(peer_T, n - 1)]
  index_T = jnp.where(peer_T < n, index_T, n * tokens)
  return back_RD.at[index_T].get(mode='fill', fill_value=0)


def _ragged():
  return jax.default_backend() != 'cpu'


# Each is the transpose of the other.
def _forward(f, x, route):
  return f(x, route), route


def _backward(transpose, route, g):
  return transpose(g, route), None


_send.defvjp(
  functools.partial(_forward, _send), functools.partial(_backward, _return)
)
_return.defvjp(
  functools.partial(_forward, _return), functools.partial(_backward, _send)
)
