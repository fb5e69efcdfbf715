# SPDX-License-Identifier: Apache-2.0
"""A command of a stage: a process with a limit, whose words are kept."""

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

_TELL_S = 20.0  # Between lines of progress.
_END_S = 10.0  # To save, after SIGTERM.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ended:
  """How a command has ended.

  Attributes:
    name: of the command; NAME.out and NAME.err are in the folder of logs.
    code: exit code; negative: of a signal; None: its time was over.
    seconds: that it took.
    last: the last line of its errors.
  """

  name: str
  code: int | None
  seconds: float
  last: str = ''

  @property
  def words(self) -> str:
    """How it ended, in words."""
    if self.code is None:
      return f'did not end within {self.seconds:.0f} s'
    if self.code < 0:
      return f'was ended by {signal.Signals(-self.code).name}'
    return f'ended with {self.code}'


def run(
  name: str,
  words: Sequence[str],
  logs: pathlib.Path,
  limit_s: float,
  *,
  environment: Mapping[str, str | None] | None = None,
  tell: Callable[[str], None] = lambda text: None,
) -> Ended:
  """Runs `python WORDS`; kills it, and what it has started, at its limit.

  Args:
    name: of the command.
    words: after the interpreter.
    logs: folder of its output.
    limit_s: seconds.
    environment: variables that are other than here; None: not set.
    tell: is told from time to time what the command has said last.
  """
  merged = {**os.environ, **(environment or {})}
  there = {k: v for k, v in merged.items() if v is not None}
  out, err = logs / f'{name}.out', logs / f'{name}.err'
  began = told = time.monotonic()
  with out.open('wb') as stdout, err.open('wb') as stderr:
    process = subprocess.Popen(
      (sys.executable, *words),
      stdin=subprocess.DEVNULL,
      stdout=stdout,
      stderr=stderr,
      env=there,
      start_new_session=True,
    )
    try:
      while process.poll() is None:
        now = time.monotonic()
        if now - began >= limit_s:
          break
        if now - told >= _TELL_S:
          told = now
          tell(f'{name}, {now - began:.0f} s: {_newest(out, err)}')
        time.sleep(0.05)
    finally:
      late = process.poll() is None
      if late:
        _end(process)
  return Ended(
    name=name,
    code=None if late else process.returncode,
    seconds=round(time.monotonic() - began, 1),
    last=_last(err) or _last(out),
  )


def _end(process: subprocess.Popen) -> None:
  for number in (signal.SIGTERM, signal.SIGKILL):
    os.killpg(process.pid, number)
    try:
      process.wait(_END_S)
      return
    except subprocess.TimeoutExpired:  # It waits for a device.
      pass


def _newest(*paths: pathlib.Path) -> str:
  """The last line of the file that was written last."""
  by_time = sorted(paths, key=lambda path: path.stat().st_mtime_ns)
  return next((line for p in reversed(by_time) if (line := _last(p))), '')


def _last(path: pathlib.Path) -> str:
  """The last line that says something."""
  with path.open('rb') as file:
    file.seek(max(0, path.stat().st_size - 4096))
    lines = file.read().decode(errors='replace').replace('\r', '\n')
  return next((x for x in reversed(lines.splitlines()) if x.strip()), '')[:200]
