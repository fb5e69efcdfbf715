# SPDX-License-Identifier: Apache-2.0
"""Lines and a progress bar on a terminal; the same lines in a pipe and a file.

Whether there is a bar, and colour, is decided here: on a terminal only.
"""

import contextlib
import math
import os
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO

import rich.console
import rich.progress
import rich.text

from zaya_jax.metrics import text
from zaya_jax.runtime import durable

_WELL_S = 10.0


class Console:
  """Writes lines to `stream` and to the file at `path`."""

  def __init__(self, path: pathlib.Path, stream: TextIO | None = None):
    self._stream = stream or sys.stdout
    self._path, self._log = path, durable.Lines(path)
    self._paused: dict[str, float] = {}  # By name, when it failed last.
    self._terminal = (
      rich.console.Console(file=self._stream, highlight=False)
      if self._stream.isatty()
      else None
    )
    self._bar: rich.progress.Progress | None = None

  def __enter__(self) -> 'Console':
    return self

  def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
    self.end_bar()
    self._log.close()

  @contextlib.contextmanager
  def trying(self, name: str) -> Iterator[None]:
    """Inside, the file `name` may fail, on a full disk say.

    It is told when it fails, and when it has not failed for a while: a short
    line may fit where the next one does not.
    """
    try:
      yield
    except OSError as error:
      known = name in self._paused
      self._paused[name] = time.monotonic()
      if not known:
        self.line(
          f'{name} is paused ({error.strerror or error}); the run goes on, and '
          'what is not written is lost'
        )
    else:
      if time.monotonic() > self._paused.get(name, math.inf) + _WELL_S:
        del self._paused[name]
        self.line(f'{name} is written again')

  def line(self, words: str, *, bold: str = '', style: str = '') -> None:
    """Writes `bold` and then `words`; on a terminal above the bar."""
    with self.trying(self._path.name):
      self._path.parent.mkdir(parents=True, exist_ok=True)
      self._log.write(f'{bold}{words}\n'.encode('utf-8', 'replace'))
    if not self._terminal:
      # A pipe may not know every letter that a model writes.
      known = self._stream.encoding or 'utf-8'
      plain = f'{bold}{words}'.encode(known, 'replace').decode(known)
      self._print(plain)
      return
    shown = rich.text.Text.assemble((bold, 'bold'), (words, style))
    self._terminal.print(shown, soft_wrap=True)

  def sample(self, title: str, prompt: str, continuation: str) -> None:
    """Writes generated text behind a margin, the prompt in bold."""
    self.line(title, style='magenta')
    *above, last = text.printable(prompt).split('\n')
    first, *below = text.printable(continuation).rstrip('\n').split('\n')
    for line in above:
      self.line('', bold=f'  | {line}')
    self.line(first, bold=f'  | {last}')
    for line in below:
      self.line(f'  | {line}')

  def advance(self, step: int, total: int, *numbers: str) -> None:
    """Moves the bar to `step` of `total`; `numbers` stand behind it."""
    if not self._terminal:
      return
    if not self._bar:
      self._bar = _make_bar(self._terminal)
      self._bar.add_task('training', total=total, numbers='')
      self._bar.start()
    task = self._bar.task_ids[0]
    self._bar.update(task, completed=step, numbers='  '.join(numbers))

  def status(self, words: str) -> None:
    """Says in front of the bar what is going on."""
    if self._bar:
      task = self._bar.task_ids[0]
      self._bar.update(task, description=words, refresh=True)

  def end_bar(self) -> None:
    """Takes the bar away; a later `advance` starts a new one."""
    if self._bar:
      self._bar.stop()
      self._bar = None

  def _print(self, words: str) -> None:
    try:
      print(words, file=self._stream, flush=True)
    except OSError as error:
      # Nobody reads the pipe any more, or the disk of the file is full. The
      # run goes on, and log.txt has it all: what waits here goes nowhere.
      number, nowhere = self._stream.fileno(), os.open(os.devnull, os.O_WRONLY)
      kept = os.dup(number)
      os.dup2(nowhere, number)
      self._stream.flush()
      if not isinstance(error, BrokenPipeError):
        os.dup2(kept, number)  # Later lines may fit.
      os.close(nowhere)
      os.close(kept)


def _make_bar(terminal: rich.console.Console) -> rich.progress.Progress:
  return rich.progress.Progress(
    rich.progress.TextColumn('{task.description:<10}'),
    rich.progress.BarColumn(bar_width=24),
    rich.progress.MofNCompleteColumn(),
    rich.progress.TextColumn('{task.fields[numbers]}'),
    console=terminal,
    transient=True,
    refresh_per_second=4,
  )
