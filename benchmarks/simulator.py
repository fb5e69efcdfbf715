# SPDX-License-Identifier: Apache-2.0
"""Years of failures on a large machine, decided by the same `decide`.

Failures come at random, at a constant rate. What each costs is assumed, and
stated: time to notice it, time until the next generation trains, and the work
since the last seal. What is done about it, and so how much is lost and whether
a person is called, is what `decide` says.
"""

import collections
import dataclasses
import heapq
import math
import random

from zaya_jax.aegis.decide import decide as decide_lib
from zaya_jax.aegis.decide import events
from zaya_jax.aegis.decide import state as state_lib

_YEAR_S = 365 * 86_400.0
_SEALS = 16  # No rollback goes farther back.

# Shares of what interrupts a run. About four of five are of hardware, as in the
# table of the 419 unexpected interruptions of Llama 3 (arXiv 2407.21783).
MIX = {
  'gpu': 0.56,  # A line of the kernel names the node.
  'network': 0.08,
  'node_lost': 0.08,
  'rank_killed': 0.08,
  'exception': 0.08,
  'one_hangs': 0.06,
  'all_hang': 0.03,
  'wrong_replica': 0.015,
  'not_finite': 0.015,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
  """What is assumed.

  Attributes:
    nodes: of the run.
    spares: more nodes, at the beginning.
    mtbf_s: mean time between two failures of the whole run.
    detect_s: until a failure is noticed.
    recover_s: from there until the next generation trains.
    save_s: in which a save keeps the devices waiting.
    step_s: of a step.
    suspect_s: of training before a wrong number is found that is not trusted.
    repair_s: until a node that was replaced is a spare again.
    queue_s: until the scheduler has started a run anew that ended with 75.
    person_s: until a person has, after any other end.
  """

  nodes: int = 128
  spares: int = 4
  mtbf_s: float = 8 * 3600.0
  detect_s: float = 30.0
  recover_s: float = 90.0
  save_s: float = 0.2
  step_s: float = 2.0
  suspect_s: float = 100.0
  repair_s: float = 86_400.0
  queue_s: float = 600.0
  person_s: float = 4 * 3600.0

  @property
  def interval_s(self) -> float:
    """Of training between two saves: Young's and Daly's."""
    return math.sqrt(2 * self.save_s * self.mtbf_s)


@dataclasses.dataclass(kw_only=True)
class Year:
  """What a year came to.

  Attributes:
    effective: share of the time whose work was kept.
    failures: how many there were.
    lost_s: seconds of which nothing was kept, by what they were spent on.
    actions: how often each was taken; a stop with its exit code.
    spares_least: fewest spares at any time.
  """

  effective: float = 0.0
  failures: int = 0
  lost_s: dict[str, float]
  actions: collections.Counter
  spares_least: int


def simulate(machine: Machine, *, seed: int, length_s: float = _YEAR_S) -> Year:
  """Runs through the failures of a year, or of another time."""
  run = _Run(machine, random.Random(seed))
  while (time_s := run.next_failure_s()) < length_s:
    run.fail(time_s)
  run.train(length_s)
  kept_s, lost_s = run.kept_s + run.unsaved_s, run.year.lost_s
  # What is left is neither kept nor spent on anything else.
  lost_s['noticed and started'] = length_s - kept_s - sum(lost_s.values())
  run.year.effective = kept_s / length_s
  return run.year


class _Run:
  """A run in simulated time."""

  def __init__(self, machine: Machine, chance: random.Random):
    self._machine, self._chance = machine, chance
    count = machine.nodes + machine.spares
    self._names = tuple(f'n{i}' for i in range(count))
    self._state = self._start(None)
    self._repairs: list[tuple[float, str]] = []
    self._now_s = self._begun_s = 0.0  # Of the clock; when training began.
    self.kept_s = self.unsaved_s = 0.0  # Of training.
    self.year = Year(
      lost_s=dict.fromkeys(('saved', 'done again', 'rolled back'), 0.0),
      actions=collections.Counter(),
      spares_least=machine.spares,
    )

  def next_failure_s(self) -> float:
    """When the next one comes; also while the run starts, or waits."""
    return self._now_s + self._chance.expovariate(1 / self._machine.mtbf_s)

  def train(self, time_s: float) -> None:
    """Trains up to a time, if the present generation has begun by then."""
    machine, begun_s = self._machine, self._begun_s
    self._now_s, self.unsaved_s = time_s, 0.0
    while self._repairs and self._repairs[0][0] <= time_s:
      at_s, node = heapq.heappop(self._repairs)
      self._see('returned', at_s, node=node)
    if time_s <= begun_s:
      return
    self._see('running', begun_s)
    cycle_s = machine.interval_s + machine.save_s
    saves = int((time_s - begun_s) // cycle_s)
    for save in range(max(1, saves - _SEALS + 1), saves + 1):
      step = self._step(self.kept_s + save * machine.interval_s)
      self._see('sealed', begun_s + save * cycle_s, step=step)
    self.year.lost_s['saved'] += saves * machine.save_s
    self.kept_s += saves * machine.interval_s
    self.unsaved_s = time_s - begun_s - saves * cycle_s

  def fail(self, time_s: float) -> None:
    """One failure, and what is done about it."""
    self.train(time_s)
    self.year.failures += 1
    kind = self._chance.choices(list(MIX), list(MIX.values()))[0]
    action = self._see(time_s=time_s, **self._facts(kind))
    machine, lost_s = self._machine, self.year.lost_s
    lost_s['done again'] += self.unsaved_s
    if action.step is not None:
      back_s = max(0.0, self.kept_s - action.step * machine.step_s)
      lost_s['rolled back'] += back_s
      self.kept_s -= back_s
    self._begun_s = time_s + machine.detect_s + machine.recover_s
    self._begun_s += action.delay_s
    if action.kind == 'stop':
      again = action.exit_code == 75
      self._begun_s += machine.queue_s if again else machine.person_s
      self._state = self._start(self._state)

  def _start(self, last: state_lib.State | None) -> state_lib.State:
    count = self._machine.nodes
    return state_lib.start(
      self._names[:count], spares=self._names[count:], last=last
    )

  def _step(self, kept_s: float) -> int:
    return round(kept_s / self._machine.step_s)

  def _facts(self, kind: str) -> dict:
    """An event of a kind on any node; one rank stands for its node."""
    culprit = self._chance.choice(self._state.nodes)
    step = self._step(self.kept_s + self.unsaved_s)
    good = step - self._step(self._machine.suspect_s)
    code, other = {'rank_killed': (-11, -6), 'exception': (1, 75)}.get(
      kind, (None, None)
    )
    behind = kind == 'one_hangs'
    facts = {
      'gpu': dict(kind='gpu_reset', action='replace_node', source='kern'),
      'network': dict(kind='nic_down', action='replace_node', source='kern'),
      'node_lost': dict(kind='agent_lost'),
      'wrong_replica': dict(kind='corrupt_replica', good_step=good),
      'not_finite': dict(kind='not_finite', good_step=good),
    }
    if kind in facts:
      return {'node': culprit, 'step': step, **facts[kind]}
    progress = tuple(
      events.Progress(
        rank=rank,
        node=node,
        phase='step',
        entered=step - (behind and node == culprit),
        exit_code=code if node == culprit else other,
      )
      for rank, node in enumerate(self._state.nodes)
    )
    return {'kind': 'exit' if code else 'hang', 'progress': progress}

  def _see(self, kind: str, time_s: float, **facts) -> events.Action:
    before = set(self._state.quarantined)
    event = events.Event(kind=kind, time_s=time_s, **facts)
    self._state, action = decide_lib.decide(self._state, event)
    for node in set(self._state.quarantined) - before:
      heapq.heappush(self._repairs, (time_s + self._machine.repair_s, node))
    if action.kind != 'ignore':
      code = '' if action.exit_code is None else f' {action.exit_code}'
      self.year.actions[action.kind + code] += 1
    spares = len(self._state.spares)
    self.year.spares_least = min(self.year.spares_least, spares)
    return action
