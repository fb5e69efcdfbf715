# SPDX-License-Identifier: Apache-2.0
"""Keeps a run alive: what is seen becomes events, events become actions.

One task takes one turn after the other, and none waits: whatever takes time is
a task or a thread of its own, whose result a later turn finds. So nothing can
happen while something else is being decided.
"""

import asyncio
import contextlib
import dataclasses
import os
import pathlib
import signal
import time
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.aegis.decide import events
from zaya_jax.aegis.decide import state as state_lib
from zaya_jax.aegis.notify import address
from zaya_jax.aegis.supervisor import (
  account,
  generation,
  hooks,
  incidents,
  launch,
  pulse,
  site,
  tenure,
)
from zaya_jax.aegis.supervisor.nodes import (
  background,
  fleet,
  notices,
  quarantine,
  welcome,
)
from zaya_jax.aegis.watch import notice, stragglers
from zaya_jax.config import exit_codes

_POLL_S, _TOGETHER_S = 0.1, 0.01  # Between turns; for news to come together.
_PAUSE_S = 5.0  # Without a turn, which is worth a line.
_COMPARE_S = 1.0  # Between two looks at files, and at slow ranks.
_LOOK_S = 20.0  # For the run directory to answer.
_SLACK_S = 30.0  # After the stated end of a wait, before it is wrong.


def supervise(config: config_lib.Config, program: tuple[str, ...]) -> int:
  """Trains under supervision, as the owner of the run.

  Args:
    config: the run; its --aegis.* say where and how.
    program: words that start a rank, before its --flagfile.

  Returns:
    The exit code.

  Raises:
    UsageError: if a setting is wrong.
    CheckpointError, LeaseError: if another process owns the run.
  """
  config = dataclasses.replace(config, run_dir=os.path.abspath(config.run_dir))
  with tenure.Tenure(config) as held:
    return Supervisor(config, program, held).run()


class Supervisor:
  """Supervises one run, which it owns; arguments as of `supervise`."""

  def __init__(
    self,
    config: config_lib.Config,
    program: tuple[str, ...],
    held: tenure.Tenure,
  ):
    self._config, self._held = address.conceal(config), held
    self._ledger, self._pulse = account.Ledger(), pulse.Pulse()
    self._site = site.Site(config, self.state, self.unwell, self._ledger.say)
    path = pathlib.Path(config.run_dir, 'incidents.jsonl')
    state = launch.first_state(
      config, held, self._site, path, self._ledger.now_s()
    )
    self._incidents = incidents.Incidents(
      path, state, time_s=self._ledger.now_s()
    )
    self._stragglers, self._compared = stragglers.Stragglers(), 0.0
    self._signals: list[int] = []
    self._requests = notice.Requests()
    self._looking: asyncio.Task[site.Look] | None = None
    self._failure = self._unread = self._stuck = ''
    self._looked = 0.0
    self._code: int | None = None
    self._final = exit_codes.STOPPED
    self._wake = asyncio.Event()
    config = self._config  # Without what agents and ranks need not know.
    self._fleet = fleet.Fleet(
      config,
      [*program, f'--flagfile={launch.write_flags(config)}'],
      held.remaining_s,
      self._wake.set,
    )
    self._fleet.safe_at = launch.safe_at(config, held)
    limit_s = hooks.TIMEOUT_S + 5
    guests = welcome.Welcome(self._fleet, self._site.examine, limit_s)
    starts = launch.Launch(
      config, self._fleet, guests, held, self._site, self._see
    )
    self._generation = generation.Generation(
      config,
      self._fleet,
      starts,
      guests,
      self._ledger,
      self._see,
      lambda: self._look(is_urgent=True),
      self._found,
      self.state,
    )

  def state(self) -> state_lib.State:
    """After the last event."""
    return self._incidents.state

  def unwell(self) -> str:
    """Why no generation is running; '' if one is."""
    state, now = self.state(), self._generation
    if why := self._stuck or self._unread or state.alarm:
      return why
    if now.phase == 'running':
      return '' if state.running else 'the ranks start'
    return now.why

  def run(self) -> int:
    """Runs to the end; returns the exit code."""
    return asyncio.run(self._run())

  async def _run(self) -> int:
    loop, keep = asyncio.get_running_loop(), None
    try:
      for number in notice.SIGNALS:
        loop.add_signal_handler(number, self._signalled, number)
      keep = asyncio.create_task(self._held.keep())
      self._site.start()
      if not self.state().nodes:
        self._stop(exit_codes.STOPPED, self.state().alarm)
      for node in (*self.state().nodes, *self.state().spares):
        self._fleet.connect(node, spare=node in self.state().spares)
      while self._code is None:
        self._turn()
        await self._news()
      self._ledger.end(self._code)
      return self._code
    finally:
      for number in notice.SIGNALS:
        loop.remove_signal_handler(number)
      await self._fleet.close()
      launch.leave(self._held, self._fleet)
      if keep:
        keep.cancel()
      await asyncio.to_thread(self._site.close)
      self._incidents.close()

  async def _news(self) -> None:
    """Waits until something has come, or for a moment."""
    with contextlib.suppress(TimeoutError):
      await asyncio.wait_for(self._wake.wait(), _POLL_S)
      await asyncio.sleep(_TOGETHER_S)
    self._wake.clear()

  # --- What happens ---

  def _turn(self) -> None:
    if away := self._pulse.beat():
      self._fleet.forgive()
      if away > _PAUSE_S:
        detail = f'the supervisor itself did not run for {away:.1f} s'
        self._see('paused', detail=detail)
    if not self._generation.is_over and not self._held.remaining_s():
      self._held.lost = self._held.lost or 'the lease of this run ran out'
    if self._held.lost and not self._generation.is_over:
      self._stop(exit_codes.STOPPED, self._held.lost)
    self._hear_signals()
    self._fleet.look()
    for node, said in self._fleet.garbage():
      detail = f'its agent printed what is no report: {said}'
      self._see('cannot_watch', node=node, action='warn', detail=detail)
    for node, facts in self._fleet.seen():
      if event := notices.event(node, facts, self._ledger.now_s()):
        self._decide(event)
    self._see_files()
    self._generation.turn()
    if (now := time.monotonic()) > self._compared + _COMPARE_S:
      self._compared = now
      ranks = self._fleet.ranks()
      done = [rank['done'] for there in ranks.values() for rank in there]
      self._site.finished(min(done, default=0))
      if slow := self._stragglers.find(ranks):
        self._see('slow_rank', **slow)
    self._check()

  def _see_files(self) -> None:
    """Takes what was read in the run directory, and asks again."""
    now = time.monotonic()
    if self._looking is None and now > self._looked + _COMPARE_S:
      self._looked = now
      self._looking = asyncio.create_task(self._look(is_urgent=False))
    elif self._looking and self._looking.done():
      task, self._looking = self._looking, None
      self._found(task.result())
    if (failure := self._incidents.failure) != self._failure:
      self._failure = failure
      if failure:
        self._see('storage', detail=failure)

  async def _look(self, *, is_urgent: bool) -> site.Look:
    state = self.state()
    facts = state.nodes, state.generation, self._ledger.now_s(), is_urgent
    try:
      return await background.run(self._site.look, *facts, limit_s=_LOOK_S)
    except (OSError, TimeoutError) as error:
      why = str(error) or f'it does not answer within {_LOOK_S:g} s'
      return site.Look(failure=f'{self._config.run_dir}: {why}')

  def _found(self, look: site.Look) -> None:
    before, self._unread = self._unread, look.failure
    if look.failure and not before:
      self._see('storage', detail=look.failure)
    for event in look.found:
      self._decide(event)
    if look.sealed:
      self._see('sealed', step=max(look.sealed), seals=look.sealed)

  def _signalled(self, number: int) -> None:
    self._signals.append(number)
    self._wake.set()

  def _hear_signals(self) -> None:
    """The first signal asks the ranks; a second that insists ends at once."""
    signals, self._signals = self._signals, []
    for number in signals:
      is_ending = self.state().draining == ''
      meaning = self._requests.weigh(number, is_ending=is_ending)
      if meaning == 'now':
        why = 'a second signal: not waiting for the ranks'
        self._stop(exit_codes.STOPPED, why)
      elif meaning == 'stop':
        name = signal.Signals(number).name
        self._see('stop_requested', detail=f'{name} to the supervisor')
    for event in self._site.notices(self._ledger.now_s()):
      self._decide(event)

  def _check(self) -> None:
    """The invariant: a generation runs, or begins within a stated time."""
    now = self._generation
    if now.is_over and now.phase == 'waiting':
      self._code = self._final
    if time.monotonic() < now.until + _SLACK_S:
      self._stuck = ''
      self._pulse.tell()
    elif not self._stuck:
      self._stuck = f'nothing runs, and a person must look: {now.why}'
      self._ledger.say(self._stuck)

  def _see(self, kind: str, **facts: Any) -> None:
    facts = {'time_s': self._ledger.now_s()} | facts
    if len(nodes := facts.get('nodes', ())) == 1:
      facts |= {'node': nodes[0], 'nodes': ()}
    self._decide(events.Event(kind=kind, **facts))

  def _decide(self, event: events.Event) -> None:
    """Decides about an event, and acts."""
    if self._generation.is_over:  # It is decided already.
      return
    action = self._incidents.decide(event)
    self._ledger.seen(event, action)
    self._site.seen(event, action)
    self._site.act(action)
    if action.condemned and self._config.aegis.agent:
      new = [x for x in self.state().quarantine if x.node in action.condemned]
      where = self._config.run_dir
      quarantine.tell(self._held.store, new, where, self._ledger.say)
    if action.kind == 'checkpoint_and_drain':
      self._generation.ask_to_stop()
    elif action.kind in ('replace_node', 'restart', 'rollback', 'wait'):
      self._generation.again(action)
    elif action.kind == 'stop':
      self._stop(
        exit_codes.DONE if action.exit_code is None else action.exit_code
      )

  def _stop(self, code: int, why: str = '') -> None:
    """Ends the ranks, then the run."""
    if why:
      self._ledger.say(why)
    self._final, self._generation.is_over = code, True
    self._generation.end()
