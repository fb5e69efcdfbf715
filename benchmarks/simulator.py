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
# table of the 419 unexpected interruptions of Llama 3 (arXiv 2407.21783). It
# does not say how many nodes each took; the last three, of many, are assumed.
MIX = {
  'gpu': 0.54,  # A line of the kernel names the node.
  'network': 0.06,
  'node_lost': 0.07,
  'rank_killed': 0.08,
  'exception': 0.08,
  'one_hangs': 0.06,
  'all_hang': 0.03,
  'wrong_replica': 0.01,
  'not_finite': 0.01,
  'switch': 0.03,  # 16 nodes at once, which have all returned soon.
  'power': 0.01,  # 32, for longer than anybody waits.
  'storage': 0.02,  # All ranks hang, and go on only when it is back.
}
_TOGETHER = {'switch': 16, 'power': 32}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
  """What is assumed.

  Attributes:
    nodes: of the run.
    spares: more nodes, at the beginning.
    mtbf_s: mean time between two failures of the whole run.
    detect_s: until a failure is noticed.
    recover_s: from there until the next generation trains.
    measured: (kind, seconds) of failures of which both together were measured.
    save_s: in which a save keeps the devices waiting.
    step_s: of a step.
    suspect_s: of training before a wrong number is found that is not trusted.
    repair_s: until a node that was replaced is a spare again.
    outage_s: mean time that a switch or the storage is away; the power, ten
      times that.
    again_s: of training until a broken node fails again that the caps keep.
    queue_s: until the scheduler has started a run anew that ended with 75, on
      other nodes where some are in quarantine.
    person_s: until a person has, after any other end.
    policy: of the decisions.
  """

  nodes: int = 128
  spares: int = 4
  mtbf_s: float = 8 * 3600.0
  detect_s: float = 30.0
  recover_s: float = 90.0
  measured: tuple[tuple[str, float], ...] = ()
  save_s: float = 0.2
  step_s: float = 2.0
  suspect_s: float = 100.0
  repair_s: float = 86_400.0
  outage_s: float = 120.0
  again_s: float = 600.0
  queue_s: float = 600.0
  person_s: float = 4 * 3600.0
  policy: state_lib.Policy = state_lib.Policy()

  def down_s(self, kind: str) -> float:
    """From a failure of a kind until the next generation trains."""
    return dict(self.measured).get(kind, self.detect_s + self.recover_s)

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


def simulate(
  machine: Machine,
  *,
  seed: int,
  length_s: float = _YEAR_S,
  mix: dict[str, float] | None = None,
) -> Year:
  """Runs through the failures of a year, or of another time."""
  run = _Run(machine, random.Random(seed), mix or MIX)
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

  def __init__(
    self, machine: Machine, chance: random.Random, mix: dict[str, float]
  ):
    self._machine, self._chance, self._mix = machine, chance, mix
    self._made = 0  # Names of nodes.
    self._now_s = self._begun_s = 0.0  # Of the clock; when training began.
    self._state = self._start(None)
    self._returns: list[tuple[float, str]] = []  # When nodes are repaired.
    self._broken: list[str] = []  # Nodes that the caps keep.
    self.kept_s = self.unsaved_s = 0.0  # Of training.
    self.year = Year(
      lost_s=dict.fromkeys(
        ('saved', 'done again', 'rolled back', 'awaited'), 0.0
      ),
      actions=collections.Counter(),
      spares_least=machine.spares,
    )

  def next_failure_s(self) -> float:
    """When the next one comes; also while the run starts, or waits."""
    time_s = self._now_s + self._chance.expovariate(1 / self._machine.mtbf_s)
    again_s = self._begun_s + self._machine.again_s
    return min(time_s, max(self._now_s, again_s)) if self._broken else time_s

  def train(self, time_s: float) -> None:
    """Trains up to a time, if the present generation has begun by then."""
    machine, begun_s = self._machine, self._begun_s
    self._now_s, self.unsaved_s = time_s, 0.0
    while self._returns and self._returns[0][0] <= time_s:
      at_s, node = heapq.heappop(self._returns)
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
    self.year.lost_s['done again'] += self.unsaved_s
    kind, culprit = self._what(time_s)
    if kind in _TOGETHER:
      action = self._lose_many(kind)
    else:
      action = self._see(time_s=time_s, **self._facts(kind, culprit))
    if kind == 'storage':
      self._see('storage', time_s)
      self._await(self._chance.expovariate(1 / self._machine.outage_s))
    # A broken node that the caps keep breaks again, until they let it go.
    if kind in ('gpu', 'network') and culprit in self._state.nodes:
      self.year.actions['kept by the caps'] += 1
      self._broken.append(culprit)
    self._begin(action, self._machine.down_s(kind))

  def _what(self, time_s: float) -> tuple[str, str]:
    """The kind of a failure, and its node."""
    if self._broken and time_s >= self._begun_s + self._machine.again_s:
      node = self._broken.pop(0)
      if node in self._state.nodes:
        return 'gpu', node
    (kind,) = self._chance.choices(list(self._mix), list(self._mix.values()))
    return kind, self._chance.choice(self._state.nodes)

  def _lose_many(self, kind: str) -> events.Action:
    """Nodes of one switch or one room are away for a while."""
    nodes, mean_s = self._state.nodes, self._machine.outage_s
    first = self._chance.randrange(max(1, len(nodes) - _TOGETHER[kind]))
    lost = nodes[first : first + _TOGETHER[kind]]
    away_s = self._chance.expovariate(
      1 / (10 * mean_s if kind == 'power' else mean_s)
    )
    action = self._see('agent_lost', self._now_s, nodes=lost)
    if action.kind != 'wait':
      return action
    back_s = self._now_s + away_s
    self._await(min(away_s, action.delay_s))
    if away_s <= action.delay_s:
      for node in lost:
        action = self._see('returned', self._now_s, node=node)
      return action
    for node in lost:
      heapq.heappush(self._returns, (back_s, node))
    return self._see('agent_lost', self._now_s, nodes=lost, final=True)

  def _await(self, seconds: float) -> None:
    self.year.lost_s['awaited'] += seconds
    self._now_s += seconds

  def _begin(self, action: events.Action, down_s: float) -> None:
    """The next generation, as an action says."""
    machine, lost_s = self._machine, self.year.lost_s
    if action.step is not None:
      back_s = max(0.0, self.kept_s - action.step * machine.step_s)
      lost_s['rolled back'] += back_s
      self.kept_s -= back_s
    self._begun_s = self._now_s + down_s + action.delay_s
    if action.kind == 'stop':
      again = action.exit_code == 75
      self._begun_s += machine.queue_s if again else machine.person_s
      self._state = self._start(self._state)

  def _start(self, last: state_lib.State | None) -> state_lib.State:
    """A supervisor on the nodes that are left, and on others."""
    count = self._machine.nodes
    names = [*last.nodes, *last.spares] if last else []
    while len(names) < count + self._machine.spares:
      names.append(f'n{self._made}')
      self._made += 1
    return state_lib.start(
      tuple(names[:count]),
      spares=tuple(names[count:]),
      policy=self._machine.policy,
      last=last,
      time_s=self._now_s,
    )

  def _step(self, kept_s: float) -> int:
    return round(kept_s / self._machine.step_s)

  def _facts(self, kind: str, culprit: str) -> dict:
    """An event of a kind on a node; one rank stands for its node."""
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
    event = events.Event(kind=kind, time_s=time_s, **facts)
    absent = self._state.absent
    self._state, action = decide_lib.decide(self._state, event)
    gone = set(self._state.absent) - {*absent} - set(event.nodes)
    for node in (*action.condemned, *sorted(gone)):
      away_s = max(self._machine.repair_s, self._state.policy.quarantine_s)
      heapq.heappush(self._returns, (time_s + away_s, node))
    if action.kind != 'ignore':
      code = '' if action.exit_code is None else f' {action.exit_code}'
      self.year.actions[action.kind + code] += 1
    spares = len(self._state.spares)
    self.year.spares_least = min(self.year.spares_least, spares)
    return action
