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
import subprocess
import sys
import time
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.aegis.agent import starvation
from zaya_jax.aegis.watch import rules, watch
from zaya_jax.runtime import beats, supervised

_POLL_S = 0.1
_STATUS_S = 0.5  # Between two reports.
_SUSPECT_S = 1.0  # Without progress, after which starvation is measured.
_GATHER_S = 0.05  # In which others may end of the same cause.
_REAP_S = 5.0  # In which the kernel must end a killed process.
_SHORTEST_S, _TIMES_P99 = 5.0, 5  # The limit that is learned from steps.
_INPUT, _OUTPUT = 0, 1


class Process:
  """A training process, which has a place or waits for one."""

  def __init__(self, command: list[str]):
    self.rank = -1  # None yet.
    self.slot = beats.Slot()
    self._looks = self._late = 0
    self.popen = subprocess.Popen(
      command,
      stdin=subprocess.PIPE,
      stdout=sys.stderr,  # Standard output belongs to the protocol.
      env={**os.environ, supervised.STANDBY: f'{self.slot.file} {os.getpid()}'},
      pass_fds=(self.slot.file,),
      start_new_session=True,
    )
    self.watch = os.pidfd_open(self.popen.pid)  # Readable once it has ended.
    self._starvation = starvation.Starvation(self.popen.pid)
    self._starved = False

  def begin(self, place: supervised.Place) -> None:
    """Gives it its place."""
    self.rank = place.rank
    self.slot.enter('import')
    with contextlib.suppress(BrokenPipeError):  # Its exit code will show why.
      self.popen.stdin.write(supervised.to_line(place).encode())
      self.popen.stdin.close()

  def signal(self, number: int) -> None:
    """Sends a signal to it and to its children."""
    with contextlib.suppress(ProcessLookupError):
      os.killpg(self.popen.pid, number)

  def close(self) -> None:
    """Frees what an ended process leaves."""
    os.close(self.watch)
    self.slot.close()

  def describe(self) -> dict[str, Any]:
    """How far it is, as `events.Progress` without the node."""
    failure = self.slot.failure
    return {
      'rank': self.rank,
      'pid': self.popen.pid,
      'phase': self.slot.phase,
      'entered': self.slot.entered,
      'done': self.slot.done,
      'process': _letter(self.popen.pid),
      'exit_code': self.popen.poll(),
      'failed_ns': failure[0] if failure else None,
      'why': failure[1] if failure else '',
      'looks': self._looks,
      'late': self._late,
      'starved': self._starved,
    }

  def look(self) -> None:
    """Samples whether it is in a step or before one, and whether it starves."""
    phase = self.slot.phase
    self._looks += phase in ('data', 'step')
    self._late += phase == 'data'
    self._starved = self._starvation.look(self.slot.age_s > _SUSPECT_S)


class Agent:
  """Follows the orders of the supervisor, and reports to it."""

  def __init__(self):
    self._selector = selectors.DefaultSelector()
    self._selector.register(_INPUT, selectors.EVENT_READ)
    self._buffer = b''
    self._aegis = config_lib.AegisConfig()
    self._command: list[str] = []
    self._site: watch.Watch | None = None
    self._ranks: list[Process] = []
    self._standby: list[Process] = []
    self._running, self._generation = False, 0
    self._first_end = self._told = self._told_hang = 0.0

  def run(self) -> None:
    """Runs until the supervisor closes the input."""
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
    data = os.read(_INPUT, 65536)
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
    self._standby = [p for p in self._standby if p.popen.poll() is None]
    several, old = len(places) > 1, self._standby
    self._generation = places[0]['generation']
    self._running, self._first_end = False, 0.0
    for local, place in enumerate(places):
      process = old.pop() if old else Process(self._command)
      if several:
        place['environment']['JAX_LOCAL_DEVICE_IDS'] = str(local)
      process.begin(supervised.Place(**place))
      self._selector.register(process.watch, selectors.EVENT_READ)
      self._ranks.append(process)
    self._standby = old
    self._tell('started')

  def _on_signal(self, number: int) -> None:
    """Sends a signal to the ranks."""
    for process in self._ranks:
      process.popen.send_signal(number)

  def _on_kill(self) -> None:
    """Ends the ranks; reports how far they were."""
    there = [process.describe() for process in self._ranks]
    stuck = self._kill(self._ranks)
    self._ranks = []
    self._tell('killed', ranks=there, stuck=stuck)

  def _watch(self) -> None:
    """Looks at logs and ranks, and reports what is new."""
    now = time.monotonic()
    for event in self._site.poll(now) if self._site else ():
      self._tell('seen', event=watch.facts(event))
    for process in self._ranks:
      process.look()
    if self._first_end and now > self._first_end + _GATHER_S:
      self._first_end = 0.0
      self._tell('ended')
    there = [p.slot for p in self._ranks if p.popen.poll() is None]
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

  def _prepare(self) -> None:
    """Keeps a process ready for each rank of the next generation."""
    wanted = self._aegis.ranks_per_node if self._aegis.standby else 0
    while len(self._standby) < wanted:
      self._standby.append(Process(self._command))

  def _kill(self, processes: list[Process]) -> list[int]:
    """Ends processes; returns those that the kernel cannot end."""
    for process in processes:
      process.signal(signal.SIGKILL)
    stuck, until = [], time.monotonic() + _REAP_S
    for process in processes:
      with contextlib.suppress(KeyError):
        self._selector.unregister(process.watch)
      try:
        process.popen.wait(max(0.0, until - time.monotonic()))
        process.close()
      except subprocess.TimeoutExpired:
        stuck.append(process.popen.pid)
    return stuck

  def _tell(self, kind: str, **more: Any) -> None:
    self._told = time.monotonic()
    ranks = [process.describe() for process in self._ranks]
    report = {'kind': kind, 'generation': self._generation, 'ranks': ranks}
    os.write(_OUTPUT, (json.dumps(report | more) + '\n').encode())


def limit_s(slot: beats.Slot, aegis: config_lib.AegisConfig) -> float:
  """Seconds without progress that count as a hang, in this phase of a rank."""
  known = slot.step_p99_s()
  if slot.phase not in ('data', 'step') or known is None:
    return aegis.phase_limit_s
  return aegis.step_limit_s or max(_SHORTEST_S, _TIMES_P99 * known)


def _letter(pid: int) -> str:
  """The state in /proc/PID/stat: T is stopped, D waits for a device."""
  try:
    with open(f'/proc/{pid}/stat', encoding='utf-8') as file:
      return file.read().rpartition(')')[2].split()[0]
  except OSError:
    return ''


def main() -> None:
  """Follows the supervisor at the other end of the standard input."""
  supervised.die_with_parent()
  # The supervisor decides what a signal of the terminal means.
  for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
  Agent().run()


if __name__ == '__main__':
  main()
