# SPDX-License-Identifier: Apache-2.0
"""The supervisor's end of an agent: orders go there, reports come back."""

import contextlib
import json
import os
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from zaya_jax.aegis.agent import agent as agent_lib

_SILENCE_S = 10.0  # An agent tells that it lives every half second.
_ANSWER_S = 8.0  # More than an agent gives its ranks to be gone.


class LostError(RuntimeError):
  """The agent does not answer any more."""


class Link:
  """Starts an agent.

  Args:
    node: its name.
    prefix: of the command that starts a program on {node}.

  Attributes:
    node: its name.
    generation: that is expected; reports on others are dropped.
    ranks: the newest that the agent told of each of its ranks.
    file: to read from.
    pid: of the local process.
  """

  def __init__(self, node: str, prefix: str):
    self.node, self.ranks, self.generation = node, [], 0
    command = [*shlex.split(prefix.format(node=node)), sys.executable]
    self._popen = subprocess.Popen(
      [*command, '-m', agent_lib.__name__],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      start_new_session=True,  # Ctrl-C is for the supervisor.
    )
    self.pid, self.file = self._popen.pid, self._popen.stdout.fileno()
    os.set_blocking(self.file, False)
    self._buffer, self._heard = b'', time.monotonic()
    self._seen: list[dict[str, Any]] = []  # Until somebody listens.

  @property
  def is_silent(self) -> bool:
    """Whether it is frozen, or its machine is."""
    return time.monotonic() > self._heard + _SILENCE_S

  def send(self, do: str, **order: Any) -> None:
    """Gives an order. Raises LostError."""
    try:
      line = json.dumps({'do': do, **order}) + '\n'
      self._popen.stdin.write(line.encode())
      self._popen.stdin.flush()
    except OSError as error:
      raise LostError(self.node) from error

  def receive(self) -> Iterator[dict[str, Any]]:
    """Yields what has come. Raises LostError when the agent has ended."""
    seen, self._seen = self._seen, []
    yield from seen
    try:
      data = os.read(self.file, 2**20)
    except BlockingIOError:
      return
    if not data:
      raise LostError(self.node)
    self._heard = time.monotonic()
    *lines, self._buffer = (self._buffer + data).split(b'\n')
    for report in map(json.loads, lines):
      if report['kind'] == 'seen':
        yield report
      elif report['generation'] == self.generation:  # Else it is late.
        self.ranks = report['ranks']
        yield report

  def await_report(self, kind: str) -> dict[str, Any]:
    """Waits for one kind of report; what logs say stays. Raises LostError."""
    until, kept = time.monotonic() + _ANSWER_S, []
    while (left := until - time.monotonic()) > 0:
      select.select([self.file], [], [], left)
      reports = list(self.receive())
      kept += [report for report in reports if report['kind'] == 'seen']
      for report in reports:
        if report['kind'] == kind:
          self._seen = kept
          return report
    raise LostError(self.node)

  def close(self, *, kill: bool = False) -> None:
    """Ends the agent, and with it its ranks."""
    with contextlib.suppress(OSError):
      self._popen.stdin.close()
    try:
      if not kill:
        self._popen.wait(_ANSWER_S)
    except subprocess.TimeoutExpired:
      pass
    self._popen.kill()  # Its ranks die with it.
    self._popen.wait()
    self._popen.stdout.close()
