# SPDX-License-Identifier: Apache-2.0
"""Rates of processes alone and of links between two, by all at the same time.

Across a link each device sends to one of the other process and gets from it,
so that all network cards of both nodes carry something; a card that is slow
slows the whole. Values that arrive are checked, each element.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from zaya_jax.bench.machine import collectives, memory
from zaya_jax.bench.sweep import frame, limit, program
from zaya_jax.preflight.links import schedule
from zaya_jax.runtime import processes

Link = schedule.Link
_REPEATS = 7
# Bytes of an array or a message, and rows of a product, of a CPU and a GPU.
_BYTES = {'cpu': 2**21, 'gpu': 2**26}
_ROWS = {'cpu': 384, 'gpu': 8192}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
  """What a measurement gave.

  Attributes:
    rate: of whatever, per second; 0 where values were wrong.
    fault: why it counts for nothing, '' if it does.
  """

  rate: float
  fault: str = ''


class Meter:
  """Measures; all processes call the same methods in the same order.

  Args:
    names: of the processes, for sentences.
    watch: of measurements that hang.
  """

  def __init__(self, names: list[str], watch: limit.Limit):
    self._names, self._watch, self._turn = names, watch, 0
    self._groups: dict[Link, collectives.Group] = {}
    self.doing: list[Link] = []  # Now, for who ends what hangs.
    self._platform = ''

  def start(self) -> None:
    """Looks for devices, for which each process waits for all."""
    with self._watch.within('looking for devices'):
      platform = jax.devices()[0].platform
    self._platform = 'cpu' if platform == 'cpu' else 'gpu'

  def nodes(self) -> dict[str, dict[int, Found]]:
    """Rates of each process alone: of its memory, and of a product."""
    return {
      'memory': self._of_each(self._memory, 'memory'),
      'product': self._of_each(self._product, 'product'),
    }

  def links(self, pairs: list[Link]) -> dict[Link, Found]:
    """Rates of links; pairs without a process in common go together."""
    found: dict[Link, Found] = {}
    for together in schedule.rounds(pairs):
      self.doing = together
      here = processes.process()
      mine = next((pair for pair in together if here in pair), together[0])
      groups = [self._group(pair) for pair in together]
      group = groups[together.index(mine)]
      what = f'the link of {self.name(mine)}'
      said = self._within(what, functools.partial(self._link, group))
      found |= {pair: said[pair[0]] for pair in together}
      for pair in together:  # Either end may have got wrong values.
        if fault := said[pair[1]].fault:
          found[pair] = Found(rate=0.0, fault=fault)
    self.doing = []
    return found

  def name(self, who: int | Link) -> str:
    """A process or a link in words."""
    if isinstance(who, int):
      return f'process {who} ({self._names[who]})'
    return f'{self.name(who[0])} and {self.name(who[1])}'

  def unfinished(self) -> list[int]:
    """Processes that have not ended what all are doing."""
    client = processes.client()
    found = []
    for other in range(processes.processes()):
      try:
        client.key_value_try_get(f'{self._key()}/{other}')
      except jax.errors.JaxRuntimeError:
        found.append(other)
    return found

  def _of_each(self, measure, noun) -> dict[int, Found]:
    what = f'{noun} of {self.name(processes.process())}'
    return dict(enumerate(self._within(what, measure)))

  def _within(self, what: str, measure: Callable[[], float]) -> list[Found]:
    """What every process has measured; none may hang."""
    self._turn += 1
    with self._watch.within(what):
      mine = Found(rate=0.0)
      try:
        mine = Found(rate=measure())
      except frame.WrongError as error:
        mine = Found(rate=0.0, fault=str(error))
      processes.client().key_value_set(
        f'{self._key()}/{processes.process()}', ''
      )
      said = processes.all_say(dataclasses.asdict(mine))
    return [Found(**one) for one in said]

  def _key(self) -> str:
    return f'zaya/links/{self._turn}'

  def _group(self, pair: Link) -> collectives.Group:
    """Devices of two processes in turn: a ring whose every hop is the link."""
    if pair not in self._groups:
      sides = [[], []]
      for device in jax.devices():
        if device.process_index in pair:
          sides[pair.index(device.process_index)].append(device)
      ring = [d for both in zip(*sides, strict=False) for d in both]
      self._groups[pair] = collectives.Group(ring, processes.largest)
    return self._groups[pair]

  def _link(self, group: collectives.Group) -> float:
    size = group.exact(_BYTES[self._platform])
    timed = group.measure('permute', size, None, _REPEATS)
    return size / timed.low

  def _memory(self) -> float:
    size = _BYTES[self._platform]
    slowest = 0.0
    for device in jax.local_devices():
      with jax.default_device(device):
        timed = memory.measure('triad', size, None, _REPEATS)
      slowest = max(slowest, timed.low)
    return memory.work('triad', size) / slowest

  def _product(self) -> float:
    rows = _ROWS[self._platform]
    kind = jnp.float32 if self._platform == 'cpu' else jnp.bfloat16
    slowest = 0.0
    for device in jax.local_devices():
      with jax.default_device(device):
        x = jnp.full((rows, rows), 0.5, kind)
        timed, _ = program.measure(jnp.dot, (x, x), _REPEATS)
      slowest = max(slowest, timed.low)
    return 2 * rows**3 / slowest
