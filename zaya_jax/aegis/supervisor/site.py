# SPDX-License-Identifier: Apache-2.0
"""The surroundings of a supervisor: training's files, a port, the scheduler."""

import contextlib
import os
import socket
import threading
from collections.abc import Callable

from zaya_jax import config as config_lib
from zaya_jax.aegis.decide import events
from zaya_jax.aegis.decide import state as state_lib
from zaya_jax.aegis.notify import board
from zaya_jax.aegis.supervisor import hooks, incidents
from zaya_jax.aegis.watch import notice, rules, sampler, tail, watch

_NOTIFY_S = 5.0


class Site:
  """Reads what training reports, answers on a port, drains nodes.

  Args:
    config: of the run.
    state: returns the present state.
    say: prints a line for people.

  Raises:
    UsageError: if a rule, a command or the port is wrong.
  """

  def __init__(
    self,
    config: config_lib.Config,
    state: Callable[[], state_lib.State],
    say: Callable[[str], None],
  ):
    self._state, self._say = state, say
    self._each = config.aegis.ranks_per_node
    self._drain = config.aegis.drain
    self._health = config.aegis.health
    hooks.check('--aegis.drain', self._drain)
    hooks.check('--aegis.health', self._health)
    watch.parse(config.aegis.logs)
    sampler.tools(config.aegis.telemetry)
    self._board = board.Board(config, state, say)
    self._watch = watch.Watch(
      '',
      rules.load(config.aegis.rules),
      logs=[('trainer', os.path.join(config.run_dir, 'log.txt'))],
    )
    self._notice = notice.File(config.aegis.preempt_file)
    self._told = tail.Tail(os.path.join(config.run_dir, 'incidents.jsonl'))
    self._server = _serve(
      config.aegis,
      self._board.registry,
      lambda: self._board.stuck() or _unwell(state()),
      say,
    )
    self._hooks, self._notified_s = [], 0.0

  def start(self) -> None:
    """Begins to answer on the port; `state` is asked from now on."""
    if self._server:
      self._server.start()

  def poll(self, time_s: float) -> list[events.Event]:
    """The events since the last call."""
    if time_s > self._notified_s + _NOTIFY_S:
      self._notified_s = time_s
      _notify()
    nodes = self._state().nodes
    found = [
      incidents.told(line, nodes, self._each) for line in self._told.read()
    ]
    # Asked once more, ranks would end without having saved.
    if self._state().draining != '':
      found += self._notice.poll(time_s)
    return [x for x in found if x] + self._watch.poll(time_s)

  def examine(self, node: str) -> str:
    """Why a node must not join; '' if it may. Waits for --aegis.health."""
    if not self._health:
      return ''
    return hooks.run(self._health, node=node, reason='')

  def act(self, action: events.Action) -> None:
    """Tells the scheduler of a lost node; does not wait for --aegis.drain."""
    if self._drain and action.node and action.kind in ('replace_node', 'stop'):
      hook = threading.Thread(
        target=self._run_hook, args=(action.node, action.reason)
      )
      self._hooks.append(hook)
      hook.start()

  def seen(self, event: events.Event, action: events.Action) -> None:
    """Tells those who look from outside what was decided."""
    self._board.seen(event, action)

  def finished(self, step: int) -> None:
    """Tells them the last step that all ranks have finished; 0: none yet."""
    self._board.finished(step)

  def close(self) -> None:
    """Closes files and the port; waits for commands and the last notice."""
    for hook in self._hooks:
      hook.join()
    self._board.close()
    self._watch.close()
    self._told.close()
    if self._server:
      self._server.close()

  def _run_hook(self, node: str, reason: str) -> None:
    failed = hooks.run(self._drain, node=node, reason=reason)
    self._say(failed or f'{node} is drained: {self._drain}')


def _notify() -> None:
  """Tells systemd, if it has asked for it, that this process lives."""
  address = os.environ.get('NOTIFY_SOCKET', '').replace('@', '\0', 1)
  if address:
    with (
      contextlib.suppress(OSError),
      socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as there,
    ):
      there.sendto(b'WATCHDOG=1', address)


def _unwell(state: state_lib.State) -> str:
  """Why the run does not progress; '' if it does."""
  if state.alarm or state.running:
    return state.alarm
  return f'generation {state.generation} has finished no step yet'


def _serve(aegis: config_lib.AegisConfig, registry, unwell, say):
  if not aegis.port:
    return None
  from zaya_jax.aegis.supervisor import endpoint  # A fifth of a second.

  try:
    server = endpoint.Server(aegis.port, registry, unwell, aegis.bind)
  except OSError as error:
    raise config_lib.UsageError(
      f'--aegis.port={aegis.port} cannot be opened on --aegis.bind='
      f'{aegis.bind} ({error.strerror}); choose others, or no port (0).'
    ) from error
  if warning := endpoint.exposes(aegis.bind, server.port):
    say(warning)
  return server
