# SPDX-License-Identifier: Apache-2.0
"""What must be so before the next generation begins, and its place.

All nodes are there and healthy, and ranks of nodes that were lost are surely
dead. Then older generations are fenced off, and only then ranks start.
"""

import asyncio
import contextlib
import dataclasses
import os
import pathlib
import time
import zlib
from collections.abc import Callable

from zaya_jax import config as config_lib
from zaya_jax.aegis.decide import state as state_lib
from zaya_jax.aegis.supervisor import (
  hooks,
  incidents,
  site,
  tenure,
)
from zaya_jax.aegis.supervisor.nodes import (
  background,
  fleet,
  quarantine,
  welcome,
)
from zaya_jax.checkpoint import seal_key
from zaya_jax.config import fields
from zaya_jax.runtime import durable, faults, fence, lease, supervised

_PORTS, _PORT_COUNT = 61_440, 4096  # Above those that Linux hands out.
_LIMIT_S = 60.0  # For the run directory and the lease store to answer.


@dataclasses.dataclass(frozen=True)
class Wait:
  """Why a generation does not begin yet, and until when at most."""

  why: str
  until: float


@dataclasses.dataclass(frozen=True)
class Ready:
  """All is ready: the place of each rank, and the step it goes on from."""

  generation: int
  place: supervised.Place
  step: int | None


class Launch:
  """Prepares generations.

  Args:
    config: of the run.
    there: the agents.
    guests: examines nodes.
    held: the ownership of the run.
    around: the run directory.
    see: takes an event: its kind and facts.
  """

  def __init__(
    self,
    config: config_lib.Config,
    there: fleet.Fleet,
    guests: welcome.Welcome,
    held: tenure.Tenure,
    around: site.Site,
    see: Callable[..., None],
  ):
    self._config, self._fleet, self._welcome = config, there, guests
    self._held, self._site, self._see = held, around, see
    self._examined: set[str] = set()  # Nodes of the generation before.
    self._not_before = 0.0
    self._roll_back: int | None = None
    self._task: asyncio.Task[Ready] | None = None
    self._wait: Wait | None = None
    self._failure = ''  # That was told of.

  def again(self, delay_s: float, step: int | None) -> None:
    """The next generation begins later, perhaps from an older step."""
    self._not_before = time.monotonic() + delay_s
    if step is not None:
      older = self._roll_back
      self._roll_back = step if older is None else min(older, step)

  def turn(self, state: state_lib.State) -> Wait | Ready:
    """Does what can be done."""
    now = time.monotonic()
    if now < self._not_before:
      return Wait('it waits after failures', self._not_before)
    for node in state.nodes:
      self._fleet.connect(node, spare=False)
    if away := [n for n in state.nodes if not self._fleet.is_ready(n)]:
      limit_s = self._config.aegis.start_limit_s
      return self._until(f'the agent of {away[0]} has not started', limit_s)
    if now < self._fleet.safe_at:
      why = 'ranks of a node that was lost may still run'
      return Wait(why, self._fleet.safe_at)
    return self._examine(state) or self._ready(state)

  def _examine(self, state: state_lib.State) -> Wait | None:
    verdicts = {}
    if self._config.aegis.health:
      new = [node for node in state.nodes if node not in self._examined]
      verdicts = {node: self._welcome.verdict(node) for node in new}
    if None in verdicts.values():
      return self._until('--aegis.health runs', hooks.TIMEOUT_S)
    for node in verdicts:
      self._welcome.forget(node)
    self._examined |= {node for node, why in verdicts.items() if not why}
    bad = {node: why for node, why in verdicts.items() if why}
    if not bad:
      return None
    self._see('unhealthy', nodes=tuple(bad), detail=next(iter(bad.values())))
    return self._until('a node is unhealthy', 0.0)

  def _ready(self, state: state_lib.State) -> Wait | Ready:
    if self._task is None:
      self._task = background.start(
        self._prepare, state, self._roll_back, limit_s=_LIMIT_S
      )
    if not self._task.done():
      return self._until('the run directory is asked', _LIMIT_S)
    task, self._task = self._task, None
    try:
      ready = task.result()
    except lease.LostError as error:
      self._held.lost = str(error)
      return self._until('the run has another owner', 0.0)
    except (OSError, TimeoutError, lease.LeaseError) as error:
      self._not_before = time.monotonic() + 1
      if (why := str(error) or 'it does not answer') != self._failure:
        self._see('storage', detail=why)
      self._failure = why
      return self._until('the run directory cannot be written', _LIMIT_S)
    if ready.generation != state.generation:
      return self._until('nodes have changed', _LIMIT_S)
    self._examined, self._roll_back = set(state.nodes), None
    self._wait, self._failure = None, ''
    return ready

  def _until(self, why: str, limit_s: float) -> Wait:
    """A wait whose limit counts from when it began."""
    if self._wait is None or self._wait.why != why:
      self._wait = Wait(why, time.monotonic() + limit_s)
    return self._wait

  def _prepare(self, state: state_lib.State, step: int | None) -> Ready:
    """Fences off older generations; called in a thread."""
    config, aegis = self._config, self._config.aegis
    newest = self._site.newest(step)
    token, number = self._held.token, state.generation
    fact = {'number': number, 'start_step': newest or 0, **vars(token)}
    self._held.write('generation', fact)
    fence.raise_to(config.run_dir, number, newest or 0)
    host = state.nodes[0] if aegis.agent else '127.0.0.1'
    seed = zlib.crc32(config.run_dir.encode())
    coordinator = f'{host}:{_PORTS + (seed + 31 * number) % _PORT_COUNT}'
    path = pathlib.Path(config.run_dir, 'aegis', 'coordinator')
    durable.replace(path, coordinator.encode())
    count = len(state.nodes) * aegis.ranks_per_node
    place = supervised.Place(
      rank=-1,
      generation=number,
      run_dir=config.run_dir,
      skip=state.skip,
      faults=os.environ.get(faults.VARIABLE, ''),
      owner=token.owner,
      epoch=token.epoch,
      lease=self._held.address,
      environment={
        **_seal_key(config),
        'JAX_COORDINATOR_ADDRESS': coordinator,
        'JAX_NUM_PROCESSES': str(count),
      },
    )
    return Ready(number, place, newest)


def first_state(
  config: config_lib.Config,
  held: tenure.Tenure,
  around: site.Site,
  past: pathlib.Path,
  time_s: float,
) -> state_lib.State:
  """The state before the first generation of this supervisor.

  Args:
    config: of the run.
    held: the ownership of the run.
    around: the run directory.
    past: incidents of the supervisors before this one.
    time_s: now, since 1970.
  """
  aegis, last = config.aegis, incidents.last_state(past)
  count = len(aegis.nodes) - aegis.spares
  # What all nodes could share, a divisor of their number can share, too.
  shrinks = fields.divisors(count)[:-1] if aegis.shrink else ()
  policy = state_lib.Policy(
    restarts_per_hour=aegis.restarts_per_hour,
    no_progress=aegis.no_progress,
    failed_saves=config.checkpoint.max_failed_saves,
    condemn_per_hour=aegis.condemn_per_hour,
    condemn_share=aegis.condemn_share,
    quarantine_s=3600 * aegis.quarantine_h,
    outage_wait_s=aegis.outage_wait_s,
    orders=tuple(x for x in (aegis.drain, aegis.reboot) if x),
    node_counts=tuple(shrinks),
  )
  nodes, spares = aegis.nodes[:count], aegis.nodes[count:]
  state = state_lib.start(
    nodes,
    spares=spares,
    policy=policy,
    last=last,
    # Without --aegis.agent, nodes are only names on this machine.
    held=quarantine.read(held.store, aegis.nodes) if aegis.agent else (),
    time_s=time_s,
  )
  known = held.store.read('generation') or {}
  newest = max(known.get('number', 0), fence.newest(config.run_dir))
  return state.but(generation=newest + 1, sealed=around.sealed)


def safe_at(config: config_lib.Config, held: tenure.Tenure) -> float:
  """The monotonic time at which ranks of an earlier supervisor are dead."""
  began = held.store.read('generation')
  if not config.aegis.agent or not began:  # They have ended with it.
    return 0.0
  ended = held.store.read('ended') or {}
  if ended.get('number') == began.get('number'):
    return 0.0
  return time.monotonic() + config.aegis.lease_s


def leave(held: tenure.Tenure, there: fleet.Fleet) -> None:
  """Remembers that no rank of this supervisor is left, if that is known."""
  if time.monotonic() < there.safe_at or held.lost:
    return
  with contextlib.suppress(lease.LeaseError):  # Then the next one waits.
    if began := held.store.read('generation'):
      held.write('ended', {'number': began.get('number')})


def _seal_key(config: config_lib.Config) -> dict[str, str]:
  """Ranks take the key file from here: who can write their flags cannot."""
  told = os.environ.get(seal_key.VARIABLE) or config.checkpoint.seal_key_file
  return {seal_key.VARIABLE: os.path.abspath(told)} if told else {}


def write_flags(config: config_lib.Config) -> pathlib.Path:
  """Writes the flags of the ranks; config.flags is rank 0's."""
  path = pathlib.Path(config.run_dir, 'aegis', 'train.flags')
  path.parent.mkdir(exist_ok=True)
  train = dataclasses.replace(config, mode='train', drill=())
  path.write_text(train.to_flagfile(), encoding='utf-8')
  return path
