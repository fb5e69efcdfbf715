# SPDX-License-Identifier: Apache-2.0
"""Keeps the ledger of a run that goes on.

All processes make the same lines, of what the steps have measured; process 0
writes them. A checkpoint holds the head of the chain and those lines that could
not be written, on a full disk say: so the ledger lacks none that it needs.
"""

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from zaya_jax.checkpoint import errors
from zaya_jax.checkpoint.reading import ownership
from zaya_jax.data.ledger import chain, digest
from zaya_jax.runtime import durable, processes

META = 'ledger'  # In the meta of checkpoints.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Terms:
  """What is the same for all rows that a book is told of.

  Attributes:
    phase: of the recipe.
    counts: (start, stop) -> how many of these rows each source gives.
  """

  phase: str
  counts: Callable[[int, int], Sequence[int]]


@dataclasses.dataclass(kw_only=True)
class _Open:
  """Steps that become one line."""

  outcome: str
  rows: list[int]
  steps: list[int]
  each: list[str]
  tokens: int = 0
  counted: int = 0


class Book:
  """The lines of a run, from where it began or goes on.

  Args:
    run_dir: the run directory.
    terms: of the rows to come.
    lines: how many lines there are.
    head: the hash of the last of them; '': there is none.
    waiting: the last of these lines, if they are not in the file.
    size: bytes of the file that holds the others.
    tell: called with a sentence for people.
  """

  def __init__(
    self,
    run_dir: str,
    terms: Terms,
    *,
    lines: int,
    head: str,
    waiting: Sequence[bytes] = (),
    size: int = 0,
    tell: Callable[[str], None],
  ):
    self._path = pathlib.Path(run_dir, chain.NAME)
    self._terms, self._tell = terms, tell
    self._lines, self._head = lines, head
    self._waiting = list(waiting)  # The same in all processes.
    self._written = 0  # How many of them process 0 has written since.
    self._open: _Open | None = None
    self._pending: tuple[int, tuple[int, int], Any, dict] | None = None
    self._size = size  # What lies behind it is nobody's.
    self._paused = False

  def add(self, content: dict[str, Any]) -> None:
    """Adds a line."""
    line = chain.encode(content, self._head)
    self._lines, self._head = self._lines + 1, chain.link(line)
    self._waiting.append(line)

  def leave_out(
    self, step: int, rows: tuple[int, int], phase: str | None = None
  ) -> None:
    """Adds rows that are not trained on, after `step`.

    Args:
      step: done before.
      rows: from which to which.
      phase: of these rows; None: that of the terms.
    """
    self._flush()
    self._close()
    line = _new('left_out', rows[0], step)
    line.rows[1] = rows[1]
    own = {} if phase is None else {'phase': phase}
    self.add({**self._line(line), **own})
    self.write()

  def push(
    self,
    step: int,
    rows: tuple[int, int],
    digest_4: Any,
    measured: dict[str, Any],
  ) -> None:
    """Takes a step; reads what the step before has measured.

    Args:
      step: its number, just dispatched; the one before is settled.
      rows: from which to which it was given.
      digest_4: of `train.digest`, on the devices.
      measured: has 'optim/bad_steps', once the step is settled.
    """
    self._flush()
    self._pending = step, rows, digest_4, measured

  def head(self, *, write: bool) -> dict[str, Any]:
    """What a checkpoint holds of the ledger; all processes call it.

    Args:
      write: ends the line and puts all on disk, before a checkpoint; else the
        checkpoint, a fast copy, holds the lines itself, and the line goes on.

    Returns:
      'lines', 'head' and, as far as they are not in the file, 'waiting'.
    """
    self._flush()
    if write:
      self._close()
      written = processes.first_says(self.write)
      self._waiting, self._written = self._waiting[written:], 0
    lines, head, waiting = self._lines, self._head, list(self._waiting)
    if self._open:
      last = chain.encode(self._line(self._open), head)
      lines, head = lines + 1, chain.link(last)
      waiting.append(last)
    return {
      'lines': lines,
      'head': head,
      'waiting': [line.decode() for line in waiting],
    }

  def write(self) -> int:
    """Puts lines on disk, in process 0; how many of those that waited.

    Raises:
      FencedError: if another generation goes on in the place of this one.
    """
    if processes.process() or self._written == len(self._waiting):
      return self._written
    rest = b''.join(self._waiting[self._written :])
    try:
      ownership.check_fence()
      self._size = _append(self._path, rest, self._size)
    except OSError as error:
      if not self._paused:
        self._tell(
          f'{chain.NAME} is paused ({errors.cause(error)}); the run goes on, '
          'and checkpoints hold its lines until it can be written'
        )
      self._paused = True
    else:
      if self._paused:
        self._tell(f'{chain.NAME} is written again')
      self._paused, self._written = False, len(self._waiting)
    return self._written

  def _flush(self) -> None:
    """Adds the step that was pushed last to the open line."""
    if self._pending is None:
      return
    (step, rows, digest_4, measured), self._pending = self._pending, None
    refused = int(measured['optim/bad_steps']) > 0
    outcome = 'refused' if refused else 'trained'
    one, two, tokens, counted = map(int, np.asarray(digest_4))
    if self._open and self._open.outcome != outcome:
      self._close()
      self.write()
    line = self._open = self._open or _new(outcome, rows[0], step - 1)
    line.each.append(digest.to_hex(one, two))
    line.rows[1], line.steps[1] = rows[1], step
    line.tokens += tokens
    line.counted += counted

  def _close(self) -> None:
    if self._open:
      line, self._open = self._open, None
      self.add(self._line(line))

  def _line(self, line: _Open) -> dict[str, Any]:
    return {
      'rows': line.rows,
      'steps': line.steps,
      'phase': self._terms.phase,
      'outcome': line.outcome,
      'sources': list(self._terms.counts(*line.rows)),
      'tokens': line.tokens,
      'counted': line.counted,
      'digest': digest.add(line.each),
      'each': ''.join(line.each),
    }


def _new(outcome: str, row: int, step: int) -> _Open:
  return _Open(outcome=outcome, rows=[row, row], steps=[step, step], each=[])


def _append(path: pathlib.Path, content: bytes, size: int) -> int:
  """Writes behind the first `size` bytes; the size then, all of it on disk.

  Raises:
    OSError: if it cannot be done; what is in the file is what was.
  """
  with path.open('ab', buffering=0) as file:
    if os.fstat(file.fileno()).st_size < size:
      raise OSError('it is shorter than it was')
    rest = memoryview(content)
    try:
      file.truncate(size)  # Of an attempt that failed, or of a zombie.
      while rest:
        rest = rest[file.write(rest) :]
      os.fsync(file.fileno())
    except OSError:
      with contextlib.suppress(OSError):
        file.truncate(size)
      raise
  if not size:
    durable.sync(path.parent)
  return size + len(content)
