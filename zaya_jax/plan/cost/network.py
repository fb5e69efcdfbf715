# SPDX-License-Identifier: Apache-2.0
"""Seconds of a collective: from measured curves, else from links.

By the data sheet it takes the bytes that each device sends over the bandwidth
between them, and a latency for each halving of the group. Between nodes,
gathers and reductions use the network cards of all devices that take part in a
node.

A curve of another number of devices counts with its share of what links would
allow there: the same share is reached here. It must be of one node if the group
is, and of several if not.
"""

import dataclasses
import math

from zaya_jax.bench.machine import bus, file
from zaya_jax.bench.sweep import record
from zaya_jax.bench.sweep import saturation as saturation_lib
from zaya_jax.plan.cost import estimate
from zaya_jax.runtime import chips as chips_lib

EFFICIENCY = 0.8  # Of a link, for large messages.
LATENCY = 15e-6  # Seconds, for each halving of a group.
_OTHER = 0.1  # Error of a curve of another number of devices, and
_KIND = 0.2  # of another collective, or below the sizes that were measured.
_LATENCY_SIZE = 2**16  # Bytes: what takes its time whatever its size.
# Whose bus bandwidth stands for that of a collective that was not measured.
_LIKE = {
  'reduce-scatter': ('all-gather', 'all-reduce'),
  'all-gather': ('reduce-scatter', 'all-reduce'),
  'all-reduce': ('reduce-scatter', 'all-gather'),
}


@dataclasses.dataclass(frozen=True)
class Group:
  """Devices that take part.

  Attributes:
    size: of all.
    local: that share a node.
  """

  size: int
  local: int

  @property
  def spans(self) -> bool:
    """Whether it has devices of several nodes."""
    return self.local < self.size


def seconds(
  chip: chips_lib.Chip, machine: file.Machine | None, kind: str, group: Group,
  count: int, total: float,
) -> estimate.Estimate:  # fmt: skip
  """Of `count` collectives of `total` bytes together.

  Args:
    chip: with links and network cards of its machine.
    machine: what was measured; None: nothing.
    kind: of `bus.FACTORS`.
    group: more than one device.
    count: calls.
    total: bytes, the larger of what a device sends and receives.
  """
  section = machine.sections.get('collectives') if machine else None
  if section and total:
    found = _measured(chip, section.points, kind, group, total / count)
    if found:
      return found * count
  sent = total * bus.FACTORS[kind](group.size)
  latency = count * LATENCY * math.ceil(math.log2(group.size))
  wire = sent / (ceiling(chip, kind, group) * EFFICIENCY)
  return estimate.sheet(wire + latency)


def ceiling(chip: chips_lib.Chip, kind: str, group: Group) -> float:
  """Bytes per second that links let each device send."""
  rate = chip.local_rate(group.local) if group.local > 1 else math.inf
  if group.spans:
    size, local = group.size, group.local
    # Each device talks to each other node itself in an all-to-all.
    cards = (size - 1) / (size - local) if kind == 'all-to-all' else local
    rate = min(rate, chip.nic * cards)
  return rate


def saturation(
  chip: chips_lib.Chip, machine: file.Machine, kind: str, group: Group
) -> int:
  """Bytes from which on a collective has 90 % of its best rate; 0: unknown."""
  section = machine.sections.get('collectives')
  curve = _nearest(chip, section.points, kind, group) if section else []
  if len(curve) < 2:
    return 0
  return saturation_lib.saturated({p.size: p.rate for p in curve})


def _nearest(chip, points, kind, group) -> list[record.Point]:
  """The curve that comes nearest to this collective; []: there is none."""
  for name in (kind, *_LIKE.get(kind, ())):
    counts = {
      p.devices
      for p in points
      if p.case == name and (p.devices > chip.node) == group.spans
    }
    if counts:
      away = lambda n: abs(math.log2(n / group.size))
      return record.curve(points, name, min(counts, key=lambda n: (away(n), n)))
  return []


def _measured(chip, points, kind, group, size) -> estimate.Estimate | None:
  """One call of `size` bytes by the nearest curve; None: there is none."""
  curve = _nearest(chip, points, kind, group)
  if not curve:
    return None
  name, nearest = curve[0].case, curve[0].devices
  # The message that keeps links as long busy there.
  other = Group(nearest, min(nearest, chip.node))
  factor = bus.FACTORS[kind](group.size) / bus.FACTORS[name](nearest)
  same = (kind, group.size) == (name, nearest)
  took, below = _of_curve(curve, size if same else size * factor, points, chip)
  if not same:
    took *= ceiling(chip, name, other) / ceiling(chip, kind, group)
    steps = math.ceil(math.log2(group.size)) - math.ceil(math.log2(nearest))
    took += LATENCY * max(0, steps)
  point = min(curve, key=lambda p: abs(math.log2(p.size / size)))
  found = estimate.Estimate(
    seconds=took,
    low=took * point.low / point.seconds,
    high=took * point.high / point.seconds,
    source=estimate.MEASURED,
  )
  wide = _OTHER * (nearest != group.size) + _KIND * (name != kind or below)
  return found.wider(wide)


def _of_curve(curve, size, points, chip) -> tuple[float, bool]:
  """Seconds of a message, and whether it is smaller than what was measured.

  Then its bandwidth falls as that of an all-reduce within a node does.
  """
  first = curve[0]
  if size >= first.size or first.size <= _LATENCY_SIZE:
    return record.seconds(curve, size), False
  inner = record.curve(points, 'all-reduce', chip.node)
  if not inner or inner[0].size >= first.size:
    return min(first.seconds, LATENCY + size * first.seconds / first.size), True
  one, two = (record.seconds(inner, s) for s in (size, first.size))
  return first.seconds * one / two, True
