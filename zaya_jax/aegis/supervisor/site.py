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
from zaya_jax.aegis.supervisor import hooks, incidents
from zaya_jax.aegis.watch import rules, tail, watch

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
    self._acts = bool(self._drain) and config.aegis.drain_act
    self._health = config.aegis.health
    hooks.check('--aegis.drain', self._drain)
    hooks.check('--aegis.health', self._health)
    watch.parse(config.aegis.logs)
    self._watch = watch.Watch(
      '',
      rules.load(config.aegis.rules),
      logs=[('trainer', os.path.join(config.run_dir, 'log.txt'))],
    )
    self._told = tail.Tail(os.path.join(config.run_dir, 'incidents.jsonl'))
    self._server = _serve(config.aegis.port, state)
    self._hooks, self._notified_s = [], 0.0

  def poll(self, time_s: float) -> list[events.Event]:
    """The events since the last call."""
    if time_s > self._notified_s + _NOTIFY_S:
      self._notified_s = time_s
      _notify()
    nodes = self._state().nodes
    found = [
      incidents.told(line, nodes, self._each) for line in self._told.read()
    ]
    return [x for x in found if x] + self._watch.poll(time_s)

  def examine(self, node: str) -> str:
    """Why a node must not join; '' if it may. Waits for --aegis.health."""
    if not self._health:
      return ''
    return hooks.run(self._health, node=node, reason='')

  def act(self, action: events.Action) -> None:
    """Tells the scheduler of condemned nodes if it may; does not wait."""
    for node in action.condemned if self._acts else ():
      hook = threading.Thread(target=self._run_hook, args=(node, action.reason))
      self._hooks.append(hook)
      hook.start()

  def close(self) -> None:
    """Closes files and the port; waits for commands."""
    for hook in self._hooks:
      hook.join()
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


def _serve(port: int, state: Callable[[], state_lib.State]):
  if not port:
    return None
  from zaya_jax.aegis.supervisor import endpoint  # A fifth of a second.

  try:
    return endpoint.Server(port, state)
  except OSError as error:
    raise config_lib.UsageError(
      f'--aegis.port={port} cannot be opened ({error.strerror}); choose '
      'another one, or 0 for none.'
    ) from error
