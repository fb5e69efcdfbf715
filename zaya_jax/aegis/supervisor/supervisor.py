# SPDX-License-Identifier: Apache-2.0
"""Keeps a run alive: events of the agents -> `decide` -> actions.

A generation is a set of ranks that started together. Whatever fails ends it as
a whole: all its ranks are killed, and the next generation goes on from the
newest checkpoint, with another port, on nodes that `decide` has chosen.
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
from zaya_jax.aegis.supervisor import fleet, incidents, seals, site
from zaya_jax.aegis.supervisor.account import Ledger
from zaya_jax.aegis.watch import stragglers
from zaya_jax.checkpoint import lock
from zaya_jax.config import exit_codes, fields
from zaya_jax.runtime import faults, fence, rank

_POLL_S = 0.1
_PORTS, _PORT_COUNT = 61_440, 4096  # Above those that Linux hands out.
_PATIENCE = 6  # Times the limit, where ranks wait for a processor.
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
  """Supervises one run.

  Args:
    config: the run, with an absolute `run_dir`.
    program: words that start a rank, before its --flagfile.
  """

  def __init__(self, config: config_lib.Config, program: tuple[str, ...]):
    self._config, aegis = config, config.aegis
    count = len(aegis.nodes) - aegis.spares
    # Divisors: what all nodes could share, so many can.
    shrinks = fields.divisors(count)[:-1] if aegis.shrink else ()
    policy = state_lib.Policy(
      restarts_per_hour=aegis.restarts_per_hour,
      no_progress=aegis.no_progress,
      node_counts=tuple(shrinks),
    )
    self._seals = seals.Seals(config.run_dir)
    self._sealed = self._seals.steps()
    path = pathlib.Path(config.run_dir, 'incidents.jsonl')
    state = dataclasses.replace(
      state_lib.start(
        aegis.nodes[:count],
        spares=aegis.nodes[count:],
        policy=policy,
        last=incidents.last_state(path),
      ),
      generation=fence.newest(config.run_dir) + 1,
      sealed=self._sealed,
    )
    self._ledger = Ledger()
    self._site = site.Site(
      config, lambda: self._incidents.state, self._ledger.say
    )
    self._incidents = incidents.Incidents(
      path, state, time_s=self._ledger.now_s()
    )
    self._selector = selectors.DefaultSelector()
    command = [*program, f'--flagfile={self._write_flags()}']
    self._fleet = fleet.Fleet(config, command, self._selector)
    self._code: int | None = None
    self._stragglers = stragglers.Stragglers()
    self._healthy: set[str] = set()  # Nodes that were examined.
    self._drain_until: float | None = None
    self._running = False

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
      self._fleet.close()
      self._site.close()
      self._incidents.close()
      self._selector.close()
      for end in (self._wake, write):
        os.close(end)

  # --- What happens ---

  def _look(self, nodes: list[str]) -> None:
    """Reads what agents say, and looks where none says anything."""
    for node, report in self._fleet.reports(nodes):
      now = self._incidents.state.generation
      if report['kind'] == 'seen' or report['generation'] == now:
        self._reported(node, report)
    self._bury()
    self._hear()
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
    """Turns what an agent says into an event."""
    ranks = [r for there in self._fleet.ranks().values() for r in there]
    asked = self._drain_until is not None
    codes = {r['exit_code'] for r in ranks}
    if report['kind'] == 'seen':
      self._see(**report['event'])
    elif report['kind'] == 'hang':
      # Who gets no processor is slow; that does not excuse it for ever.
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
    """Ends the generation, then tells why."""
    time_s, progress = self._ledger.now_s(), self._fleet.kill()
    if self._bury() or self._hear():  # Then that is why.
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

  def _bury(self) -> bool:
    """Tells of agents that were lost; whether there were any."""
    gone, self._fleet.gone = self._fleet.gone, []
    for node in gone:
      left = self._fleet.kill() if node in self._fleet.nodes else []
      step = max((r['entered'] for r in left), default=None)
      self._see('agent_lost', node=node, step=step)
    return bool(gone)

  def _hear(self) -> bool:
    """Decides about what training tells; whether the generation is over."""
    now = self._incidents.state.generation
    for event in self._site.poll(self._ledger.now_s()):
      self._decide(event)
    return self._code is not None or self._incidents.state.generation > now

  def _signalled(self, numbers: bytes) -> None:
    """SIGTERM or Ctrl-C: the first asks, the second ends at once."""
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
    fence.raise_to(self._config.run_dir, state.generation)
    host = state.nodes[0] if aegis.agent else '127.0.0.1'
    seed = zlib.crc32(self._config.run_dir.encode())
    port = _PORTS + (seed + 31 * state.generation) % _PORT_COUNT
    count = len(state.nodes) * aegis.ranks_per_node
    self._running, self._drain_until = False, None
    coordinator = f'{host}:{port}'
    pathlib.Path(self._config.run_dir, 'aegis', 'coordinator').write_text(
      coordinator
    )
    self._ledger.begin(state, self._seals.newest(), coordinator)
    place = rank.Place(
      rank=-1,
      generation=state.generation,
      run_dir=self._config.run_dir,
      skip=state.skip,
      faults=os.environ.get(faults.VARIABLE, ''),
      environment={
        'JAX_COORDINATOR_ADDRESS': coordinator,
        'JAX_NUM_PROCESSES': str(count),
      },
    )
    self._fleet.begin(state.nodes, place)

  def _write_flags(self) -> str:
    """Writes the flags of the ranks; config.flags is rank 0's."""
    folder = os.path.join(self._config.run_dir, 'aegis')
    os.makedirs(folder, exist_ok=True)
    train = dataclasses.replace(self._config, mode='train', drill=())
    path = os.path.join(folder, 'train.flags')
    with open(path, 'w', encoding='utf-8') as file:
      file.write(train.to_flagfile())
    return path


def _order(ended: dict) -> tuple:
  """Sorts ranks that ended: those that say why they failed by that time.

  A signal leaves no word; code 75 says that another one is gone.
  """
  return ended['exit_code'] == exit_codes.STOPPED, ended['failed_ns'] or 0
