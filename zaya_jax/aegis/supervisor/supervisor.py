# SPDX-License-Identifier: Apache-2.0
"""Keeps a run alive: reports of the agents -> events -> `decide` -> actions.

A generation is a set of ranks that started together. Any failure ends it as a
whole: all its ranks are killed, and the next generation goes on from the newest
checkpoint, with another port, on the nodes that `decide` has chosen.
"""

import dataclasses
import os
import pathlib
import select
import selectors
import signal
import time
import zlib

from zaya_jax import config as config_lib
from zaya_jax.aegis.decide import events
from zaya_jax.aegis.decide import state as state_lib
from zaya_jax.aegis.supervisor import account, fleet, incidents, seals, site
from zaya_jax.aegis.watch import stragglers
from zaya_jax.checkpoint import lock, seal_key
from zaya_jax.config import exit_codes, fields
from zaya_jax.runtime import faults, fence, supervised

_POLL_S = 0.1
_PORTS, _PORT_COUNT = 61_440, 4096  # Above those that Linux hands out.
_PATIENCE = 6  # Times the limit, for ranks that wait for a processor.
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_FACTS = [field.name for field in dataclasses.fields(events.Progress)]


def supervise(config: config_lib.Config, program: tuple[str, ...]) -> int:
  """Trains under supervision, with the run directory locked.

  Args:
    config: the run; its --aegis.* say where and how.
    program: words that start a rank, before its --flagfile.

  Returns:
    The exit code.

  Raises:
    UsageError: if a setting is wrong.
    CheckpointError: if another process holds the lock.
  """
  config = dataclasses.replace(config, run_dir=os.path.abspath(config.run_dir))
  with lock.RunLock(config.run_dir):
    return Supervisor(config, program).run()


class Supervisor:
  """Supervises one run; arguments as of `supervise`."""

  def __init__(self, config: config_lib.Config, program: tuple[str, ...]):
    self._config, self._run_dir = config, pathlib.Path(config.run_dir)
    self._seals = seals.Seals(config.run_dir)
    self._sealed = self._seals.steps()
    path = self._run_dir / 'incidents.jsonl'
    state = self._first_state(incidents.last_state(path))
    self._ledger = account.Ledger()
    self._site = site.Site(
      config, lambda: self._incidents.state, self._ledger.say
    )
    self._incidents = incidents.Incidents(
      path, state, time_s=self._ledger.now_s()
    )
    self._selector = selectors.DefaultSelector()
    self._fleet = fleet.Fleet(
      config, [*program, f'--flagfile={self._write_flags()}'], self._selector
    )
    self._stragglers = stragglers.Stragglers()
    self._healthy: set[str] = set()  # Nodes that passed the health check.
    self._drain_until: float | None = None
    self._running = False
    self._code: int | None = None

  def _first_state(self, last: state_lib.State | None) -> state_lib.State:
    aegis = self._config.aegis
    count = len(aegis.nodes) - aegis.spares
    # What all nodes could share, a divisor of their number can share, too.
    shrinks = fields.divisors(count)[:-1] if aegis.shrink else ()
    policy = state_lib.Policy(
      restarts_per_hour=aegis.restarts_per_hour,
      no_progress=aegis.no_progress,
      failed_saves=self._config.checkpoint.max_failed_saves,
      node_counts=tuple(shrinks),
    )
    nodes, spares = aegis.nodes[:count], aegis.nodes[count:]
    state = state_lib.start(nodes, spares=spares, policy=policy, last=last)
    generation = fence.newest(self._config.run_dir) + 1
    return state.but(generation=generation, sealed=self._sealed)

  def _write_flags(self) -> pathlib.Path:
    """Writes the flags of the ranks; config.flags is rank 0's."""
    path = self._run_dir / 'aegis' / 'train.flags'
    path.parent.mkdir(exist_ok=True)
    train = dataclasses.replace(self._config, mode='train', drill=())
    path.write_text(train.to_flagfile(), encoding='utf-8')
    return path

  def run(self) -> int:
    """Runs to the end; returns the exit code."""
    self._wake, write = os.pipe()
    os.set_blocking(write, False)
    self._selector.register(self._wake, selectors.EVENT_READ)
    old = {n: signal.signal(n, lambda *_: None) for n in _SIGNALS}
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    try:
      for node in self._config.aegis.nodes:
        spare = node not in self._incidents.state.nodes
        self._fleet.connect(node, spare=spare)
      self._begin()
      while self._code is None:
        ready = [key.data for key, _ in self._selector.select(_POLL_S)]
        if None in ready:
          self._signalled(os.read(self._wake, 100))
        self._look([node for node in ready if node])
      self._ledger.end(self._code)
      return self._code
    finally:
      signal.set_wakeup_fd(-1)
      for number, handler in old.items():
        signal.signal(number, handler)
      for part in (self._fleet, self._site, self._incidents, self._selector):
        part.close()
      for end in (self._wake, write):
        os.close(end)

  # --- What happens ---

  def _look(self, nodes: list[str]) -> None:
    """Reads what agents report, and checks what nobody reports."""
    for node, report in self._fleet.reports(nodes):
      now = self._incidents.state.generation
      if report['kind'] == 'seen' or report['generation'] == now:
        self._reported(node, report)
    self._see_lost_agents()
    self._see_site()
    if slow := self._stragglers.find(self._fleet.ranks()):
      self._see('slow_rank', **slow)
    if self._sealed != (now := self._seals.steps()):
      self._sealed, newest = now, self._seals.newest()
      if newest is not None:
        self._see('sealed', step=newest, seals=now)
    if self._drain_until and time.monotonic() > self._drain_until:
      self._drain_until = None
      self._fail('hang', detail='ranks did not save and end in time')

  def _reported(self, node: str, report: dict) -> None:
    """Turns the report of an agent into an event."""
    ranks = [r for there in self._fleet.ranks().values() for r in there]
    asked = self._drain_until is not None
    codes = {r['exit_code'] for r in ranks}
    if report['kind'] == 'seen':
      self._see(**report['event'])
    elif report['kind'] == 'hang':
      # A rank without a processor is slow; that is no excuse for ever.
      patience = _PATIENCE if any(r['starved'] for r in ranks) else 1
      if report['age_s'] > patience * report['limit_s']:
        limit = f'no progress within {report["age_s"]:.1f} s'
        self._fail('hang', node, f'{limit} in phase {report["phase"]}')
    elif codes == {0}:
      self._see('done')
    elif codes - {0, None} - ({exit_codes.STOPPED} if asked else set()):
      self._fail('exit', node)
    elif asked and ranks and None not in codes:
      self._see('drained')
    elif not self._running and ranks and all(r['done'] for r in ranks):
      self._running = True
      self._ledger.running(self._incidents.state)
      self._see('running', step=min(r['done'] for r in ranks))

  def _fail(self, kind: str, node: str | None = None, detail: str = '') -> None:
    """Ends the generation; then decides why it ended."""
    time_s, progress = self._ledger.now_s(), self._fleet.kill()
    if self._see_lost_agents() or self._see_site():  # That is the reason, then.
      return
    first = min((r for r in progress if r['exit_code']), key=_order, default={})
    self._see(
      kind,
      time_s=time_s,
      node=first.get('node', node),
      rank=first.get('rank'),
      step=max((r['entered'] for r in progress), default=None),
      detail=first.get('why') or detail,
      progress=tuple(
        events.Progress(**{name: r[name] for name in _FACTS}) for r in progress
      ),
    )

  def _see_lost_agents(self) -> bool:
    """Reports agents that were lost; returns whether there were any."""
    gone, self._fleet.gone = self._fleet.gone, []
    for node in gone:
      left = self._fleet.kill() if node in self._fleet.nodes else []
      step = max((r['entered'] for r in left), default=None)
      self._see('agent_lost', node=node, step=step)
    return bool(gone)

  def _see_site(self) -> bool:
    """Decides about what training reports; whether the generation is over."""
    now = self._incidents.state.generation
    for event in self._site.poll(self._ledger.now_s()):
      self._decide(event)
    return self._code is not None or self._incidents.state.generation > now

  def _signalled(self, numbers: bytes) -> None:
    """SIGTERM or Ctrl-C: the first asks the ranks, the second ends at once."""
    for number in numbers:
      if self._incidents.state.draining == '':
        self._ledger.say('a second signal: not waiting for the ranks')
        self._fleet.kill()
        self._code = exit_codes.STOPPED
      else:
        name = signal.Signals(number).name
        self._see('stop_requested', detail=f'{name} to the supervisor')

  def _see(self, kind: str, **facts) -> None:
    facts = {'time_s': self._ledger.now_s()} | facts
    self._decide(events.Event(kind=kind, **facts))

  def _decide(self, event: events.Event) -> None:
    """Decides about an event, and acts."""
    action = self._incidents.decide(event)
    self._ledger.seen(event, action)
    self._site.act(action)
    self._act(action)

  # --- What is done ---

  def _act(self, action: events.Action) -> None:
    if action.kind == 'checkpoint_and_drain':
      self._drain_until = time.monotonic() + self._config.aegis.grace_s
      self._fleet.ask_to_stop()
    elif action.kind in ('replace_node', 'restart', 'rollback'):
      self._fleet.kill()
      if action.step is not None:
        self._seals.roll_back(action.step)
        self._sealed = self._seals.steps()
      select.select([self._wake], [], [], action.delay_s)  # Or a signal.
      self._begin()
    elif action.kind == 'stop':
      self._fleet.kill()
      self._code = action.exit_code

  def _begin(self) -> None:
    """Starts the generation of the state."""
    aegis, state = self._config.aegis, self._incidents.state
    for node in set(state.nodes) - self._healthy:
      if why := self._site.examine(node):
        self._see('unhealthy', node=node, detail=why)
        return
    self._healthy = set(state.nodes)
    start = self._seals.newest() or 0
    fence.raise_to(self._config.run_dir, state.generation, start)
    host = state.nodes[0] if aegis.agent else '127.0.0.1'
    seed = zlib.crc32(self._config.run_dir.encode())
    port = _PORTS + (seed + 31 * state.generation) % _PORT_COUNT
    coordinator = f'{host}:{port}'
    (self._run_dir / 'aegis' / 'coordinator').write_text(coordinator)
    self._running, self._drain_until = False, None
    self._ledger.begin(state, self._seals.newest(), coordinator)
    place = supervised.Place(
      rank=-1,
      generation=state.generation,
      run_dir=self._config.run_dir,
      skip=state.skip,
      faults=os.environ.get(faults.VARIABLE, ''),
      environment={
        **_seal_key(self._config),
        'JAX_COORDINATOR_ADDRESS': coordinator,
        'JAX_NUM_PROCESSES': str(len(state.nodes) * aegis.ranks_per_node),
      },
    )
    self._fleet.begin(state.nodes, place)


def _seal_key(config: config_lib.Config) -> dict[str, str]:
  """Ranks take the key file from here: who can write their flags cannot."""
  told = os.environ.get(seal_key.VARIABLE) or config.checkpoint.seal_key_file
  return {seal_key.VARIABLE: os.path.abspath(told)} if told else {}


def _order(ended: dict) -> tuple:
  """Sorts ranks that ended by the time at which they said why.

  A signal leaves no time; code 75 says that another rank is gone.
  """
  return ended['exit_code'] == exit_codes.STOPPED, ended['failed_ns'] or 0
