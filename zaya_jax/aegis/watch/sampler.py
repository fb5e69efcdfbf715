# SPDX-License-Identifier: Apache-2.0
"""Asks tools of a node now and then; what has risen becomes events, by rules.

A tool may hang with the hardware that it asks, even beyond the reach of
SIGKILL, so none is waited for, and none is started twice.
"""

import contextlib
import dataclasses
import math
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from typing import IO

from zaya_jax.aegis.decide import events
from zaya_jax.aegis.watch import matcher, rules
from zaya_jax.aegis.watch.telemetry import counters, gpus, nics, rdma
from zaya_jax.config import fields

_EVERY_S, _LIMIT_S = 30.0, 20.0
_REAP_S = 0.5  # In which the kernel mostly ends a killed process.
_AGAIN_S = 3600.0  # Between two lines about a tool that fails.
_BYTES = 2**23
_SERIES = 20_000


@dataclasses.dataclass(frozen=True)
class Tool:
  """A command, and what reads its output; that raises ValueError."""

  command: tuple[str, ...]
  read: Callable[[str], counters.Counters]


# By the name in --aegis.telemetry.
TOOLS: dict[str, tuple[Tool, ...]] = {
  'amd_smi': (
    Tool(('amd-smi', 'metric', '--json'), gpus.metric),
    Tool(('amd-smi', 'bad-pages', '--json'), gpus.pages),
    Tool(('amd-smi', 'static', '--ras', '--json'), gpus.ras),
  ),
  'ethtool': (
    Tool(
      (
        'sh',
        '-c',
        # Cards alone have a device.
        'for at in /sys/class/net/*/device; do at=${at%/device};'
        ' name=${at##*/}; driver=$(readlink "$at/device/driver");'
        ' echo "== $name ${driver##*/}"; ethtool -S "$name"; done',
      ),
      nics.ethtool,
    ),
  ),
  'ip': (Tool(('ip', '-j', '-s', 'link'), nics.ip),),
  'rdma': (Tool(('rdma', '-j', 'statistic'), rdma.statistic),),
  'infiniband': (
    Tool(
      (
        'sh',
        '-c',
        'cd /sys/class/infiniband && grep -sH "" $PWD/*/ports/*/state'
        ' $PWD/*/ports/*/counters/* $PWD/*/ports/*/hw_counters/*',
      ),
      rdma.ports,
    ),
  ),
}


def tools(names: Iterable[str]) -> list[Tool]:
  """The tools of --aegis.telemetry.

  Raises:
    UsageError: if a name is unknown.
  """
  for name in names:
    if name not in TOOLS:
      raise fields.UsageError(
        f'--aegis.telemetry={name} is unknown; known are {", ".join(TOOLS)}.'
      )
  return [tool for name in names for tool in TOOLS[name]]


class Sampler:
  """Asks tools, each in its own process; `poll` never waits.

  Args:
    node: its name.
    found: the rules; those on `metrics` count.
    asked: the tools.
    every_s: seconds between two questions to a tool.
    limit_s: seconds that a tool has.
  """

  def __init__(
    self,
    node: str,
    found: Iterable[rules.Rule],
    asked: Iterable[Tool],
    *,
    every_s: float = _EVERY_S,
    limit_s: float = _LIMIT_S,
  ):
    self._node, self._matcher = node, matcher.Matcher(found, node)
    self._questions = [_Question(tool, every_s, limit_s) for tool in asked]

  def poll(self, time_s: float) -> list[events.Event]:
    """The events since the last call; `time_s` never steps back."""
    seen: list[events.Event] = []
    for question in self._questions:
      for name, rise in question.poll(time_s):
        seen += self._matcher.match('metrics', name, time_s=time_s, count=rise)
      if failure := question.news(time_s):
        seen.append(
          events.Event(
            time_s=time_s,
            kind='cannot_watch',
            node=self._node or None,
            action='warn',
            detail=failure,
          )
        )
    return seen + self._matcher.due(time_s)

  def close(self) -> None:
    """Ends tools that are under way; waits a moment for each."""
    for question in self._questions:
      question.close()


class _Question:
  """One tool: when it was asked, and what it counted last."""

  def __init__(self, tool: Tool, every_s: float, limit_s: float):
    self._tool, self._every_s, self._limit_s = tool, every_s, limit_s
    self._process: subprocess.Popen | None = None
    self._output: IO[bytes] | None = None
    self._next_s = self._until_s = -math.inf
    self._last: counters.Counters = {}
    self._failure, self._told_s = '', -math.inf

  def poll(self, time_s: float) -> list[tuple[str, int]]:
    """Counters that have risen, and by how much."""
    if self._process is None:
      if time_s >= self._next_s:
        self._ask(time_s)
      return []
    code = self._process.poll()
    if code is None:
      if time_s > self._until_s:
        self._failure = f'it does not answer within {self._limit_s:g} s'
        self._kill()
      return []
    self._process, output = None, self._output
    with output:
      output.seek(0)
      text = output.read(_BYTES).decode(errors='replace')
    if code < 0:
      self._failure = self._failure or f'signal {-code} ended it'
      return []
    # Some end with an error beside what they know, as ethtool may.
    return self._rises(text, f'exit code {code}: ' if code else '')

  def news(self, time_s: float) -> str:
    """Why it cannot be read, at most once an hour; '' if it can."""
    if not self._failure or time_s < self._told_s + _AGAIN_S:
      return ''
    self._told_s = time_s
    return f'{" ".join(self._tool.command[:3])}: {self._failure}'

  def close(self) -> None:
    if self._process:
      self._kill()
      with contextlib.suppress(subprocess.TimeoutExpired):
        self._process.wait(_REAP_S)
      self._output.close()

  def _ask(self, time_s: float) -> None:
    self._next_s = time_s + self._every_s
    self._until_s = time_s + self._limit_s
    self._output = tempfile.TemporaryFile()
    try:
      self._process = subprocess.Popen(
        self._tool.command,
        stdin=subprocess.DEVNULL,
        stdout=self._output,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
      )
    except OSError as error:
      self._output.close()
      self._failure = error.strerror or str(error)

  def _kill(self) -> None:
    with contextlib.suppress(ProcessLookupError):
      os.killpg(self._process.pid, signal.SIGKILL)

  def _rises(self, text: str, prefix: str) -> list[tuple[str, int]]:
    """Compares with the last answer; one that is wrong forgets nothing.

    A counter that is new, or was reset, counts from here on.
    """
    try:
      now = self._tool.read(text)
    except ValueError as error:
      self._failure = f'{prefix}{error}'
      return []
    self._failure = ''
    found = [
      (name, math.ceil(value - self._last[name]))
      for name, value in now.items()
      if value > self._last.get(name, value)
    ]
    self._last = dict([*(self._last | now).items()][-_SERIES:])
    return found
