# SPDX-License-Identifier: Apache-2.0
"""Experts on several devices: tokens travel to them, and what they give back.

Inside of `mesh.on_each`: device r of the mesh axis `expert` holds experts r*E/n
to (r+1)*E/n - 1 and tokens of its own. Nothing is dropped: what a device
receives has room for all tokens of all of its n peers, a slot of T rows each.
Messages have a static size, twice an even share of the tokens, and are repeated
until the busiest device has sent all: once or twice, unless a router collapses.
(XLA's ragged all-to-all sends no padding, but copies row by row: 52 ms there
and back for 32,768 tokens of 4 KiB on two H200s, where this takes 2.2 ms.)

Axis letters: T tokens of this device, D their width, E experts of all devices,
e of this one, F inner width of an expert, n devices along the axis.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

import ops
from ops import experts
from ops.experts import sink as sink_lib
from zaya_jax.parallel import placement

AXIS = 'expert'


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Route:
  """Which of the rows, sorted by expert, go where; all [n] int32.

  Attributes:
    offsets: the first row for each peer.
    sizes: rows for each peer.
    rounds: [] messages until all has arrived, wherever most is sent.
  """

  offsets: jax.Array
  sizes: jax.Array
  rounds: jax.Array


def expert_mlp(
  x_TD: jax.Array,
  expert_T: jax.Array,
  gate_up_eDF: jax.Array,
  down_eFD: jax.Array,
  sink: sink_lib.Sink | None = None,
) -> Any:
  """`ops.expert_mlp` with the experts of all devices along the axis.

  Args:
    x_TD: [T, D] tokens of this device.
    expert_T: [T] int32 in [0, E]; the class E has no expert and yields zeros.
    gate_up_eDF: [e, D, 2F] matrices of this device's experts, gate first.
    down_eFD: [e, F, D].
    sink: of `ops.expert_mlp`, for this device's experts.

  Returns:
    As `ops.expert_mlp`.
  """
  n, mine = jax.lax.axis_size(AXIS), gate_up_eDF.shape[0]
  order_T, inverse_T, starts = experts.sort_by_expert(expert_T, n * mine)
  sorted_TD = experts.permute(x_TD, order_T, inverse_T)
  bounds = starts[::mine]
  most = jax.lax.pmax(jnp.max(bounds[1:] - bounds[:-1]), AXIS)
  counts_ne = _swap((starts[1:] - starts[:-1]).reshape(n, mine))
  route = _Route(
    offsets=bounds[:-1],
    sizes=bounds[1:] - bounds[:-1],
    rounds=-(-most // placement.exchange_rows(x_TD.shape[0], n)),
  )
  received_RD = _send(sorted_TD, route)
  # Each slot is sorted by expert; behind its end stands the class of no expert.
  ends_ne = jnp.cumsum(counts_ne, axis=1)
  rows_T = jnp.arange(x_TD.shape[0], dtype=jnp.int32)
  expert_nT = jnp.sum(rows_T[None, :, None] >= ends_ne[:, None], axis=2)
  expert_R = expert_nT.reshape(-1).astype(jnp.int32)
  given = received_RD, expert_R, gate_up_eDF, down_eFD
  back = lambda y_RD: experts.permute(_return(y_RD, route), inverse_T, order_T)
  if sink is None:
    return back(ops.expert_mlp(*given))
  y_RD, stacks = ops.expert_mlp(*given, sink)
  return back(y_RD), stacks


def _swap(x):
  """Row r of all peers, from peer r each."""
  return jax.lax.all_to_all(x, AXIS, 0, 0, tiled=True)


@jax.custom_vjp
def _send(sorted_TD, route):
  """[n * T, D]: from each peer a slot with its rows for this device, then 0."""
  n, (tokens, _) = route.sizes.size, sorted_TD.shape

  def rows(first, count):
    row_C = first + jnp.arange(count, dtype=jnp.int32)
    here = row_C[None] < route.sizes[:, None]
    index = jnp.where(here, route.offsets[:, None] + row_C[None], tokens)
    return sorted_TD.at[index].get(mode='fill', fill_value=0)

  return _rounds(rows, sorted_TD, n, route.rounds).reshape(n * tokens, -1)


@jax.custom_vjp
def _return(y_RD, route):
  """[T, D]: the rows of `_send` where they were, 0 for those that stayed."""
  n = route.sizes.size
  tokens = y_RD.shape[0] // n
  y_nTD = y_RD.reshape(n, tokens, -1)
  rows = lambda first, count: jax.lax.dynamic_slice_in_dim(
    y_nTD, first, count, axis=1
  )
  back_RD = _rounds(rows, y_nTD[0], n, route.rounds).reshape(y_RD.shape)
  rows_T = jnp.arange(tokens, dtype=jnp.int32)
  ends = route.offsets + route.sizes
  peer_T = jnp.sum(rows_T[:, None] >= ends[None], axis=1)
  index_T = peer_T * tokens + rows_T - route.offsets[jnp.minimum(peer_T, n - 1)]
  index_T = jnp.where(peer_T < n, index_T, n * tokens)
  return back_RD.at[index_T].get(mode='fill', fill_value=0)


def _rounds(rows, like_TD, n, count):
  """[n, T, D]: what `rows(first, count)` [n, count, D] of the peers arrives."""
  tokens = like_TD.shape[0]
  size = placement.exchange_rows(tokens, n)
  if size == tokens:
    return _swap(rows(0, tokens))

  def send(i, slots):
    arrived = _swap(rows(i * size, size))
    return jax.lax.dynamic_update_slice_in_dim(slots, arrived, i * size, axis=1)

  slots = jnp.broadcast_to(jnp.zeros_like(like_TD)[None], (n, *like_TD.shape))
  return jax.lax.fori_loop(0, count, send, slots)


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
