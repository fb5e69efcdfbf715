# SPDX-License-Identifier: Apache-2.0
"""Rows of results on stdout: JSON lines, and columns on a terminal."""

import json
import sys
from collections.abc import Collection, Mapping
from typing import Any

_LONG = 40  # Letters of a text that gets a line of its own.


def is_json(choice: str) -> bool:
  """Whether results are printed for programs: what --json, or stdout, says."""
  return choice == 'true' or choice == 'auto' and not sys.stdout.isatty()


class Rows:
  """Prints rows one by one, as they come.

  Args:
    json: of --json.
    leave_out: keys that only JSON has, for a narrow terminal.
  """

  def __init__(self, json: str = 'auto', leave_out: Collection[str] = ()):
    self._is_json, self._widths = is_json(json), {}
    self._leave_out = leave_out

  def print(self, row: Mapping[str, Any]) -> None:
    """Prints one row, whole in JSON and rounded on a terminal."""
    if self._is_json:
      print(json.dumps(row), flush=True)
      return
    cells = {k: _cell(k, v) for k, v in row.items() if k not in self._leave_out}
    texts = {k: v for k, v in cells.items() if len(v) > _LONG}
    cells = {k: v for k, v in cells.items() if k not in texts}
    if not cells.keys() & self._widths.keys():
      self._widths = {}
    if not cells.keys() <= self._widths.keys():
      for key, cell in cells.items():
        self._widths.setdefault(key, max(len(key), len(cell)))
      self._print_line({key: key for key in self._widths})
    self._print_line(cells)
    for key, text in texts.items():
      print(f'  {key}: {text}', flush=True)

  def _print_line(self, cells: Mapping[str, str]) -> None:
    line = (cells.get(key, '').rjust(n) for key, n in self._widths.items())
    print('  '.join(line).rstrip(), flush=True)


def _cell(key: str, value: Any) -> str:
  """A value as people read it."""
  if value is None:
    return '-'
  if isinstance(value, bool):
    return 'yes' if value else 'no'
  if key == 'bytes':
    return f'{value / 1e6:,.1f} MB' if value >= 1e5 else f'{value:,}'
  if key == 'time':  # To the minute; it is UTC.
    return f'{value[:16]}Z'
  if isinstance(value, float):
    return f'{value:.4g}'
  if isinstance(value, int):
    return f'{value:,}'
  if key.endswith('_hash'):
    return value[:12]
  return str(value)
