# SPDX-License-Identifier: Apache-2.0
"""The page of one run, or of several beside each other."""

import dataclasses
import json
import logging
import os
import pathlib
import shutil
import time
from collections.abc import Sequence
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.report import facts, figures, page, records

NAME = 'report.html'


def make(runs: Sequence[records.Run]) -> page.Page:
  """The page of some runs; of one run it says more."""
  one = runs[0] if len(runs) == 1 else None
  lacks = [
    line if one else f'{run.name}: {line}' for run in runs for line in run.lacks
  ]
  lacks += facts.cautions(runs)
  return page.Page(
    title=one.name if one else f'{len(runs)} runs compared',
    status=facts.status(one) if one else ', '.join(run.name for run in runs),
    columns=[run.name for run in runs],
    summary=facts.table(runs),
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
  """Reads runs; several are named by the part of their paths that differs."""
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

  Writing takes at most a hundredth of the time of the run, and leaves room on
  the disk for checkpoints. What goes wrong with it is logged, once until it is
  well again, and changes nothing else.
  """

  _LEAST_S, _SHARE = 30.0, 0.01
  _ROOM = 2**27  # Bytes that stay free; the page and plotly are 6 MB.

  def __init__(self, config: config_lib.Config, *, wanted: bool):
    self._folder = config.run_dir
    self._wanted = wanted and config.log.report
    self._paused = False
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
      if (free := shutil.disk_usage(self._folder).free) < self._ROOM:
        raise OSError(f'only {free / 1e6:.0f} MB are free on its disk')
      write([self._folder], pathlib.Path(self._folder) / NAME, running=running)
    except Exception as error:  # Whatever it is, the run goes on.
      if not self._paused:
        why = getattr(error, 'strerror', None) or error
        logging.warning('%s is paused: %s', NAME, why)
      self._paused = True
    else:
      if self._paused:
        logging.warning('%s is written again', NAME)
      self._paused = False
    now = time.monotonic()
    self._due = now + max(self._LEAST_S, (now - start) / self._SHARE)


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
