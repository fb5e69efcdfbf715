# SPDX-License-Identifier: Apache-2.0
"""The ranks that started together: they wait to begin, they run, they end.

There is one place where a generation ends, `_ended`, and one where one begins,
`_try_to_begin`. At any time one of three is the case, each with a stated end:
the next generation waits for something, one runs, or one is being ended.
"""

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from zaya_jax import config as config_lib
from zaya_jax.aegis.decide import events
from zaya_jax.aegis.decide import state as state_lib
from zaya_jax.aegis.supervisor import account, launch, site
from zaya_jax.aegis.supervisor.nodes import fleet, judgement, welcome

_GATHER_S = 1.0  # In which nodes that are lost of one cause are lost.
_BEGIN_S = 30.0  # For an agent to start its ranks.
_END_S = 60.0  # More than ending takes.
_AGAIN_S = (1.0, 15.0)  # Between tries of nodes that are waited for,
_ABSENT_S = (15.0, 600.0)  # and of nodes that are not.
_QUOTE = 500  # Characters of why nodes were lost.
_FACTS = [field.name for field in dataclasses.fields(events.Progress)]

Progress = list[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Cause:
  """Why a generation ends, as far as it is known before its ranks have ended.

  Attributes:
    kind: of the event.
    time_s: by the clock of events.
    node: where.
    detail: for people.
  """

  kind: Literal['exit', 'hang', 'done', 'drained']
  time_s: float
  node: str | None = None
  detail: str = ''


class Generation:
  """Begins, watches and ends ranks, as the state of the run wants it.

  Args:
    config: of the run.
    there: the agents.
    starts: prepares generations.
    guests: connects to nodes that are away.
    ledger: is told what begins, and has the clock of events.
    see: takes an event: its kind and facts.
    look: reads what training has written until now,
    found: and takes that.
    state: returns the present state.

  Attributes:
    phase: which of the three is the case.
    why: of the phase, for people.
    until: the monotonic time of its stated end.
    is_over: whether no generation is to begin any more.
    drain_until: by when ranks must have saved and ended.
  """

  def __init__(
    self,
    config: config_lib.Config,
    there: fleet.Fleet,
    starts: launch.Launch,
    guests: welcome.Welcome,
    ledger: account.Ledger,
    see: Callable[..., None],
    look: Callable[[], Awaitable[site.Look]],
    found: Callable[[site.Look], None],
    state: Callable[[], state_lib.State],
  ):
    self._config, self._fleet, self._launch = config.aegis, there, starts
    self._welcome, self._ledger = guests, ledger
    self._see, self._state = see, state
    self._look, self._found = look, found
    self.phase: Literal['waiting', 'running', 'ending'] = 'waiting'
    self.why, self.until, self.is_over = 'it starts', 0.0, False
    self.drain_until: float | None = None
    self._nodes: tuple[str, ...] = ()
    self._number = self._count = 0
    self._begun = self._outage_until = 0.0
    self._reached = (0, 0)
    self._trains = False
    self._step: int | None = None
    self._cause: Cause | None = None
    self._ending: asyncio.Task[tuple[Progress, site.Look]] | None = None

  def turn(self) -> None:
    """Goes on with what is the case."""
    self._see_losses()
    if self.phase == 'running':
      self._watch()
    if self.phase == 'ending' and not self._is_gathering():
      self._ended()
    if self.phase == 'waiting' and not self.is_over:
      self._try_to_begin()
    self._see_returns()

  def ask_to_stop(self) -> None:
    """Asks all ranks to save and end."""
    self.drain_until = time.monotonic() + self._config.grace_s
    self._fleet.ask_to_stop()

  def end(self, cause: Cause | None = None) -> None:
    """Kills all ranks; `cause` is decided about later, if nothing else is."""
    if self.phase != 'running':
      return
    ranks = [r for some in self._fleet.ranks().values() for r in some]
    self._step = max((r['entered'] for r in ranks), default=None)
    self.phase, self._cause = 'ending', cause
    self.why = 'the generation ends'
    self.until = time.monotonic() + _END_S
    self._ending = asyncio.create_task(self._kill())

  def again(self, action: events.Action) -> None:
    """Ends the generation; the next begins as the state says."""
    if action.kind == 'wait':
      self._outage_until = time.monotonic() + action.delay_s
    else:
      self._launch.again(action.delay_s, action.step)
    self.drain_until = None
    self.end()

  # --- What is the case ---

  def _see_losses(self) -> None:
    """Reports nodes that were lost of one cause together."""
    state = self._state()
    counted = {*state.nodes, *state.spares} - {*state.waiting}
    # Others are tried again.
    lost = [loss for loss in self._fleet.losses if loss.node in counted]
    self._fleet.losses = lost
    if self.phase == 'running' and any(x.node in self._nodes for x in lost):
      self.end()
    if not lost or self._is_gathering():
      return
    if self._cause and self._cause.kind == 'done':
      return
    self._fleet.losses = []
    for kind in ('agent_lost', 'not_started'):
      if found := [loss for loss in lost if loss.kind == kind]:
        why = '; '.join(dict.fromkeys(loss.why for loss in found))[:_QUOTE]
        nodes = tuple(loss.node for loss in found)
        step = self._step if self.phase == 'ending' else None
        self._see(kind, nodes=nodes, step=step, detail=why)

  def _is_gathering(self) -> bool:
    """Whether more may come that belongs to the end of the generation."""
    if self.phase == 'ending' and self._ending and not self._ending.done():
      return True
    if not (lost := self._fleet.losses):
      return False
    if not self._fleet.has_spoken and self._fleet.connected:
      return True  # The command may be wrong: it is judged by all nodes.
    return time.monotonic() < lost[0].at + _GATHER_S

  def _watch(self) -> None:
    """Takes what the reports on ranks mean."""
    now, ranks = time.monotonic(), self._fleet.ranks()
    found = judgement.judge(
      ranks,
      self._fleet.hangs(),
      count=self._count,
      is_asked=self.drain_until is not None,
    )
    there = [rank for some in ranks.values() for rank in some]
    reached = sum(r['entered'] + r['done'] for r in there), len(there)
    if reached != self._reached:
      self._reached = reached
      self.until = now + judgement.PATIENCE * self._config.phase_limit_s
    silent = [node for node in self._nodes if not ranks.get(node)]
    if found and found.kind != 'running':
      self._end_by(found.kind, found.node, found.detail)
    elif silent and now > self._begun + _BEGIN_S:
      self._end_by('hang', silent[0], 'its agent has started no ranks')
    elif self.drain_until is not None and now > self.drain_until:
      self._end_by('hang', detail='ranks did not save and end in time')
    elif found and not self._trains:
      self._trains = True
      self._ledger.running(self._state())
      self._see('running', step=found.step)

  def _end_by(
    self, kind: Any, node: str | None = None, detail: str = ''
  ) -> None:
    self.end(Cause(kind, self._ledger.now_s(), node, detail))

  async def _kill(self) -> tuple[Progress, site.Look]:
    progress = await self._fleet.kill()
    return progress, await self._look()

  def _ended(self) -> None:
    """All ranks have ended: decides why, unless that has been decided."""
    assert self._ending
    (progress, look), cause = self._ending.result(), self._cause
    self._ending = self._cause = self.drain_until = None
    self.phase = 'waiting'
    self._found(look)
    if cause and not self._is_decided():
      self._see_cause(cause, progress)
    if not self._is_decided():  # Whatever ended it, something must follow.
      self._see('exit', detail='the generation ended for no known reason')

  def _is_decided(self) -> bool:
    state = self._state()
    return (
      self.is_over or state.generation != self._number or bool(state.waiting)
    )

  def _see_cause(self, cause: Cause, progress: Progress) -> None:
    if cause.kind in ('done', 'drained'):
      self._see(cause.kind)
      return
    ended = (r for r in progress if r['exit_code'])
    first = min(ended, key=judgement.order, default={})
    self._see(
      cause.kind,
      time_s=cause.time_s,
      node=first.get('node', cause.node),
      rank=first.get('rank'),
      step=max((r['entered'] for r in progress), default=None),
      detail=first.get('why') or cause.detail,
      progress=tuple(
        events.Progress(**{name: r[name] for name in _FACTS}) for r in progress
      ),
    )

  def _try_to_begin(self) -> None:
    """Begins the generation of the state, or says what it waits for."""
    state = self._state()
    if state.draining is not None:  # There is nobody to ask.
      self._see('drained')
      return
    if state.waiting:
      self._wait_for(state.waiting)
      return
    if self._fleet.losses:  # More may follow, and then it is decided.
      return
    found = self._launch.turn(state)
    if isinstance(found, launch.Wait):
      self.why, self.until = found.why, found.until
    elif found and not self.is_over:
      self._number, self._nodes = state.generation, state.nodes
      self._count = len(state.nodes) * self._config.ranks_per_node
      self._begun, self._trains = time.monotonic(), False
      self.phase, self.why = 'running', 'ranks run'
      self.until, self._reached = self._begun + 2 * _BEGIN_S, (0, 0)
      where = found.place.environment['JAX_COORDINATOR_ADDRESS']
      self._ledger.begin(state, found.step, where)
      self._fleet.begin(state.nodes, found.place)

  def _wait_for(self, nodes: tuple[str, ...]) -> None:
    """Waits until nodes of an outage are back."""
    self.why = f'{", ".join(nodes)} must come back'
    self.until = self._outage_until
    if time.monotonic() > self._outage_until:
      self._see(
        'agent_lost', nodes=nodes, final=True, detail='not back in time'
      )
      return
    first, longest = _AGAIN_S
    for node in self._welcome.back(nodes, first_s=first, longest_s=longest):
      self._see('returned', node=node)

  def _see_returns(self) -> None:
    """Tries nodes that are absent; lets go of those in quarantine."""
    state, now_s = self._state(), self._ledger.now_s()
    served = {held.node for held in state.quarantine if now_s > held.until_s}
    away = [*state.absent, *sorted(served - {*state.absent})]
    used = {*state.nodes, *state.spares, *self._nodes, *away}
    for node in self._fleet.connected:
      if node not in used and self.phase != 'ending':
        self._fleet.disconnect(node)
    if self.is_over:
      return
    first, longest = _ABSENT_S
    for node in self._welcome.back(away, first_s=first, longest_s=longest):
      self._see('returned', node=node)
