# SPDX-License-Identifier: Apache-2.0
"""What a run directory holds, read with suspicion.

The run may be going on, half written, killed, of an older version or empty: all
that can be read is, and `lacks` says what cannot.
"""

import dataclasses
import json
import math
import os
import pathlib
import re
import socket
import time
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.report import data, kernels

_MAX_ROWS = 50_000  # Of a longer file every n-th line is read.
_MAX_TEXTS = 50  # Samples, and letters of each.
_MAX_LETTERS = 20_000
# How `metrics.summary` closes a run that had all of its steps.
_DONE = re.compile(r'^done: (\d+) of \1 steps', re.MULTILINE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
  """One run, as far as it can be read.

  Attributes:
    name: of its folder, as the user gave it.
    rows: of metrics.jsonl by step: numbers, and None for NaN.
    experts: of experts.jsonl by step.
    incidents: of incidents.jsonl, as they were written.
    data: of ledger.jsonl, a row for each phase and source.
    samples: (step, text), oldest first.
    kernels: of traced steps, as `kernels.summary` has it.
    facts: of config.json.
    flags: text of config.flags.
    ends: the steps at which log.txt says that the run was done.
    lacks: what is missing or unreadable, a sentence each.
    running: whether its process lives; on another machine it seems not to.
    changed_at: seconds since the epoch when metrics.jsonl last grew.
  """

  name: str
  rows: list[dict[str, Any]]
  experts: list[dict[str, Any]]
  incidents: list[dict[str, Any]]
  data: list[dict[str, Any]]
  samples: list[tuple[int, str]]
  kernels: list[dict[str, Any]]
  facts: dict[str, Any]
  flags: str
  ends: frozenset[int]
  lacks: list[str]
  running: bool
  changed_at: float | None

  @property
  def step(self) -> int:
    """The last step that metrics.jsonl knows."""
    return int(self.rows[-1]['step']) if self.rows else 0

  @property
  def num_steps(self) -> int | None:
    """Steps that the run is to have; None: its config.json is lost."""
    total = self.config.get('num_steps')
    return total if isinstance(total, int) else None

  @property
  def config(self) -> dict[str, Any]:
    """The settings in config.json, by section."""
    found = self.facts.get('config')
    return found if isinstance(found, dict) else {}

  def section(self, name: str) -> dict[str, Any]:
    """A section of the settings."""
    found = self.config.get(name)
    return found if isinstance(found, dict) else {}

  def numbers(self, key: str) -> list[tuple[dict[str, Any], float]]:
    """The rows that have a finite number under a key, each with it."""
    found = ((row, number(row.get(key))) for row in self.rows)
    return [(row, value) for row, value in found if value is not None]


def read(folder: str, *, running: bool | None = None) -> Run:
  """Reads a run directory.

  Args:
    folder: of the run.
    running: whether its process is alive; None: as its lock tells.

  Raises:
    UsageError: if there is no such folder.
  """
  path = pathlib.Path(folder)
  if not path.is_dir():
    raise config_lib.UsageError(
      f'There is no folder {folder}; name a run directory with --source.'
    )
  lacks: list[str] = []
  metrics = path / 'metrics.jsonl'
  return Run(
    name=folder,
    rows=_by_step(_lines(metrics, lacks)),
    experts=_by_step(_lines(path / 'experts.jsonl', lacks), 'share'),
    incidents=_lines(path / 'incidents.jsonl', lacks, wanted=False),
    data=data.totals(folder),
    samples=_samples(path / 'samples', lacks),
    kernels=_kernels(path, lacks),
    facts=_facts(path / 'config.json', lacks),
    flags=_text(path / 'config.flags', lacks),
    ends=frozenset(map(int, _DONE.findall(_text(path / 'log.txt', [])))),
    lacks=lacks,
    running=_is_held(path / '.lock') if running is None else running,
    changed_at=metrics.stat().st_mtime if metrics.exists() else None,
  )


def number(value: Any) -> float | None:
  """A finite number; None for anything else, true and false included."""
  if isinstance(value, bool) or not isinstance(value, int | float):
    return None
  return value if abs(value) < 1e300 and math.isfinite(value) else None


def began(row: dict[str, Any]) -> float | None:
  """When the process that wrote a row of metrics.jsonl was started."""
  now, elapsed = (number(row.get(f'time/{x}_s')) for x in ('unix', 'elapsed'))
  return None if now is None or elapsed is None else now - elapsed


def when(seconds: float) -> str:
  """A time since the epoch, for people."""
  try:
    return time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime(seconds))
  except (OverflowError, OSError, ValueError):
    return str(seconds)


def _kernels(run: pathlib.Path, lacks: list[str]) -> list[dict[str, Any]]:
  """Of traced steps."""
  try:
    return kernels.read(str(run))
  except (OSError, ValueError) as error:
    lacks.append(f'A summary of traced steps cannot be read: {error}.')
    return []


def _read(path: pathlib.Path, lacks: list[str], wanted=True) -> bytes | None:
  try:
    return path.read_bytes()
  except FileNotFoundError:
    lacks += [f'There is no {path.name}.'] if wanted else []
  except OSError as error:
    lacks.append(f'{path.name} cannot be read: {error.strerror}.')
  return None


def _text(path: pathlib.Path, lacks: list[str]) -> str:
  return (_read(path, lacks) or b'').decode('utf-8', 'replace')


def _lines(
  path: pathlib.Path, lacks: list[str], wanted: bool = True
) -> list[dict[str, Any]]:
  """The objects of a file of JSON lines."""
  content = _read(path, lacks, wanted)
  if wanted and content == b'':
    lacks.append(f'{path.name} is empty.')
  lines = (content or b'').splitlines(keepends=True)
  stride = -(-len(lines) // _MAX_ROWS) or 1
  if stride > 1:
    lacks.append(
      f'{path.name} has {len(lines):,} lines; the page shows every {stride}th, '
      'and all evaluations.'
    )
  rows, bad = [], 0
  for i, line in enumerate(lines):
    if i % stride and b'"val/' not in line and i + 1 < len(lines):
      continue
    row = _parse(line)
    if isinstance(row, dict):
      rows.append(row)
    elif i + 1 == len(lines) and not line.endswith(b'\n'):
      lacks.append(f'The last line of {path.name} is half written.')
    elif line.strip():
      bad += 1
  if bad:
    lacks.append(f'{bad} lines of {path.name} are not JSON objects: left out.')
  return rows


def _parse(text: bytes | str) -> Any:
  """What JSON says; None if it is none."""
  try:
    return json.loads(text)
  except (ValueError, RecursionError):
    return None


def _by_step(
  rows: list[dict[str, Any]], needs: str | None = None
) -> list[dict[str, Any]]:
  """Those with a step, ascending; of a repeated step all, in their order."""
  kept = [
    row
    for row in rows
    if number(row.get('step')) is not None and (not needs or needs in row)
  ]
  return sorted(kept, key=lambda row: row['step'])


def _samples(folder: pathlib.Path, lacks: list[str]) -> list[tuple[int, str]]:
  found = []
  for path in folder.glob('step_*.txt'):
    step = path.stem.removeprefix('step_')
    if step.isdecimal():
      found.append((int(step), path))
  if not found:
    lacks.append('There are no samples.')
  found = sorted(found)[-_MAX_TEXTS:]
  return [(step, _text(path, lacks)[:_MAX_LETTERS]) for step, path in found]


def _facts(path: pathlib.Path, lacks: list[str]) -> dict[str, Any]:
  text = _text(path, lacks)
  facts = _parse(text) if text else {}
  if not isinstance(facts, dict):
    lacks.append(f'{path.name} is no JSON object.')
    return {}
  return facts


def _is_held(lock: pathlib.Path) -> bool:
  """Whether the process that `checkpoint.lock` names lives, on this machine.

  Taking the lock to see would refuse a run that starts at that moment.
  """
  try:
    host, word, pid = lock.read_text(errors='replace').split()
    if (host, word) != (socket.gethostname(), 'pid'):
      return False
    os.kill(int(pid), 0)
  except PermissionError:
    return True  # It lives, and belongs to somebody else.
  except (OSError, OverflowError, ValueError):
    return False
  return True
