# SPDX-License-Identifier: Apache-2.0
"""The collectives of a step, with bytes, axes and seconds.

A collective takes the bytes that each device sends over the bandwidth between
them, and a latency for each halving of the group. Between nodes, gathers and
reductions use the network cards of all devices that take part in a node.
"""

import dataclasses
import math

from zaya_jax import config as config_lib
from zaya_jax.plan import chips as chips_lib
from zaya_jax.plan import layout as layout_lib
from zaya_jax.plan import memory

EFFICIENCY = 0.8  # Of a link, for large messages.
LATENCY = 15e-6  # Seconds, for each halving of a group.

_SENT = {
  'all-gather': lambda n: (n - 1) / n,
  'reduce-scatter': lambda n: (n - 1) / n,
  'all-to-all': lambda n: (n - 1) / n,
  'all-reduce': lambda n: 2 * (n - 1) / n,
  'permute': lambda n: 1.0,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collective:
  """One kind of message of a step.

  Attributes:
    what: is sent.
    kind: of collective.
    axes: of the mesh, over which it goes.
    count: calls in a step.
    bytes: of all calls of a step together, on one device: the larger of what
      goes in and what comes out of each.
    seconds: of all calls.
    local: devices of a group that share a node.
    size: devices of a group.
    hidden: whether it can run behind the backward pass.
  """

  what: str
  kind: str
  axes: tuple[str, ...]
  count: int
  bytes: float
  seconds: float
  local: int
  size: int
  hidden: bool = False


def plan(
  config: config_lib.Config, layout: layout_lib.Layout, chip: chips_lib.Chip
) -> list[Collective]:
  """The collectives of a step, over axes of more than one device."""
  found = [
    *_parameters(config, layout, chip),
    *_experts(config, layout, chip),
    *_context(config, layout, chip),
  ]
  counted = 4 * (config.model.num_layers * config.model.num_classes + 3)
  found.append(('loss, norm, load', 'all-reduce', layout_lib.AXES, 4, counted))
  made = [_make(layout, chip, *known) for known in found]
  return [c for c in made if c.size > 1]


def seconds(
  layout: layout_lib.Layout,
  chip: chips_lib.Chip,
  kind: str,
  axes: tuple[str, ...],
  count: int,
  total: float,
) -> float:
  """Of `count` collectives of `total` bytes together."""
  size, local = layout.size(axes), layout.local(axes, chip.node)
  if size == 1:
    return 0.0
  rate = chip.local_rate(local) if local > 1 else math.inf
  if local < size:
    # Each device talks to each other node itself in an all-to-all.
    cards = (size - 1) / (size - local) if kind == 'all-to-all' else local
    rate = min(rate, chip.nic * cards)
  sent = total * _SENT[kind](size)
  return sent / (rate * EFFICIENCY) + count * LATENCY * math.ceil(
    math.log2(size)
  )


def _make(layout, chip, what, kind, axes, count, total) -> Collective:
  axes = tuple(axis for axis in axes if layout.sizes[axis] > 1)
  return Collective(
    what=what,
    kind=kind,
    axes=axes,
    count=count,
    bytes=total,
    seconds=seconds(layout, chip, kind, axes, count, total),
    local=layout.local(axes, chip.node),
    size=layout.size(axes),
    hidden=what.startswith('gradients'),
  )


def _parameters(config, layout, chip):
  """ZeRO-1 over all copies of a parameter; FSDP gathers each layer twice."""
  leaves, parts = memory.leaves(config), layout.parts
  layers, fsdp = config.model.num_layers, layout.sizes['fsdp']
  groups = {}
  for leaf in leaves:
    split = layout.sizes['expert'] > 1 and leaf.expert
    axes = tuple(a for a in layout_lib.AXES if not (split and a == 'expert'))
    share = layout.sizes['expert'] if split else 1
    groups[axes] = groups.get(axes, 0) + leaf.size / share
  for axes, size in groups.items():
    copies = tuple(axis for axis in axes if axis != 'fsdp')
    if fsdp > 1:
      gathered = 2 * parts * chip.width * size
      calls = parts * (layers + 1)
      yield 'weights', 'all-gather', ('fsdp',), 2 * calls, gathered
      summed = parts * 4 * size
      yield 'gradients', 'reduce-scatter', ('fsdp',), calls, summed
    held = 4 * size / fsdp
    yield 'gradients', 'reduce-scatter', copies, parts, parts * held
    yield 'updates', 'all-gather', copies, 1, held
  shapes = memory.matrices(config)
  if shapes:
    # Stacks of whole matrices, padded to as many as there are devices.
    share = sum(
      -(-count // layout.devices) * m * n for (m, n), count in shapes.items()
    )
    calls = 2 * len(shapes)  # There and back.
    yield 'Muon', 'all-to-all', layout_lib.AXES, calls, 2 * 4 * share


def _experts(config, layout, chip):
  """Tokens to their experts and back, forward, backward and again by remat."""
  passes = 6 if config.model.remat == 'block' else 4
  calls = passes * config.model.num_layers * layout.parts
  each = chip.width * layout.tokens * config.model.d_model
  yield 'tokens', 'all-to-all', ('expert',), calls, calls * each


def _context(config, layout, chip):
  """Keys and values of whole rows, their gradients, and what convolutions see.

  The halo is the earlier tokens of the convolutions and one delayed value.
  """
  model = config.model
  kv = model.num_kv_heads * model.head_dim
  again = 2 if model.remat == 'block' else 1
  layers = model.num_layers * layout.parts
  rows = chip.width * layout.rows * layers
  whole = rows * layout.seq_len * 2 * kv
  axes = ('context',)
  yield 'keys, values', 'all-gather', axes, again * layers, again * whole
  yield 'their gradients', 'reduce-scatter', axes, layers, whole
  halo = rows * (model.conv_context * model.d_qk + kv / 2)
  calls = (again + 1) * layers
  yield 'halo', 'permute', axes, 2 * calls, (again + 1) * halo
