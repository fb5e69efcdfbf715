# SPDX-License-Identifier: Apache-2.0
"""The surroundings of a supervisor: the run's files, the site, who looks on.

The run directory may be on a file system that many share, so it is asked little
(less than once a second) and from a thread, as it may not answer.
"""

import dataclasses
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.aegis.decide import events
from zaya_jax.aegis.decide import state as state_lib
from zaya_jax.aegis.notify import board
from zaya_jax.aegis.supervisor import hooks, incidents, seals
from zaya_jax.aegis.watch import notice, rules, sampler, tail, watch
from zaya_jax.checkpoint import folders

_SEALS_S, _FILES_S = 4.0, 8.0  # Between two questions about each.


@dataclasses.dataclass(frozen=True)
class Look:
  """What is new in the run directory.

  Attributes:
    found: events that training has written.
    sealed: all sealed steps; None: as before.
    failure: why the run directory cannot be read; '' if it can.
  """

  found: tuple[events.Event, ...] = ()
  sealed: tuple[int, ...] | None = None
  failure: str = ''


class Site:
  """Reads what training writes, runs commands, answers on a port.

  Args:
    config: of the run.
    state: returns the present state.
    unwell: returns why no generation is running; '' if one is.
    say: prints a line for people.

  Raises:
    UsageError: if a rule, a command, the port or an address is wrong.
  """

  def __init__(
    self,
    config: config_lib.Config,
    state: Callable[[], state_lib.State],
    unwell: Callable[[], str],
    say: Callable[[str], None],
  ):
    self._state, self._say = state, say
    self._each = config.aegis.ranks_per_node
    self._health = config.aegis.health
    drain, reboot = config.aegis.drain, config.aegis.reboot
    self._orders = [x for x in (drain, reboot) if x]
    self._acts = bool(self._orders) and config.aegis.drain_act
    hooks.check('--aegis.drain', drain)
    hooks.check('--aegis.reboot', reboot)
    hooks.check('--aegis.health', self._health)
    watch.parse(config.aegis.logs)
    sampler.tools(config.aegis.telemetry)
    self._board = board.Board(config, state, say)
    self._notice = notice.File(config.aegis.preempt_file)
    log = os.path.join(config.run_dir, 'log.txt')
    told = os.path.join(config.run_dir, 'incidents.jsonl')
    self._watch = watch.Watch(
      '', rules.load(config.aegis.rules), logs=[('trainer', log)]
    )
    self._told = tail.Tail(told)
    self._seals = seals.Seals(config.run_dir)
    self._lock = threading.Lock()  # Of the run directory: one at a time.
    self._paths = {
      folders.root(config.run_dir): _SEALS_S,
      told: _FILES_S,
      log: _FILES_S,
    }
    self._due = dict.fromkeys(self._paths, 0.0)
    self._before: dict[str, tuple[int, ...]] = {}
    self.sealed = self._seals.steps()
    self._hooks: list[threading.Thread] = []
    self._server = _serve(
      config.aegis,
      self._board.registry,
      lambda: self._board.stuck() or unwell(),
      say,
    )

  def start(self) -> None:
    """Begins to answer on the port; `state` is asked from now on."""
    if self._server:
      self._server.start()

  def look(
    self,
    nodes: Sequence[str],
    generation: int,
    time_s: float,
    is_urgent: bool,
  ) -> Look:
    """What is new since the last call; it may block.

    Args:
      nodes: of the generation,
      generation: and its number.
      time_s: since 1970; it never steps back.
      is_urgent: whether to ask now, as ranks have ended.
    """
    with self._lock:
      root, told, log = (self._is_new(path, is_urgent) for path in self._paths)
      found: list[events.Event] = []
      if told:
        lines = self._told.read()
        made = (
          incidents.told(line, nodes, self._each, generation) for line in lines
        )
        found += [event for event in made if event]
      if log:
        found += self._watch.poll(time_s)
      if not root or (now := self._seals.steps()) == self.sealed:
        return Look(tuple(found))
      self.sealed = now
      return Look(tuple(found), now)

  def newest(self, most: int | None) -> int | None:
    """The newest sealed step; sets aside those after step `most`."""
    with self._lock:
      if most is not None:
        self._seals.roll_back(most)
        self.sealed = self._seals.steps()
      return self._seals.newest()

  def examine(self, node: str) -> str:
    """Why a node must not join; '' if it may. Waits for --aegis.health."""
    if not self._health:
      return ''
    return hooks.run(self._health, node=node, reason='')

  def act(self, action: events.Action) -> None:
    """Drains and reboots condemned nodes if it may; does not wait."""
    for node in action.condemned if self._acts else ():
      hook = threading.Thread(
        target=self._run_orders, args=(node, action.reason), daemon=True
      )
      self._hooks.append(hook)
      hook.start()

  def notices(self, time_s: float) -> list[events.Event]:
    """Notices that the machines will be taken away."""
    # Asked once more, ranks would end without having saved.
    return [] if self._state().draining == '' else self._notice.poll(time_s)

  def seen(self, event: events.Event, action: events.Action) -> None:
    """Tells those who look from outside what was decided."""
    self._board.seen(event, action)

  def finished(self, step: int) -> None:
    """Tells them the last step that all ranks have finished; 0: none yet."""
    self._board.finished(step)

  def close(self) -> None:
    """Closes files and the port; waits for commands, which have a limit."""
    until = time.monotonic() + hooks.TIMEOUT_S
    for hook in self._hooks:
      hook.join(max(0.0, until - time.monotonic()))
    self._board.close()
    self._watch.close()
    self._told.close()
    if self._server:
      self._server.close()

  def _is_new(self, path: str, is_urgent: bool) -> bool:
    """Whether a file has changed, as far as it is time to ask."""
    if is_urgent:
      return True
    now = time.monotonic()
    if now < self._due[path]:
      return False
    self._due[path] = now + self._paths[path]
    try:
      found = os.stat(path)
    except FileNotFoundError:
      return False
    before, facts = self._before.get(path), (found.st_mtime_ns, found.st_size)
    self._before[path] = facts
    return facts != before

  def _run_orders(self, node: str, reason: str) -> None:
    """Each after the other has ended; one that failed is the last."""
    for command in self._orders:
      if failed := hooks.run(command, node=node, reason=reason):
        self._say(failed)
        return
      self._say(f'done for {node}: {command}')


def _serve(
  aegis: config_lib.AegisConfig,
  registry: Any,
  unwell: Callable[[], str],
  say: Callable[[str], None],
) -> Any:
  if not aegis.port:
    return None
  from zaya_jax.aegis.supervisor import endpoint  # A fifth of a second.

  port, bind = aegis.port, aegis.bind
  server = endpoint.opened('aegis.port', port, bind, registry, unwell)
  if warning := endpoint.exposes(aegis.bind, server.port):
    say(warning)
  return server
