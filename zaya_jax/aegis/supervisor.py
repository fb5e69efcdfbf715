# SPDX-License-Identifier: Apache-2.0
"""Keeps a run alive: events of the agents -> `decide` -> actions.

A generation is a set of ranks that started together. Whatever fails ends it as
a whole: all its ranks are killed, and the next generation goes on from the
newest checkpoint, with another port, on nodes that `decide` has chosen.
"""

import contextlib
import dataclasses
import os
import pathlib
import selectors
import signal
import sys
import time
import zlib

from zaya_jax import config as config_lib
from zaya_jax import flags
from zaya_jax.aegis import (
  events,
  faults,
  fence,
  incidents,
  link,
  rank,
  replay,
  site,
  stragglers,
)
from zaya_jax.aegis import state as state_lib
from zaya_jax.aegis.ledger import Ledger
from zaya_jax.checkpoint import layout, lock

_POLL_S = 0.1
_PORTS, _PORT_COUNT = 57_344, 4096  # Below those that a launcher would take.
_STOPPED = 75
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_FACTS = [field.name for field in dataclasses.fields(events.Progress)]


def main(config: config_lib.Config) -> int:
  """Trains under supervision.

  Args:
    config: the run; its --aegis.* say where and how.

  Returns:
    The exit code: that of training, 75 where a budget is used up or a signal
    came, 93 where restarts bring no progress.

  Raises:
    UsageError: if a setting is wrong.
    CheckpointError: with exit code 2, if another supervisor or training holds
      the run directory.
  """
  if config.aegis.replay:
    return replay.run(config.aegis.replay)
  if config.drill:
    import importlib  # Above this module: it supervises many runs.

    return importlib.import_module('zaya_jax.aegis.drills').main(config)
  if not config.run_dir:
    raise config_lib.UsageError(
      '--run_dir= must name a folder for what the run writes.'
    )
  return supervise(config, (sys.executable, '-m', 'zaya_jax.main'))


def supervise(config: config_lib.Config, program: tuple[str, ...]) -> int:
  """Keeps the run directory for itself and runs; as `main`.

  Args:
    config: the run.
    program: words that start a rank, before its --flagfile.
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
    self._config, self._program = config, program
    aegis = config.aegis
    count = len(aegis.nodes) - aegis.spares
    shrinks = range(1, count) if aegis.shrink else ()
    policy = state_lib.Policy(
      restarts_per_hour=aegis.restarts_per_hour,
      no_progress=aegis.no_progress,
      node_counts=tuple(shrinks),
    )
    path = pathlib.Path(config.run_dir, 'incidents.jsonl')
    state = dataclasses.replace(
      state_lib.start(
        aegis.nodes[:count],
        spares=aegis.nodes[count:],
        policy=policy,
        last=incidents.last_state(path),
      ),
      generation=fence.newest(config.run_dir) + 1,
    )
    self._ledger = Ledger()
    self._site = site.Site(
      config, lambda: self._incidents.state, self._ledger.say
    )
    self._incidents = incidents.Incidents(
      path, state, time_s=self._ledger.now_s()
    )
    self._links: dict[str, link.Link] = {}
    self._selector = selectors.DefaultSelector()
    self._code: int | None = None
    self._gone: list[str] = []
    self._stragglers = stragglers.Stragglers()
    self._healthy: set[str] = set()  # Nodes that were examined.
    self._running_nodes: tuple[str, ...] = ()
    self._names: list[str] = []
    self._last: int | None = None
    self._sealed = self._newest()
    self._drain_until: float | None = None
    self._running = False

  def run(self) -> int:
    """Runs to the end; returns the exit code."""
    wake, self._wake = os.pipe()
    os.set_blocking(self._wake, False)
    self._selector.register(wake, selectors.EVENT_READ)
    old = {n: signal.signal(n, lambda *_: None) for n in _SIGNALS}
    signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
    try:
      self._write_flags()
      for node in self._config.aegis.nodes:
        self._connect(node)
      self._begin()
      while self._code is None:
        ready = [key.data for key, _ in self._selector.select(_POLL_S)]
        if None in ready:
          self._signalled(os.read(wake, 100))
        self._look([node for node in ready if node])
      self._ledger.end(self._code)
      return self._code
    finally:
      signal.set_wakeup_fd(-1)
      for number, handler in old.items():
        signal.signal(number, handler)
      for there in self._links.values():
        there.close()
      self._site.close()
      self._incidents.close()
      self._selector.close()
      for end in (wake, self._wake):
        os.close(end)

  # --- What happens ---

  def _look(self, nodes: list[str]) -> None:
    """Reads what agents say, and looks where none says anything."""
    for node in nodes:
      with self._losing(node):
        reports = list(self._links[node].receive())
        for report in reports:
          now = self._incidents.state.generation
          if report['kind'] == 'seen' or report['generation'] == now:
            self._reported(node, report)
    for node, there in list(self._links.items()):
      if there.is_silent:
        self._lose(node)
    self._bury()
    self._hear()
    there = {n: self._links[n].ranks for n in self._present()}
    if slow := self._stragglers.find(there):
      self._see('slow_rank', **slow)
    if self._sealed != (newest := self._newest()):
      self._sealed = newest
      if newest is not None:
        self._see('sealed', step=newest)
    if self._drain_until and time.monotonic() > self._drain_until:
      self._drain_until = None
      self._fail('hang', detail='ranks did not save and end in time')

  def _reported(self, node: str, report: dict) -> None:
    """Turns what an agent says into an event."""
    ranks, asked = self._ranks(), self._drain_until is not None
    codes = {r['exit_code'] for r in ranks}
    if report['kind'] == 'seen':
      self._see(**report['event'])
    elif report['kind'] == 'hang':
      limit = f'no progress within {report["limit_s"]:.1f} s'
      self._fail('hang', node, f'{limit} in phase {report["phase"]}')
    elif codes == {0}:
      self._see('done')
    elif codes - {0, None} - ({_STOPPED} if asked else set()):
      self._fail('exit', node)
    elif asked and ranks and None not in codes:
      self._see('drained')
    elif not self._running and ranks and all(r['done'] for r in ranks):
      self._running = True
      self._ledger.running(self._incidents.state)
      self._see('running', step=min(r['done'] for r in ranks))

  def _fail(self, kind: str, node: str | None = None, detail: str = '') -> None:
    """Ends the generation, then tells why."""
    progress = self._kill()
    if self._bury() or self._hear():  # Then that is why.
      return
    first = min((r for r in progress if r['exit_code']), key=_order, default={})
    self._see(
      kind,
      node=first.get('node', node),
      rank=first.get('rank'),
      step=max((r['entered'] for r in progress), default=None),
      detail=first.get('why') or detail,
      progress=tuple(
        events.Progress(**{name: r[name] for name in _FACTS}) for r in progress
      ),
    )

  def _lose(self, node: str) -> None:
    """Takes an agent for lost; `_bury` tells."""
    there = self._links.pop(node)
    self._selector.unregister(there.file)
    there.close(kill=True)
    self._gone.append(node)

  def _bury(self) -> bool:
    """Tells of agents that were lost; whether there were any."""
    gone, self._gone = self._gone, []
    for node in gone:
      if node in self._running_nodes:
        self._kill()
      self._see('agent_lost', node=node)
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
        self._kill()
        self._code = _STOPPED
      else:
        name = signal.Signals(number).name
        self._see('stop_requested', detail=f'{name} to the supervisor')

  def _see(self, kind: str, **facts) -> None:
    self._decide(events.Event(time_s=self._ledger.now_s(), kind=kind, **facts))

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
      for node in self._running_nodes:
        with self._losing(node):
          self._links[node].send('signal', number=signal.SIGTERM)
    elif action.kind in ('replace_node', 'restart', 'rollback'):
      self._kill()
      self._roll_back(action)
      time.sleep(action.delay_s)
      self._begin()
    elif action.kind == 'stop':
      self._kill()
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
    self._running_nodes = state.nodes
    coordinator = f'{host}:{port}'
    pathlib.Path(self._config.run_dir, 'aegis', 'coordinator').write_text(
      coordinator
    )
    self._ledger.begin(state, self._sealed, coordinator)
    for index, node in enumerate(state.nodes):
      first = index * aegis.ranks_per_node
      places = [
        rank.Place(
          rank=i,
          generation=state.generation,
          run_dir=self._config.run_dir,
          skip=state.skip,
          faults=os.environ.get(faults.VARIABLE, ''),
          environment={
            'JAX_COORDINATOR_ADDRESS': coordinator,
            'JAX_NUM_PROCESSES': str(count),
            'JAX_PROCESS_ID': str(i),
          },
        )
        for i in range(first, first + aegis.ranks_per_node)
      ]
      if node not in self._links:
        self._connect(node)
      with self._losing(node):
        places = list(map(dataclasses.asdict, places))
        self._links[node].generation = state.generation
        self._links[node].send('start', places=places)

  def _kill(self) -> list[dict]:
    """Ends all ranks; returns how far each was, with its node."""
    progress, nodes, self._running_nodes = [], self._running_nodes, ()
    for node in nodes:
      if node in self._links:
        with self._losing(node):
          self._links[node].send('kill')
    for node in nodes:
      if node in self._links:
        with self._losing(node):
          report = self._links[node].await_report('killed')
          self._links[node].ranks = []
          progress += [{**r, 'node': node} for r in report['ranks']]
          if report['stuck']:
            raise link.LostError(node)
    return progress

  def _roll_back(self, action: events.Action) -> None:
    """Sets aside the checkpoints after the one to go on from."""
    if action.step is None:
      return
    root = layout.root(self._config.run_dir)
    for step in layout.steps(root):
      if step > action.step:
        name = f'{step}-rolled-back-{time.time_ns()}'
        aside = os.path.join(root, 'bad', name)
        os.makedirs(os.path.dirname(aside), exist_ok=True)
        os.rename(os.path.join(root, str(step)), aside)
    self._sealed = self._newest()

  def _connect(self, node: str) -> None:
    """Starts the agent of a node."""
    aegis, config = self._config.aegis, self._config
    there = self._links[node] = link.Link(node, aegis.agent)
    self._selector.register(there.file, selectors.EVENT_READ, node)
    flagfile = os.path.join(config.run_dir, 'aegis', 'train.flags')
    with self._losing(node):
      there.send(
        'setup',
        command=[*self._program, f'--flagfile={flagfile}'],
        directory=os.getcwd(),
        ranks=aegis.ranks_per_node,
        spare=node not in self._incidents.state.nodes,
        standby=aegis.standby,
        node=node,
        logs=aegis.logs,
        metrics_url=aegis.metrics_url,
        rules=aegis.rules,
        step_limit_s=aegis.step_limit_s,
        phase_limit_s=aegis.phase_limit_s,
      )

  @contextlib.contextmanager
  def _losing(self, node: str):
    """Takes an agent for lost that does not answer."""
    try:
      yield
    except link.LostError:
      self._lose(node)

  def _ranks(self) -> list[dict]:
    return [r for n in self._present() for r in self._links[n].ranks]

  def _present(self) -> list[str]:
    """Nodes of this generation whose agents live."""
    return [n for n in self._running_nodes if n in self._links]

  def _newest(self) -> int | None:
    """The newest sealed step; seals are read when there is a new name."""
    root = layout.root(self._config.run_dir)
    if (names := layout.numbered(root)) != self._names:
      self._names = names
      self._last = max(layout.steps(root), default=None)
    return self._last

  def _write_flags(self) -> None:
    """The flags of the ranks; config.flags is written by rank 0."""
    folder = os.path.join(self._config.run_dir, 'aegis')
    os.makedirs(folder, exist_ok=True)
    train = dataclasses.replace(self._config, mode='train', drill=())
    with open(os.path.join(folder, 'train.flags'), 'w', encoding='utf-8') as f:
      f.write(flags.to_flagfile(train))


def _order(ended: dict) -> tuple:
  """Sorts ranks that ended: those that say why they failed by that time.

  A signal leaves no word; code 75 says that another one is gone.
  """
  return ended['exit_code'] == _STOPPED, ended['failed_ns'] or 0
