# SPDX-License-Identifier: Apache-2.0
"""The acts of a rehearsal: supervised runs of parts of a miniature.

1. the first phase in one process (two, if its rows are divided); 2. all but the
last in two; 3. the last in four, until it is killed behind a save; 4. the rest
in two. A longer recipe goes on where a shorter one has ended, so that the
number of processes changes at a boundary and within a phase. One step is
refused. Played twice: the reference has nothing else; the other one is also
killed within each phase, and before, during and after the save that ends it.
"""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

from zaya_jax.aegis.drills import trial
from zaya_jax.aegis.rehearsal import miniature
from zaya_jax.config import exit_codes
from zaya_jax.runtime import faults, fence

_LIMIT_S = 900.0  # Of an act; far more than any takes.
_NODES = 'abcd'


@dataclasses.dataclass(frozen=True)
class Act:
  """A part of a run.

  Attributes:
    phases: how many of the recipe.
    processes: that train.
    kills: (phase of the loop, step), each in a generation of its own.
    refused: a step that is given NaN; 0: none.
    stops: a step in which all ends, supervisor and all; 0: it ends by itself.
  """

  phases: int
  processes: int
  kills: tuple[tuple[str, int], ...] = ()
  refused: int = 0
  stops: int = 0


def acts(plan: miniature.Plan, *, disturbed: bool) -> list[Act]:
  """What happens, act by act."""
  count, ends = len(plan.phases), plan.ends
  begins = [0, *ends[:-1]]
  within = [begin + 2 for begin in begins]
  every = miniature.SAVE_EVERY
  # Behind the first save of the last phase.
  stops, refused = begins[-1] + every + 2, begins[-1] + every + 1
  around = {
    end: [('step', end), ('save', end), ('step', end + 1)] for end in ends
  }
  first: list[tuple[str, int]] = []
  second: list[tuple[str, int]] = []
  if count > 1:
    first = [('step', within[0]), *around[ends[0]][:2]]
  for i in range(1, count - 1):
    second += [around[ends[i - 1]][2], ('step', within[i] + 2)]
    second += around[ends[i]][:2]
  third = [around[begins[-1]][2]] if count > 1 else [('step', within[0])]
  fourth = [('step', stops), *around[ends[-1]][:2]]
  found = [
    Act(1, plan.least, tuple(first)) if count > 1 else None,
    Act(count - 1, 2, tuple(second)) if count > 2 else None,
    Act(count, 4, tuple(third), stops=stops),
    Act(count, 2, tuple(fourth), refused=refused),
  ]
  return [
    act if disturbed else dataclasses.replace(act, kills=())
    for act in found
    if act
  ]


class Play:
  """One run through its acts.

  Args:
    root: with the miniature recipes; all runs share their shards.
    name: of the run.
  """

  def __init__(self, root: pathlib.Path, name: str):
    self._root, self.run_dir = root, root / name
    self._log = root / f'{name}.log'
    self.kills = 0

  def act(self, act: Act) -> str:
    """Plays an act; what went wrong, or ''."""
    before = fence.newest(str(self.run_dir)) if self.run_dir.exists() else 0
    rank = act.processes - 1
    wanted = [
      f'kill@{phase}:{step}:{number % act.processes}:{before + number + 1}'
      for number, (phase, step) in enumerate(act.kills)
    ]
    wanted += [
      f'nan@data:{act.refused}:{i}:*' for i in range(act.processes)
    ] * (act.refused > 0)
    if act.stops:
      wanted.append(f'freeze@step:{act.stops}:{rank}:*')
    started = self._start(act, ','.join(wanted))
    if act.stops:
      self._await_freeze(started)
      started.kill()
    code = started.wait(_LIMIT_S)
    self.kills += len(act.kills)
    expected = -signal.SIGKILL if act.stops else exit_codes.DONE
    if code != expected:
      return f'exit code {code} instead of {expected}; see {self._log}'
    generations = fence.newest(str(self.run_dir)) - before
    if generations != len(act.kills) + 1:
      return f'{generations} generations, and {len(act.kills)} kills'
    return ''

  def command(self, *args: str) -> list[dict[str, Any]]:
    """Runs a mode that prints JSON lines; [] if it fails."""
    done = subprocess.run(
      [sys.executable, '-m', 'zaya_jax.main', *args],
      env=environment(),
      stdout=subprocess.PIPE,
      stderr=self._log.open('a'),
      check=False,
    )
    lines = done.stdout.decode().splitlines()
    rows = [json.loads(line) for line in lines if line.startswith('{')]
    return rows or [{'code': done.returncode}]

  def rows(self, name: str) -> list[dict[str, Any]]:
    """The JSON lines of a file of the run."""
    path = self.run_dir / name
    if not path.exists():
      return []
    return [json.loads(line) for line in path.read_text().splitlines()]

  def text(self, name: str) -> str:
    """A file of the run."""
    return (self.run_dir / name).read_text()

  def _start(self, act: Act, wanted: str) -> subprocess.Popen:
    flags = [
      *miniature.FLAGS,
      '--mode=supervise',
      f'--recipe={self._root}/recipe_{act.phases}.toml',
      f'--run_dir={self.run_dir}',
      f'--aegis.nodes={",".join(_NODES[: act.processes])}',
      '--aegis.restarts_per_hour=99',
      '--aegis.no_progress=9',
    ]
    with self._log.open('a') as file:
      return subprocess.Popen(
        [sys.executable, '-m', 'zaya_jax.main', *flags],
        env=environment() | {faults.VARIABLE: wanted},
        stdout=file,
        stderr=file,
        stdin=subprocess.DEVNULL,
      )

  def _await_freeze(self, started: subprocess.Popen) -> None:
    until = time.monotonic() + _LIMIT_S
    while started.poll() is None and time.monotonic() < until:
      if any(r['fault'] == 'freeze' for r in self.rows('aegis/faults.jsonl')):
        return
      time.sleep(0.05)


def environment() -> dict[str, str]:
  """Of all processes: programs that are compiled alike, and not kept.

  XLA's programs for a CPU that come from a cache round differently.
  """
  return {
    **os.environ,
    'JAX_PLATFORMS': 'cpu',
    'JAX_ENABLE_COMPILATION_CACHE': 'false',
    'XLA_FLAGS': ' '.join(trial.fast_compile()),
  }
