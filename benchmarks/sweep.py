# SPDX-License-Identifier: Apache-2.0
"""Grids of training runs: which are missing, and several of them at once.

A run is a process of its own and a line of a .jsonl as soon as it is done, so
that whoever calls again goes on behind the last line.
"""

import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks import record
from pipelines.shards import manifest
from zaya_jax import config as config_lib

Row = dict[str, Any]

FURTHEST = 16  # Times the rate of a rule or preset, up or down, at most.
_PREPARING = threading.Lock()
_MEMORY = 0.8  # Of a GPU, for all runs on it; libraries need some beside.


class Place(NamedTuple):
  """Where a run is made.

  Attributes:
    env: of its process.
    cores: of the CPU; empty: all.
  """

  env: Mapping[str, str]
  cores: frozenset[int] = frozenset()


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Of where runs are made, and how long."""
  parser.add_argument('--minutes', type=float, default=0, help='0: no limit')
  parser.add_argument(
    '--devices', default='', help='GPUs by number, as 0,1; none: what JAX finds'
  )
  parser.add_argument(
    '--jobs', type=int, default=1, help='runs at once on each of --devices'
  )


def places(args: argparse.Namespace, jobs: int) -> list[Place]:
  """`jobs` on each of `--devices`; without them shares of the CPU's cores."""
  env = dict(os.environ)
  if jobs > 1:
    env['XLA_PYTHON_CLIENT_MEM_FRACTION'] = f'{_MEMORY / jobs:.2f}'
  if args.devices:
    return [
      Place(env | {'CUDA_VISIBLE_DEVICES': n, 'HIP_VISIBLE_DEVICES': n})
      for _ in range(jobs)
      for n in args.devices.split(',')
    ]
  cores = sorted(os.sched_getaffinity(0))
  return [Place(env, frozenset(cores[i::jobs] or cores)) for i in range(jobs)]


def prepare(flags: Sequence[str]) -> None:
  """Makes the shards that a run would make, while others wait for them.

  Args:
    flags: of a run of the trainer.

  Raises:
    SystemExit: what the command said, if it failed.
  """
  folder = pathlib.Path(config_lib.Config.parse(flags).data.dir[0])
  with _PREPARING:
    if (folder / manifest.FILE_NAME).exists():
      return
    command = [sys.executable, '-m', 'zaya_jax.main', *flags, '--mode=prepare']
    done = subprocess.run(
      command, cwd=record.ROOT, text=True,
      stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
  if done.returncode:
    raise SystemExit(f'{done.stdout}\n{command} ended: {done.returncode}')


def read(path: pathlib.Path) -> list[Row]:
  """The runs that are done; a line that a kill has cut is none."""
  rows = []
  for line in path.read_text().splitlines() if path.exists() else ():
    try:
      rows.append(json.loads(line))
    except json.JSONDecodeError:
      print(f'{path}: a line is cut short; its run is made again')
  return rows


def keep(row: Row, path: pathlib.Path) -> None:
  """Adds a run to those that are done."""
  path.parent.mkdir(parents=True, exist_ok=True)
  with path.open('a', encoding='utf-8') as file:
    file.write(json.dumps(row) + '\n')


def work(
  missing: Callable[[list[Row], list[Row]], Row | None],
  make: Callable[[Row, Place], Row | None],
  rows: list[Row],
  output: pathlib.Path,
  at: Sequence[Place],
  line: Callable[[Row], str],
) -> bool:
  """Makes runs, one at each place at a time, until none is missing.

  Args:
    missing: (what is done, what is under way) -> the next run; None: nothing
      can be begun now.
    make: a run -> its row; None: there is no time, and nothing more is begun.
    rows: what is done; what comes is added.
    output: to which it is written.
    at: the places.
    line: a row for people.

  Returns:
    Whether all that can be begun is done.

  Raises:
    SystemExit: after all others: what the runs that failed said.
  """
  shared = _Shared(missing, rows, output, line)

  def serve(place: Place) -> None:
    if place.cores:  # Of this thread, and of what it starts.
      os.sched_setaffinity(0, place.cores)
    while (run := shared.take()) is not None:
      try:
        shared.end(run, make(run, place))
      except SystemExit as error:  # Others go on; this one is not done.
        shared.fail(run, str(error))
      except BaseException:
        shared.stop()
        raise

  with concurrent.futures.ThreadPoolExecutor(len(at)) as pool:
    try:
      list(pool.map(serve, at))
    except BaseException:  # Ctrl-C, too: nothing more is begun.
      shared.stop()
      raise
  if shared.failed:
    raise SystemExit('\n'.join(shared.failed))
  return not shared.stopped


class _Shared:
  """What the workers of `work` have in common."""

  def __init__(self, missing, rows, output, line):
    self._missing, self._rows = missing, rows
    self._output, self._line = output, line
    self._changed = threading.Condition()
    self._under_way: list[Row] = []  # Those that failed stay: none is retried.
    self.failed: list[str] = []
    self.stopped = False

  def take(self) -> Row | None:
    """The next run, as soon as one can begin; None: there will be none."""
    with self._changed:
      while not self.stopped:
        if (run := self._missing(self._rows, self._under_way)) is not None:
          self._under_way.append(run)
          return run
        if len(self._under_way) == len(self.failed):
          return None
        self._changed.wait()
    return None

  def end(self, run: Row, row: Row | None) -> None:
    """A run has ended; without a row there was no time for it."""
    with self._changed:
      self._under_way.remove(run)
      if row is None:
        self.stopped = True
      else:
        self._rows.append(row)
        keep(row, self._output)
        print(self._line(row), flush=True)
      self._changed.notify_all()

  def fail(self, run: Row, said: str) -> None:
    """A run has failed; others go on."""
    with self._changed:
      self.failed.append(said)
      print(f'{run}: failed', flush=True)
      self._changed.notify_all()

  def stop(self) -> None:
    """Nothing more is begun."""
    with self._changed:
      self.stopped = True
      self._changed.notify_all()


def next_of(
  cell: Row,
  rates: Sequence[float],
  seeds: Sequence[int],
  rows: list[Row],
  under_way: Collection[Row] = (),
  *,
  wider: bool = False,
) -> Row | None:
  """The next run of a cell that is not among `rows`; None: none can begin.

  Args:
    cell: what its runs have in common.
    rates: all tried on the first seed; the best trains the others.
    seeds: at least one.
    rows: what is done, of any cell.
    under_way: runs that are being made.
    wider: whether rates, multiples of a given one, go on while the best is at
      the edge of those tried.
  """
  tuned = tuned_of(cell, seeds[0], rows)
  busy = [run for run in under_way if cell.items() <= run.items()]
  new = lambda lr, seed: {**cell, 'lr': lr, 'seed': seed}
  for rate in rates:
    if rate not in tuned and new(rate, seeds[0]) not in busy:
      return new(rate, seeds[0])
  if any(run['seed'] == seeds[0] for run in busy):
    return None
  if wider and (further := beyond(tuned)) is not None:
    return new(further, seeds[0])
  best = min(tuned if wider else rates, key=lambda rate: tuned[rate])
  have = {r['seed'] for r in of(cell, rows) if r['lr'] == best}
  left = [seed for seed in seeds if seed not in have]
  return next((run for s in left if (run := new(best, s)) not in busy), None)


def beyond(tuned: Mapping[float, float]) -> float | None:
  """The rate to try next, where the best is at the edge; else None.

  Args:
    tuned: by rate, a multiple of a given one, the loss.
  """
  order = sorted(tuned)
  best = order.index(min(order, key=lambda rate: tuned[rate]))
  for edge, times in ((0, 0.5), (len(order) - 1, 2.0)):
    further = order[edge] * times
    if best == edge and 1 / FURTHEST <= further <= FURTHEST:
      return further
  return None


def tuned_of(cell: Row, seed: int, rows: list[Row]) -> dict[float, float]:
  """By rate, what it came to on a seed; infinity: it diverged."""
  mine = [row for row in of(cell, rows) if row['seed'] == seed]
  return {r['lr']: math.inf if r['bpb'] is None else r['bpb'] for r in mine}


def of(cell: Row, rows: list[Row]) -> list[Row]:
  """The rows of a cell."""
  return [r for r in rows if all(r[key] == cell[key] for key in cell)]
