# SPDX-License-Identifier: Apache-2.0
"""The collectives of a step, with bytes, axes and seconds (`network`)."""

import collections
import dataclasses
import math

from zaya_jax import config as config_lib
from zaya_jax.bench.machine import file
from zaya_jax.optim import sample
from zaya_jax.parallel import placement
from zaya_jax.plan.cost import division, memory, network, newton_schulz
from zaya_jax.runtime import chips as chips_lib

# What single layers send while others compute; those of FSDP, which compute
# with what they have just gathered, only in the backward pass.
_BEHIND = {
  'layer parameters': 'forward', 'layer expert weights': 'forward',
  'layer gradients': 'backward',
}  # fmt: skip


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
    seconds: of all calls; at best `low`, at worst `high`.
    source: of the seconds, as `estimate.Estimate`.
    local: devices of a group that share a node.
    size: devices of a group.
    hidden: the pass behind which it can run, 'forward' or 'backward'; ''
      behind none.
  """

  what: str
  kind: str
  axes: tuple[str, ...]
  count: int
  bytes: float
  seconds: float
  low: float
  high: float
  source: str
  local: int
  size: int
  hidden: str = ''


def plan(
  config: config_lib.Config,
  layout: division.Layout,
  chip: chips_lib.Chip,
  machine: file.Machine | None = None,
) -> list[Collective]:
  """The collectives of a step, over axes of more than one device."""
  found = [
    *_parameters(config, layout, chip),
    *_experts(config, layout, chip),
    *_context(config, layout, chip),
    *_sample(config),
  ]
  counted = 4 * (config.model.num_layers * config.model.num_classes + 3)
  found.append(('loss, norm, load', 'all-reduce', division.AXES, 4, counted))
  bucket = 2**20 * config.mesh.bucket_mib
  made = (
    _make(layout, chip, machine, *_fused(bucket, *known)) for known in found
  )
  return [c for c in made if c]


def _fused(bucket, what, kind, axes, count, total):
  """As few calls as buckets are filled; tokens and keys are no such thing."""
  if bucket and kind in ('all-gather', 'reduce-scatter', 'all-reduce'):
    count = min(count, max(1, math.ceil(total / bucket)))
  return what, kind, axes, count, total


def _make(layout, chip, machine, what, kind, axes, count, total):
  """One of them; None over a single device."""
  axes = tuple(axis for axis in axes if layout.sizes[axis] > 1)
  group = network.Group(layout.size(axes), layout.local(axes, chip.node))
  if group.size == 1:
    return None
  took = network.seconds(chip, machine, kind, group, count, total)
  return Collective(
    what=what,
    kind=kind,
    axes=axes,
    count=count,
    bytes=total,
    **vars(took),
    local=group.local,
    size=group.size,
    hidden=_BEHIND.get(what, ''),
  )


def _parameters(config, layout, chip):
  """FSDP gathers each layer, with remat twice; ZeRO-1 gathers and sums once.

  All in float32 but for the experts, which ZeRO-1 gathers in the type of matrix
  products. With one part of a step layers gather their own matrices; with more
  all are gathered before the first and summed after the last. What no axis
  divides is reduced whole.
  """
  leaves = division.leaves(config, layout)
  again = 1 if config.model.remat in ('none', 'auto') else 2
  fsdp = layout.sizes['fsdp']
  found = collections.defaultdict(lambda: [0, 0.0])

  def add(what, kind, axes, calls, total):
    if what.endswith('gradients') and leaf.frozen:
      return
    known = found[what, kind, axes]
    known[0] += calls
    known[1] += total

  for leaf in leaves:
    layers = config.model.num_layers if leaf.name.startswith('layers/') else 1
    of_layer = placement.is_of_layer(leaf.name, leaf.shape)
    if 'fsdp' in leaf.held and leaf.cut and not of_layer and layout.parts == 1:
      axes = ('fsdp', *leaf.cut)
      add('gradients', 'reduce-scatter', axes, 1, fsdp * leaf.nbytes)
      add('parameters', 'all-gather', axes, 1, fsdp * leaf.nbytes)
      continue
    if 'fsdp' in leaf.held:
      times = again if layers > 1 else 1
      each = layout.parts * leaf.nbytes * fsdp
      one = layout.parts * layers
      add('weights', 'all-gather', ('fsdp',), times * one, times * each)
      add('layer gradients', 'reduce-scatter', ('fsdp',), one, each)
    if leaf.cut:
      apart = of_layer if layout.parts == 1 else leaf.is_large
      calls = layers if apart else 1
      what = 'layer ' if of_layer and layout.parts == 1 else ''
      add(f'{what}gradients', 'reduce-scatter', leaf.cut, calls, leaf.nbytes)
      total, width = leaf.nbytes, memory.sent_width(leaf, layout, chip.width)
      name = 'parameters' if width == 4 else 'expert weights'
      add(f'{what}{name}', 'all-gather', leaf.cut, calls, total * width / 4)
    if leaf.copied:
      held = 4 * leaf.size / leaf.parts
      add('gradients', 'all-reduce', leaf.copied, calls=1, total=held)
  for stack in newton_schulz.stacks(config, layout, leaves):
    kind, calls = ('all-gather', 1) if stack.whole else ('all-to-all', 2)
    add('Muon', kind, stack.axes, calls, chip.width * calls * stack.sent)
  for (what, kind, axes), (calls, total) in found.items():
    yield what, kind, axes, calls, total


def _experts(config, layout, chip):
  """Tokens to their experts and back, forward, backward and again by remat.

  Where the load is about even, one message holds them all.
  """
  passes = 6 if config.model.remat == 'block' else 4
  calls = passes * config.model.num_layers * layout.parts
  peers = layout.sizes['expert']
  rows = peers * placement.exchange_rows(layout.tokens, peers)
  each = chip.width * rows * config.model.d_model
  yield 'tokens', 'all-to-all', ('expert',), calls, calls * each


def _sample(config):
  """What tokens think of their experts, by which the bias is moved."""
  if every := sample.every(config.optim, config.data):
    tokens = config.data.batch_size * config.data.seq_len // every
    classes = config.model.num_layers * config.model.num_classes
    total = 4 * tokens * classes
    yield 'sample of the load', 'all-reduce', division.AXES, 1, total


def _context(config, layout, chip):
  """Keys and values of whole rows, their gradients, and what convolutions see.

  Keys and values are gathered forward and backward, or passed on n - 1 times in
  each pass; their gradients are float32. The halo of each of a device's two
  chunks comes from a neighbor.
  """
  model, n = config.model, layout.sizes['context']
  again = 2 if model.remat == 'block' else 1
  layers = model.num_layers * layout.parts
  part = layers * layout.rows * layout.columns * 2
  part *= model.num_kv_heads * model.head_dim
  if config.mesh.context_mode == 'ring':
    there = back = 'permute'
    times, calls, each = again + 1, layers * (n - 1), part * (n - 1)
  else:
    there, back = 'all-gather', 'reduce-scatter'
    times, calls, each = 2, layers, part * n
  axes, total = ('context',), times * chip.width * each
  yield 'keys, values', there, axes, times * calls, total
  yield 'their gradients', back, axes, calls, 4 * each
  width = model.d_qk + model.num_kv_heads * model.head_dim // 2
  calls = 2 * (again + 1) * layers
  tokens = max(model.conv_context, 1) * layout.rows
  yield 'halo', 'permute', axes, calls, calls * chip.width * tokens * width
