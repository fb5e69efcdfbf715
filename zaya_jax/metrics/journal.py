# SPDX-License-Identifier: Apache-2.0
"""metrics.jsonl: one JSON object a line, each line written once and whole.

A run that resumes at step s computes the steps after s again, so their old
lines go. A line torn by a killed process goes too.
"""

import contextlib
import json
import math
import pathlib
from typing import Any

from zaya_jax.runtime import durable


class Journal:
  """Appends rows to a file that outlives the process.

  Attributes:
    history: the rows that were kept, oldest first.
  """

  def __init__(self, path: pathlib.Path, *, last_step: int):
    """Opens the file and drops what lies after `last_step`."""
    old = path.read_bytes() if path.exists() else b''
    self.history = [
      row
      for row in map(_parse, old.splitlines())
      if row is not None and row['step'] <= last_step
    ]
    kept = b''.join(map(_encode, self.history))
    self._path, self._kept = path, kept if kept != old else None
    self._lines = durable.Lines(path)
    self.close = self._lines.close
    with contextlib.suppress(OSError):  # `write` tries again.
      self._drop()

  def write(self, row: dict[str, Any]) -> None:
    """Appends one row and hands it to the operating system.

    Raises:
      OSError: if it cannot be written; nothing of it is in the file.
    """
    self._drop()
    self._lines.write(_encode(row))

  def _drop(self) -> None:
    """Takes the rows away that do not stay, until it has succeeded once."""
    if self._kept is not None:
      durable.replace(self._path, self._kept)
      self._kept = None


def _parse(line: bytes) -> dict[str, Any] | None:
  """The row of a line; None for a line that is not whole."""
  try:
    row = json.loads(line)
  except ValueError:
    return None
  return row if isinstance(row, dict) and 'step' in row else None


def _encode(row: dict[str, Any]) -> bytes:
  """One line; JSON has no NaN and no Inf, so these become null."""
  finite = {
    key: None if isinstance(x, float) and not math.isfinite(x) else x
    for key, x in row.items()
  }
  return (json.dumps(finite, allow_nan=False) + '\n').encode()
