# SPDX-License-Identifier: Apache-2.0
"""The supervisor's connection to an agent: orders and reports.

Nothing here waits: what comes is read when the loop says so, and what does not
fit into the pipe is sent later. What an agent says is believed about its own
node only, and what is no report is quoted once.
"""

import asyncio
import contextlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from zaya_jax.aegis.agent import agent as agent_lib
from zaya_jax.aegis.agent import protocol

_SILENCE_S = 10.0  # An agent reports every half second.
_QUEUED = 1000  # Lines of logs that nobody has read yet.
_UNSENT = 2**22  # Bytes of orders that an agent has not read.
_QUOTE = 160  # Characters of a line that is no report.


class Link:
  """Starts an agent, in a running loop.

  Args:
    node: its name.
    prefix: of the command that starts a program on {node}.
    wake: called when there is news, but for a status.

  Attributes:
    ranks: of the node, as of the last report.
    hang: the last report, if it was about a hang.
    lost: why the agent does not count any more; '' while it does.
    version: of the agent; '' before its first word.
    said: the first line that was no report.
    killed: gets the answer to an order to kill.
  """

  def __init__(self, node: str, prefix: str, wake: Callable[[], None]):
    self._node, self._wake = node, wake
    self.ranks: list[dict[str, Any]] = []
    self.hang: dict[str, Any] | None = None
    self.lost = self.version = self.said = ''
    self.generation, self._expected = 0, set[int]()
    self.started = self.heard = time.monotonic()
    self.sent = 0  # The number of the last report, for its answer.
    self.killed: asyncio.Future[dict[str, Any]] | None = None
    self._lines, self._unsent = protocol.Lines(), b''
    self._seen: list[dict[str, Any]] = []
    self._loop = asyncio.get_running_loop()
    command = [*shlex.split(prefix.format(node=node)), sys.executable]
    self._popen = subprocess.Popen(
      [*command, '-m', agent_lib.__name__],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      bufsize=0,
      start_new_session=True,  # Ctrl-C is for the supervisor.
    )
    assert self._popen.stdin and self._popen.stdout  # They are pipes.
    self._input, self._output = self._popen.stdin, self._popen.stdout
    self.pid = self._popen.pid
    for file in (self._input, self._output):
      os.set_blocking(file.fileno(), False)
    self._loop.add_reader(self._output, self._read)

  @property
  def is_silent(self) -> bool:
    """Whether nothing has come for long: it is frozen, or its machine is."""
    return time.monotonic() > self.heard + _SILENCE_S

  def expect(self, generation: int, ranks: range) -> None:
    """Says which reports count from now on: on these ranks."""
    self.generation, self._expected = generation, set(ranks)
    self.ranks, self.hang = [], None

  def send(self, do: str, **order: Any) -> None:
    """Gives an order, unless the agent is lost."""
    if self.lost:
      return
    self._unsent += protocol.encode({'do': do, **order})
    if len(self._unsent) > _UNSENT:
      self._lose('it reads no orders')
    else:
      self._write()

  def kill(self) -> 'asyncio.Future[dict[str, Any]]':
    """Orders to kill the ranks; what comes of it has the last report."""
    if self.killed is None or self.killed.done():
      self.killed = self._loop.create_future()
      self.send('kill')
    if self.lost and not self.killed.done():
      self.killed.cancel()
    return self.killed

  def seen(self) -> list[dict[str, Any]]:
    """What logs of the node have said since the last call."""
    found, self._seen = self._seen, []
    return found

  def forget(self) -> None:
    """Neither reads nor writes any more: the agent sees the end."""
    self._loop.remove_reader(self._output)
    self._loop.remove_writer(self._input)
    self._input.close()
    self._output.close()

  def end(self) -> None:
    """Kills the near end of the connection."""
    with contextlib.suppress(ProcessLookupError):
      self._popen.kill()

  def exit_code(self) -> int | None:
    """Of the near end; None while it lives."""
    return self._popen.poll()

  # --- Called by the loop ---

  def _read(self) -> None:
    try:
      data = os.read(self._output.fileno(), protocol.LINE)
    except BlockingIOError:
      return
    except OSError as error:
      return self._lose(str(error))
    if not data:
      return self._lose('it has ended')
    self._feed(data)

  def _feed(self, data: bytes) -> None:
    for line in self._lines.feed(data):
      report = protocol.report(line)
      if report is None or not self._take(report):
        self.said = self.said or _quote(line)

  def _take(self, report: dict[str, Any]) -> bool:
    """Takes what an agent says of its node; False: that is no report."""
    kind, event = report['kind'], report.get('event')
    self.heard, self.sent = time.monotonic(), report['sent']
    if kind == 'hello':
      self.version = str(report.get('version')) or '?'
    elif kind == 'seen':
      if not isinstance(event, dict):
        return False
      if len(self._seen) < _QUEUED:
        self._seen.append({**event, 'node': self._node})
    elif report['generation'] == self.generation:  # Else it is late.
      if not _is_whole(report, self._expected):
        return False
      self.ranks = report['ranks']
      self.hang = report if kind == 'hang' else None
      if kind == 'killed' and self.killed and not self.killed.done():
        self.killed.set_result(report)
        self.ranks = []
    if kind != 'status':
      self._wake()
    return True

  def _write(self) -> None:
    try:
      while self._unsent:
        written = os.write(self._input.fileno(), self._unsent)
        self._unsent = self._unsent[written:]
      self._loop.remove_writer(self._input)
    except BlockingIOError:
      self._loop.add_writer(self._input, self._write)
    except OSError:
      # What it said before its end may not be read yet.
      with contextlib.suppress(OSError):
        while data := os.read(self._output.fileno(), protocol.LINE):
          self._feed(data)
      self._lose('it has ended')

  def _lose(self, why: str) -> None:
    """Nothing comes any more."""
    self.lost = self.lost or why
    self._loop.remove_reader(self._output)
    self._loop.remove_writer(self._input)
    if self.killed and not self.killed.done():
      self.killed.cancel()
    self._wake()


_NUMBERS = ('rank', 'pid', 'entered', 'done', 'looks', 'late')
_WORDS = ('phase', 'process', 'why')


def _is_whole(report: dict[str, Any], expected: set[int]) -> bool:
  """Whether it describes ranks that the node has."""
  if report['kind'] == 'hang' and not (
    isinstance(report.get('phase'), str)
    and isinstance(report.get('age_s'), int | float)
    and isinstance(report.get('limit_s'), int | float)
  ):
    return False
  return all(
    isinstance(rank, dict)
    and all(type(rank.get(name)) is int for name in _NUMBERS)
    and all(type(rank.get(name)) is str for name in _WORDS)
    and rank['rank'] in expected
    and isinstance(rank.get('failed_ns'), int | None)
    and isinstance(rank.get('exit_code', ''), int | None)
    for rank in report['ranks']
  )


def _quote(line: bytes) -> str:
  text = line[:_QUOTE].decode(errors='replace')
  return ''.join(c if c.isprintable() else ' ' for c in text) or '(nothing)'
