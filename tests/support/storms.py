# SPDX-License-Identifier: Apache-2.0
"""Random events on random runs, and what must hold after each decision.

What holds is written here once more, without a word of `decide`: its own count
of what was condemned, its own memory of who is in quarantine, and until when.
"""

import random

from zaya_jax.aegis.decide import decide as decide_lib
from zaya_jax.aegis.decide import events
from zaya_jax.aegis.decide import state as state_lib

GONE = ('agent_lost', 'not_started', 'unhealthy')
BEGINS = ('restart', 'replace_node', 'rollback')
_HOUR_S, _PAUSE_S, _YEAR_S = 3600.0, 60.0, 31_536_000.0
_CODES = (None, None, 0, 1, 2, 3, 4, 75, 75, -6, -9, -11)
# Kinds with weights; 'rule' is a line or a counter, by the agent of its node.
_KINDS = {
  **dict.fromkeys(('exit', 'hang', 'agent_lost', 'rule', 'returned'), 8),
  **dict.fromkeys(('running', 'sealed', 'not_started', 'unhealthy'), 5),
  **dict.fromkeys(('forged', 'slow_rank', 'wrong_result', 'not_finite'), 3),
  **dict.fromkeys(('corrupt_replica', 'loss_spike', 'out_of_memory'), 2),
  **dict.fromkeys(('save_failed', 'paused', 'storage', 'refused_step'), 2),
  **dict.fromkeys(('stop_requested', 'drained', 'done'), 1),
}


class Storm:
  """A run in bad weather.

  Args:
    seed: of all that is random.
  """

  def __init__(self, seed: int):
    self.chance = chance = random.Random(seed)
    count = chance.choice((1, 2, 3, 4, 6, 8, 12))
    self.names = tuple(f'n{i}' for i in range(count + chance.randrange(4)))
    self.nodes, self.spares = self.names[:count], self.names[count:]
    self.policy = state_lib.Policy(
      condemn_per_hour=chance.choice((0, 1, 2, 5)),
      condemn_share=chance.choice((0.0, 0.25, 0.5, 1.0)),
      quarantine_s=chance.choice((0.0, 1e3, 86_400.0)),
      restarts_per_hour=chance.choice((1, 10, 30)),
      spikes=3,
      node_counts=chance.choice(((), (), (1,), tuple(range(1, count)))),
      orders=chance.choice(((), ('drain {node} {reason}', 'reboot {node}'))),
    )
    self.time_s = 1e9
    self.past: list[float] = []  # When a node was condemned.
    self.until_s: dict[str, float] = {}  # Of those in quarantine.
    self.paused_s = -1e9
    self.events = 0
    self.state = state_lib.start(
      self.nodes, spares=self.spares, policy=self.policy
    )

  def run(self, length: int) -> None:
    """Tells `length` events; starts a supervisor after each that has ended."""
    for _ in range(length):
      self.time_s += self.chance.choice((0.1, 4.0, 60.0, 900.0, 40_000.0))
      event, before = self._event(), self.state
      self.state, action = decide_lib.decide(before, event)
      self.events += 1
      try:
        self._check(before, event, action)
        if action.kind == 'stop' and not self._start_again():
          return
      except AssertionError as error:
        raise AssertionError(
          f'{error}\nbefore: {before}\nevent: {event}\naction: {action}\n'
          f'after: {self.state}'
        ) from error

  def _start_again(self) -> bool:
    chance, last = self.chance, self.state
    self.time_s += chance.choice((5.0, 5.0, 2e5, _YEAR_S, -_YEAR_S))
    self.state = state = state_lib.start(
      self.nodes,
      spares=self.spares,
      policy=self.policy,
      last=last,
      time_s=self.time_s,
    ).but(generation=last.generation + 1)
    self.paused_s = -1e9
    self.past = self._last_hour()
    self._check_held()
    self._check_names()
    if not state.nodes:
      assert state.alarm, 'nothing can run, and there is no alarm'
    return bool(state.nodes)

  # --- What happens ---

  def _event(self) -> events.Event:
    chance, state = self.chance, self.state
    kind = chance.choices(list(_KINDS), list(_KINDS.values()))[0]
    facts = {'time_s': self.time_s, 'detail': 'seen', 'step': self.events}
    anybody = chance.choice((*self.names, 'stranger'))
    if kind in GONE:
      some = chance.sample(self.names, chance.randint(1, len(self.names)))
      one = chance.random() < 0.7
      facts |= {'nodes': tuple(some[:1] if one else some)}
      if state.waiting and chance.random() < 0.5:
        facts |= {'nodes': state.waiting, 'final': True}
    elif kind in ('exit', 'hang'):
      facts['progress'] = tuple(
        events.Progress(
          rank=rank,
          node=node,
          phase='step',
          process=chance.choice('SSSSTD'),
          entered=self.events - (chance.random() < 0.1),
          exit_code=chance.choice(_CODES) if kind == 'exit' else None,
        )
        for rank, node in enumerate(state.nodes)
      )
    elif kind in ('rule', 'forged'):
      action = chance.choice((*events.NODE_ACTIONS, 'warn', 'ignore'))
      facts |= {'source': 'kern', 'action': action, 'by': anybody}
      facts |= {'node': chance.choice((anybody, *self.names))}
      if kind == 'forged':
        kind = chance.choice((*events.KINDS, 'rule'))
        by = chance.choice((None, anybody))
        source = chance.choice(('trainer', 'rank')) if by else 'trainer'
        facts |= {'source': source, 'by': by}
    else:
      told = {'refused_step', 'loss_spike', 'wrong_result', 'corrupt_replica'}
      facts |= {'source': 'rank'} if kind in told else {}
      facts |= {'good_step': chance.choice((None, self.events - 7))}
      among = state.waiting or state.absent or self.names
      facts |= {
        'node': chance.choice(among if kind == 'returned' else self.names)
      }
    return events.Event(kind=kind, **facts)

  # --- What must hold ---

  def _check(
    self, before: state_lib.State, event: events.Event, action: events.Action
  ) -> None:
    new = set(self.state.quarantined) - set(before.quarantined)
    assert set(action.condemned) == new, 'condemned in silence'
    assert action.kind == 'ignore' or action.reason, 'no reason'
    self._check_names()
    self._check_caps(new)
    self._check_blame(before, event, action, new)
    for held in self.state.quarantine:
      if held.node in new:
        self.until_s[held.node] = held.until_s
        assert held.reason and held.since_s == event.time_s
    self._check_held()
    self._check_returns(before, event)
    self._check_goes_on(before, event, action)
    if action.kind == 'stop':
      self._check_code(event, action)

  def _check_names(self) -> None:
    state = self.state
    everybody = (
      *state.nodes, *state.spares, *state.quarantined, *state.absent,
    )  # fmt: skip
    assert sorted(everybody) == sorted(self.names), 'a name is lost or twice'
    assert set(state.waiting) <= set(state.nodes)

  def _check_caps(self, new: set[str]) -> None:
    if not new:
      return
    self.past += [self.time_s] * len(new)
    assert len(self._last_hour()) <= self.policy.condemn_per_hour, (
      'too many an hour'
    )
    total = len(self.names)
    most = max(int(total > 1), int(self.policy.condemn_share * total))
    assert len(self.state.quarantine) <= most, 'too large a share'

  def _last_hour(self) -> list[float]:
    return [t for t in self.past if abs(self.time_s - t) <= _HOUR_S]

  def _check_blame(self, before, event, action, new) -> None:
    """Nobody is condemned for what others say, do or suffer."""
    if event.source == 'trainer' or (event.by and event.source == 'rank'):
      assert action.kind in ('ignore', 'warn'), 'a text has acted'
    if event.by:
      assert new <= {event.by, before.draining}, (
        'an agent was believed about another node'
      )
    if event.kind == 'not_started' or event.final:
      assert not new - {before.draining}, 'what is not there is not broken'
    known = {*before.nodes, *before.spares} & set(event.nodes)
    total = len(self.names)
    few = max(int(total > 1), int(self.policy.condemn_share * total))
    if len(known) > min(self.policy.evict_at_most, few):
      assert not new - {before.draining}, 'many at once were condemned'
    own = event.kind in ('agent_lost', 'exit', 'hang')
    if own and abs(self.time_s - self.paused_s) <= _PAUSE_S:
      assert not new - {before.draining}, 'its own pause condemned somebody'
    if event.kind == 'paused' and event.source != 'trainer' and not event.by:
      self.paused_s = self.time_s

  def _check_held(self) -> None:
    latest = self.time_s + self.policy.quarantine_s
    for node, until_s in list(self.until_s.items()):
      self.until_s[node] = until_s = min(until_s, latest)
      if until_s > self.time_s:
        assert node in self.state.quarantined, 'a quarantine is forgotten'
      elif node not in self.state.quarantined:
        del self.until_s[node]

  def _check_returns(self, before, event) -> None:
    back = {*self.state.nodes, *self.state.spares}
    back -= {*before.nodes, *before.spares}
    assert not back or (event.kind, {event.node}) == ('returned', back)

  def _check_goes_on(self, before, event, action) -> None:
    """Something runs, starts or is awaited, or there is an alarm, or an end."""
    after, ends = self.state, action.kind in BEGINS
    assert after.generation >= before.generation, 'an old generation'
    if ends:
      assert after.generation == before.generation + 1
      assert action.exit_code is None and not after.waiting
      assert 0 <= action.delay_s <= self.policy.backoff_s
      sizes = (after.size, *self.policy.node_counts)
      assert len(after.nodes) in sizes, 'a size that the run cannot have'
      assert action.kind != 'replace_node' or action.node not in after.nodes
    elif action.kind != 'stop':
      assert after.nodes == before.nodes, 'ranks were given to other nodes'
    real = event.source == 'agent' and not event.by
    dead = event.kind in ('exit', 'hang', 'drained')
    dead |= event.kind in GONE and bool({*event.nodes} & {*before.nodes})
    if real and dead:
      assert ends or action.kind in ('wait', 'stop') or after.waiting, 'silence'
      assert not after.running
    if action.kind == 'wait' or after.waiting or action.exit_code:
      assert after.alarm, 'nothing runs, and there is no alarm'

  def _check_code(self, event, action) -> None:
    code = action.exit_code
    codes = {p.exit_code for p in event.progress}
    everybody = set(self.state.nodes) <= set(event.nodes)
    state, policy = self.state, self.policy
    assert {
      0: event.kind == 'done',
      2: 2 in codes or (event.kind in GONE[1:] and everybody),
      3: 3 in codes or state.failed_saves >= policy.failed_saves,
      4: 4 in codes or event.kind in ('not_finite', 'loss_spike'),
      75: event.kind != 'done' and not (codes & {2, 3} and 4 not in codes),
      93: state.fruitless >= policy.no_progress
      or state.out_of_memory >= policy.out_of_memory,
    }[code], f'exit code {code} is not true'


def storms(seeds: range, length: int) -> int:
  """Runs one storm for each seed; returns how many events there were."""
  told = 0
  for seed in seeds:
    storm = Storm(seed)
    try:
      storm.run(length)
    except AssertionError as error:
      raise AssertionError(f'storm {seed}: {error}') from error
    told += storm.events
  return told
