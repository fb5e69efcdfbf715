# SPDX-License-Identifier: Apache-2.0
"""The page of one run, or of several beside each other."""

import dataclasses
import json
import logging
import os
import pathlib
import time
from collections.abc import Sequence
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.metrics import text
from zaya_jax.report import figures, page, records

NAME = 'report.html'


def make(runs: Sequence[records.Run]) -> page.Page:
  """The page of some runs; of one run it says more."""
  one = runs[0] if len(runs) == 1 else None
  lacks = [
    line if one else f'{run.name}: {line}' for run in runs for line in run.lacks
  ]
  return page.Page(
    title=one.name if one else f'{len(runs)} runs compared',
    status=_status(one) if one else ', '.join(run.name for run in runs),
    columns=[run.name for run in runs],
    summary=_summary(runs),
    figures=figures.of_runs(runs),
    lacks=lacks,
    details=_details(one) if one else _differences(runs),
    live=any(run.running for run in runs),
    footer=f'Written {records.when(time.time())} by zaya_jax. Where a curve '
    'has many points, its line is the mean of a stretch and pale its extremes.',
  )


def read(
  folders: Sequence[str], running: bool | None = None
) -> list[records.Run]:
  """Reads runs; several are called by what is different in their paths."""
  runs = [records.read(folder, running=running) for folder in folders]
  if len(runs) == 1:
    return runs
  paths = [os.path.abspath(folder) for folder in folders]
  above = os.path.commonpath([os.path.dirname(path) for path in paths])
  return [
    dataclasses.replace(run, name=os.path.relpath(path, above))
    for run, path in zip(runs, paths, strict=True)
  ]


def write(
  folders: Sequence[str], path: pathlib.Path, *, running: bool | None = None
) -> None:
  """Reads runs and writes their page.

  Args:
    folders: of the runs.
    path: of the page.
    running: whether they are going on; None: as their locks tell.

  Raises:
    UsageError: if there is no such folder.
    OSError: if the page cannot be written.
  """
  page.write(make(read(folders, running)), path)


class Live:
  """Keeps the page of a run that is going on; use it in a `with` block.

  Writing takes at most a hundredth of the time of the run, and what goes wrong
  with it is said once and changes nothing else.
  """

  _LEAST_S, _SHARE = 30.0, 0.01

  def __init__(self, config: config_lib.Config, *, wanted: bool):
    self._folder = config.run_dir
    self._wanted = wanted and config.log.report
    self._due = time.monotonic() + self._LEAST_S

  def __enter__(self) -> 'Live':
    return self

  def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
    if error is None or isinstance(error, Exception):
      self.write(running=False)

  def is_due(self) -> bool:
    """Whether it is time to write the page."""
    return self._wanted and time.monotonic() >= self._due

  def write(self, *, running: bool = True) -> None:
    """Writes the page."""
    if not self._wanted:
      return
    start = time.monotonic()
    try:
      write([self._folder], pathlib.Path(self._folder) / NAME, running=running)
    except Exception as error:  # Whatever it is, the run goes on.
      self._wanted = False
      logging.warning('%s is not written any more: %r', NAME, error)
    now = time.monotonic()
    self._due = now + max(self._LEAST_S, (now - start) / self._SHARE)


def _status(run: records.Run) -> str:
  total = run.num_steps
  place = f'step {run.step:,}' + (f' of {total:,}' if total else '')
  if not run.rows:
    state = 'started, no metrics yet' if run.running else 'no metrics'
  elif total and run.step >= total:
    state = f'done: {place}'
  else:
    state = f'{"running" if run.running else "stopped"}: {place}'
  if run.changed_at:
    state += f'; metrics of {records.when(run.changed_at)}'
  return state


def _summary(runs: Sequence[records.Run]) -> list[list[str]]:
  """Rows of what a person asks first; those that no run can answer go."""
  names = ('status', *_FACTS)
  columns = [
    [_status(run), *(fact(run) for fact in _FACTS.values())] for run in runs
  ]
  rows = [list(row) for row in zip(names, *columns, strict=True)]
  return [row for row in rows[len(runs) == 1 :] if any(row[1:])]


def _newest(run: records.Run, key: str, form: str) -> str:
  for row in reversed(run.rows):
    if (value := records.number(row.get(key))) is not None:
      return format(value, form)
  return ''


def _best(run: records.Run) -> str:
  scored = [
    (value, row['step'])
    for row in run.rows
    if (value := records.number(row.get('val/bpb'))) is not None
  ]
  if not scored:
    return ''
  zlib = _newest(run, 'val/zlib_bpb', '.3f')
  beside = f' (zlib -9: {zlib})' if zlib else ''
  return '{:.3f} at step {:,.0f}'.format(*min(scored)) + beside


def _tokens(run: records.Run) -> str:
  tokens = _newest(run, 'tokens', '.0f')
  return tokens and text.short(float(tokens))


def _rate(run: records.Run) -> str:
  rate = _newest(run, 'throughput/tokens_per_second', '.6g')
  mfu = _newest(run, 'throughput/mfu', '.1%')
  return rate and f'{text.short(float(rate))} per second' + (
    f', MFU {mfu}' if mfu else ''
  )


def _devices(run: records.Run) -> str:
  found = run.facts.get('devices')
  return (
    f'{found.get("count")} x {found.get("kind")}'
    if isinstance(found, dict)
    else ''
  )


def _model(run: records.Run) -> str:
  model = run.config.get('model')
  if not isinstance(model, dict):
    return ''
  return (
    f'{model.get("num_layers")} layers, width {model.get("d_model")}, '
    f'{model.get("num_experts")} experts of width {model.get("d_expert")}'
  )


_FACTS = {
  'held-out bits per byte': _best,
  'training loss': lambda run: _newest(run, 'train/loss', '.4f'),
  'tokens trained on': _tokens,
  'throughput': _rate,
  'model': _model,
  'devices': _devices,
  'steps skipped': lambda run: _newest(run, 'optim/skipped', '.0f'),
}


def _details(run: records.Run) -> list[tuple[str, str]]:
  found = [('Settings (config.flags)', run.flags)]
  for name in ('versions', 'devices'):
    if name in run.facts:
      shown = json.dumps(run.facts[name], indent=2, ensure_ascii=False)
      found.append((name.capitalize(), shown))
  return [(title, body) for title, body in found if body]


def _differences(runs: Sequence[records.Run]) -> list[tuple[str, str]]:
  """The settings that are not the same in all runs."""
  settings = [
    dict(
      line.removeprefix('--').partition('=')[::2]
      for line in run.flags.splitlines()
      if line.startswith('--')
    )
    for run in runs
  ]
  lines = []
  for name in dict.fromkeys(name for found in settings for name in found):
    values = [found.get(name, '(not set)') for found in settings]
    if len(set(values)) > 1:
      lines.append(f'--{name}')
      lines += [f'  {r.name}: {v}' for r, v in zip(runs, values, strict=True)]
  return [('Settings that differ', '\n'.join(lines) or 'None.')]
