# SPDX-License-Identifier: Apache-2.0
"""--mode=supervise --drill=NAMES: faults in real runs, and what they cost.

Each drill is one supervised run of a tiny model on this machine, compared with
an undisturbed run. It prints one JSON object.
"""

import contextlib
import json
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.aegis.drills import table, trial

_REFERENCE = table.Drill(generations=1)


def main(config: config_lib.Config) -> int:
  """Runs the drills of --drill; prints the result of each.

  Returns:
    0 if all ended as they should, else 1.

  Raises:
    UsageError: if a name is unknown.
  """
  failed = 0
  for result in run(config.drill, config.run_dir):
    print(json.dumps(result), flush=True)
    failed += not result['passed']
  return min(failed, 1)


def run(
  names: tuple[str, ...], folder: str = '', trials: int = 1
) -> Iterator[dict[str, Any]]:
  """Yields the result of each drill.

  Args:
    names: of drills, or 'all'.
    folder: for the runs, which are left there; '': one that is removed.
    trials: how often each is done.

  Raises:
    UsageError: if a name is unknown.
  """
  names = tuple(table.DRILLS) if names == ('all',) else names
  for name in names:
    if name not in table.DRILLS:
      raise config_lib.UsageError(
        f'--drill={name} is not one of {", ".join(table.DRILLS)}, all.'
      )
  root = pathlib.Path(folder or tempfile.mkdtemp(prefix='zaya_jax_drill_'))
  try:
    root.mkdir(parents=True, exist_ok=True)
    _say('an undisturbed run, to compare with')
    # The first one compiles; of XLA's programs for a CPU, those that are read
    # from the cache round differently.
    for label in ('compiling', 'undisturbed'):
      with contextlib.closing(trial.Trial(root, label, _REFERENCE)) as done:
        done.start()
        done.await_end()
    expected = done.final()
    for name in names:
      for number in range(trials):
        drill = table.DRILLS[name]
        _say(f'{name}: {drill.about}')
        label = f'{name}_{number}' if trials > 1 else name
        with contextlib.closing(trial.Trial(root, label, drill)) as done:
          yield _one(done, name, expected)
  finally:
    if not folder:
      shutil.rmtree(root, ignore_errors=True)


def _one(done: trial.Trial, name: str, expected: trial.Final) -> dict[str, Any]:
  """Runs a drill and compares."""
  drill = done.drill
  done.start()
  drill.disturb(done)
  code = done.await_end()
  wrong = [] if code == drill.code else [f'exit code {code}']
  if drill.then_resume:
    done.start(faults=False)
    code = done.await_end()
    wrong += [] if code == 0 else [f'exit code {code} when repeated']
  wrong += drill.check(done)
  if left := done.processes():
    wrong.append(f'processes {left} are left')
  if done.generations() != drill.generations:
    wrong.append(f'{done.generations()} generations')
  result = {'fault': name, **done.times()}
  if drill.finishes:
    final = done.final()
    result |= {
      'samples_lost': max(0, expected.data_index - final.data_index),
      'samples_repeated': max(0, final.data_index - expected.data_index),
      'bit_equal': final.hashes == expected.hashes
      and final.losses == expected.losses,
    }
    if drill.equal and not (
      result['bit_equal'] and final.data_index == expected.data_index
    ):
      wrong.append('another result than that of the undisturbed run')
  result |= {'exit_code': code, 'generations': done.generations()}
  return result | {'passed': not wrong, 'why': '; '.join(wrong)}


def _say(words: str) -> None:
  print(f'drill: {words}', file=sys.stderr, flush=True)
