# SPDX-License-Identifier: Apache-2.0
"""One per node: starts ranks, watches, reports and kills them.

It speaks with the supervisor in lines of JSON on its standard input and output:
no port is open, and whatever starts a program on a node (ssh, srun) connects
the two. Agents and ranks end with their supervisor.
"""

import contextlib
import json
import os
import selectors
import signal
import time
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.aegis.agent import deadman, process, protocol
from zaya_jax.aegis.watch import rules, watch
from zaya_jax.runtime import beats, supervised

_POLL_S = 0.1
_STATUS_S = 0.5  # Between two reports.
_GATHER_S = 0.05  # In which others may end of the same cause.
_REAP_S = 5.0  # In which the kernel must end a killed process.
_SHORTEST_S, _TIMES_P99 = 5.0, 5  # The limit that is learned from steps.
_PENDING = 2**20  # Bytes that wait for the supervisor; more are left out.
_INPUT, _OUTPUT = 0, 1

Process = process.Process


class Agent:
  """Follows the orders of the supervisor, and reports to it."""

  def __init__(self):
    self._selector = selectors.DefaultSelector()
    self._selector.register(_INPUT, selectors.EVENT_READ)
    self._buffer, self._pending, self._sent = b'', b'', 0
    self._aegis = config_lib.AegisConfig()
    self._command: list[str] = []
    self._site: watch.Watch | None = None
    self._ranks: list[Process] = []
    self._standby: list[Process] = []
    self._running, self._generation = False, 0
    self._first_end = self._told = self._told_hang = 0.0
    self._deadman = deadman.DeadMan(self._kill_all)

  def run(self) -> None:
    """Runs until the supervisor closes the input."""
    # A cut network fills the pipe, and who waits for it kills nothing.
    os.set_blocking(_OUTPUT, False)
    self._tell('hello', version=protocol.VERSION)
    while True:
      for key, _ in self._selector.select(_POLL_S):
        if key.fileobj != _INPUT:
          self._selector.unregister(key.fileobj)
          self._first_end = self._first_end or time.monotonic()
        elif not self._listen():
          self._kill(self._ranks + self._standby)
          return
      self._watch()

  def _listen(self) -> bool:
    """Follows orders; False: the supervisor is gone."""
    try:
      data = os.read(_INPUT, 65536)
    except BlockingIOError:  # Both ends may be one socket.
      return True
    *lines, self._buffer = (self._buffer + data).split(b'\n')
    for order in map(json.loads, lines):
      getattr(self, f'_on_{order.pop("do")}')(**order)
    return bool(data)

  def _on_setup(
    self,
    command: list[str],
    directory: str,
    node: str,
    spare: bool,
    aegis: dict[str, Any],
  ) -> None:
    """Takes the settings of the run, and the command that starts a rank."""
    lists = {k: tuple(v) for k, v in aegis.items() if isinstance(v, list)}
    self._aegis = config_lib.AegisConfig(**{**aegis, **lists})
    self._command = command
    os.chdir(directory)
    self._site = watch.Watch(
      node,
      rules.load(self._aegis.rules),
      logs=watch.parse(self._aegis.logs),
      metrics_url=self._aegis.metrics_url,
      telemetry=self._aegis.telemetry,
    )
    if spare:
      self._prepare()

  def _on_start(self, places: list[dict[str, Any]]) -> None:
    """Starts ranks."""
    # One that has ended is waited for, so that nothing of it is left.
    old = [p for p in self._standby if p.exit_code is None or not p.wait(0)]
    several = len(places) > 1
    self._generation = places[0]['generation']
    self._running, self._first_end = False, 0.0
    for local, place in enumerate(places):
      rank = old.pop() if old else Process(self._command)
      if several:
        place['environment']['JAX_LOCAL_DEVICE_IDS'] = str(local)
      rank.begin(supervised.Place(**place))
      self._selector.register(rank.watch, selectors.EVENT_READ)
      self._ranks.append(rank)
    self._standby = old
    self._tell('started')

  def _on_ack(self, sent: int, for_s: float) -> None:
    """Knows for how long the supervisor holds the run."""
    self._deadman.answered(sent, for_s)

  def _on_signal(self, number: int) -> None:
    """Sends a signal to the ranks."""
    for rank in self._ranks:
      if rank.exit_code is None:
        os.kill(rank.popen.pid, number)

  def _on_kill(self) -> None:
    """Ends the ranks; reports how far they were."""
    there = [rank.describe() for rank in self._ranks]
    stuck = self._kill(self._ranks)
    self._ranks = []
    self._tell('killed', ranks=there, stuck=stuck)

  def _watch(self) -> None:
    """Looks at logs and ranks, and reports what is new."""
    now = time.monotonic()
    for event in self._site.poll(now) if self._site else ():
      self._tell('seen', event=watch.facts(event))
    for rank in self._ranks:
      rank.look()
    if self._first_end and now > self._first_end + _GATHER_S:
      self._first_end = 0.0
      self._tell('ended')
    there = [p.slot for p in self._ranks if p.exit_code is None]
    late = [slot for slot in there if slot.age_s > limit_s(slot, self._aegis)]
    if late and now > self._told_hang + _STATUS_S:
      self._told_hang, slot = now, late[0]
      limit = limit_s(slot, self._aegis)
      self._tell('hang', phase=slot.phase, limit_s=limit, age_s=slot.age_s)
    elif there and not self._running and all(slot.done for slot in there):
      self._running = True
      self._tell('running')
      self._prepare()  # Not before: the ranks need the processor to start.
    if now > self._told + _STATUS_S:
      self._tell('status')
    self._flush()

  def _prepare(self) -> None:
    """Keeps a process ready for each rank of the next generation."""
    wanted = self._aegis.ranks_per_node if self._aegis.standby else 0
    while len(self._standby) < wanted:
      self._standby.append(Process(self._command))

  def _kill(self, processes: list[Process]) -> list[int]:
    """Ends processes; returns those that the kernel cannot end."""
    for each in processes:
      each.signal(signal.SIGKILL)
    stuck, until = [], time.monotonic() + _REAP_S
    for each in processes:
      with contextlib.suppress(KeyError):
        self._selector.unregister(each.watch)
      if not each.wait(max(0.0, until - time.monotonic())):
        stuck.append(each.popen.pid)
    return stuck

  def _kill_all(self) -> None:
    """Ends all processes, and waits for none."""
    for each in (*self._ranks, *self._standby):
      each.signal(signal.SIGKILL)

  def _tell(self, kind: str, **more: Any) -> None:
    self._told, self._sent = time.monotonic(), self._sent + 1
    ranks = [rank.describe() for rank in self._ranks]
    report = {'kind': kind, 'generation': self._generation, 'ranks': ranks}
    line = protocol.encode_report({'sent': self._sent, **report, **more})
    if self._pending and (
      kind == 'status' or len(self._pending) + len(line) > _PENDING
    ):
      line = b''
    else:
      self._deadman.sending(self._sent)
    self._pending += line
    self._flush()

  def _flush(self) -> None:
    """Writes what the pipe takes."""
    with contextlib.suppress(BlockingIOError):
      while self._pending:
        self._pending = self._pending[os.write(_OUTPUT, self._pending) :]


def limit_s(slot: beats.Slot, aegis: config_lib.AegisConfig) -> float:
  """Seconds without progress that count as a hang, in this phase of a rank."""
  known = slot.step_p99_s()
  if slot.phase not in ('data', 'step') or known is None:
    return aegis.phase_limit_s
  return aegis.step_limit_s or max(_SHORTEST_S, _TIMES_P99 * known)


def main() -> None:
  """Follows the supervisor at the other end of the standard input."""
  supervised.die_with_parent()
  # The supervisor decides what a signal of the terminal means.
  for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
  Agent().run()


if __name__ == '__main__':
  main()
