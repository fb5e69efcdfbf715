# SPDX-License-Identifier: Apache-2.0
"""The supervisor's connection to an agent: orders and reports."""

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

_SILENCE_S = 10.0  # An agent reports every half second.
_ANSWER_S = 8.0  # More than an agent gives its ranks to end.


class LostError(RuntimeError):
  """The agent does not answer."""


class Link:
  """Starts an agent.

  Args:
    node: its name.
    prefix: of the command that starts a program on {node}.
  """

  def __init__(self, node: str, prefix: str):
    self._node = node
    self.ranks: list[dict[str, Any]] = []  # As of the last report.
    self.generation = 0  # Reports on others are dropped.
    command = [*shlex.split(prefix.format(node=node)), sys.executable]
    self._popen = subprocess.Popen(
      [*command, '-m', agent_lib.__name__],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      start_new_session=True,  # Ctrl-C is for the supervisor.
    )
    assert self._popen.stdin and self._popen.stdout  # They are pipes.
    self._input, self._output = self._popen.stdin, self._popen.stdout
    self.pid, self.file = self._popen.pid, self._output.fileno()
    os.set_blocking(self.file, False)
    self._buffer, self._heard = b'', time.monotonic()
    self._seen: list[dict[str, Any]] = []  # Reports that are not read yet.

  @property
  def is_silent(self) -> bool:
    """Whether nothing has come for long: it is frozen, or its machine is."""
    return time.monotonic() > self._heard + _SILENCE_S

  def send(self, do: str, **order: Any) -> None:
    """Gives an order. Raises LostError."""
    try:
      line = json.dumps({'do': do, **order}) + '\n'
      self._input.write(line.encode())
      self._input.flush()
    except OSError as error:
      raise LostError(self._node) from error

  def receive(self) -> Iterator[dict[str, Any]]:
    """Yields what has come. Raises LostError when the agent has ended."""
    seen, self._seen = self._seen, []
    yield from seen
    try:
      data = os.read(self.file, 2**20)
    except BlockingIOError:
      return
    if not data:
      raise LostError(self._node)
    self._heard = time.monotonic()
    *lines, self._buffer = (self._buffer + data).split(b'\n')
    for report in map(json.loads, lines):
      if report['kind'] == 'seen':
        yield report
      elif report['generation'] == self.generation:  # Else it is late.
        self.ranks = report['ranks']
        yield report

  def await_report(self, kind: str) -> dict[str, Any]:
    """Waits for a report; keeps lines of logs. Raises LostError."""
    until, kept = time.monotonic() + _ANSWER_S, []
    while (left := until - time.monotonic()) > 0:
      select.select([self.file], [], [], left)
      reports = list(self.receive())
      kept += [report for report in reports if report['kind'] == 'seen']
      for report in reports:
        if report['kind'] == kind:
          self._seen = kept
          return report
    raise LostError(self._node)

  def close(self, *, kill: bool = False) -> None:
    """Ends the agent; its ranks end with it."""
    with contextlib.suppress(OSError):
      self._input.close()
    if not kill:
      with contextlib.suppress(subprocess.TimeoutExpired):
        self._popen.wait(_ANSWER_S)
    self._popen.kill()
    self._popen.wait()
    self._output.close()
