# SPDX-License-Identifier: Apache-2.0
"""--mode=rehearse: everything that happens to a long run, in minutes."""

import pathlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.aegis.rehearsal import judge, miniature, play
from zaya_jax.checkpoint import errors
from zaya_jax.config import exit_codes
from zaya_jax.config.recipe import segments
from zaya_jax.runtime import rows


def main(config: config_lib.Config) -> int:
  """Rehearses --recipe; prints a row for each act and each check.

  Returns:
    The exit code: 1 if something is not as it must be.

  Raises:
    UsageError: if the recipe breaks a rule, or there is none.
  """
  course = segments.course(config)
  if course is None:
    raise config_lib.UsageError(
      '--mode=rehearse needs --recipe=FILE.toml: what is to be rehearsed.'
    )
  root = pathlib.Path(
    config.run_dir or tempfile.mkdtemp(prefix='zaya_jax_rehearsal_')
  )
  root.mkdir(parents=True, exist_ok=True)
  if any(root.iterdir()):
    raise config_lib.UsageError(
      f'--run_dir={root} is not empty; name another for the rehearsal.'
    )
  passed, shown, began = False, rows.Rows(config.json), time.monotonic()
  try:
    good = True
    for row in rehearse(course, root):
      shown.print(row)
      good = good and row['passed']
    passed = good
  finally:  # An exception is a failure, too.
    if passed and not config.run_dir:
      shutil.rmtree(root, ignore_errors=True)
    _say(
      f'{"passed" if passed else f"FAILED, its runs are in {root}"}, '
      f'{time.monotonic() - began:.0f} s'
    )
  return exit_codes.DONE if passed else exit_codes.INTERNAL


def rehearse(
  course: segments.Course, root: pathlib.Path
) -> Iterator[dict[str, Any]]:
  """Plays a recipe twice and yields what came of it.

  Args:
    course: of the recipe.
    root: an empty folder for the runs.
  """
  count = len(course.recipe.phases)
  for phases in range(1, count + 1):
    path = miniature.write(course, root, phases)
  small = config_lib.Config.parse(
    [*miniature.FLAGS, f'--recipe={path}', '--run_dir=unused']
  )
  plan = miniature.Plan(
    segments.segments(small), tuple(p.name for p in course.recipe.phases)
  )
  reference, run = play.Play(root, 'reference'), play.Play(root, 'disturbed')
  for one, disturbed in ((reference, False), (run, True)):
    for number, act in enumerate(play.acts(plan, disturbed=disturbed), 1):
      _say(f'{one.run_dir.name}, act {number}: {_about(act)}')
      began = time.monotonic()
      wrong = one.act(act)
      yield _row(f'{one.run_dir.name} act {number}', wrong, _about(act), began)
      if wrong:
        return
  checks = {
    'ledger': lambda: judge.ledger(plan, reference, run),
    'digests': lambda: judge.digests(plan, reference, run),
    'quotas': lambda: judge.quotas(plan, run),
    'order': lambda: judge.shuffle(plan),
    'states': lambda: judge.states(plan, reference, run),
    'optimizer': lambda: judge.optimizer(plan, run),
    'rates': lambda: judge.rates(plan, run),
    'losses': lambda: judge.losses(plan, run),
    'kills': lambda: judge.kills(plan, run),
    'export': lambda: judge.model(plan, run, str(root / 'exported')),
  }
  for name, check in checks.items():
    began, wrong, said = time.monotonic(), '', ''
    try:
      said = check()
    except (judge.Fault, errors.CheckpointError, LookupError, ValueError) as e:
      wrong = str(e) or repr(e)
    yield _row(name, wrong, said, began)


def _row(name, wrong, said, began) -> dict[str, Any]:
  return {
    'check': name,
    'passed': not wrong,
    'seconds': round(time.monotonic() - began, 1),
    'said': wrong or said,
  }


def _about(act: play.Act) -> str:
  words = [f'{act.phases} phases', f'{act.processes} processes']
  words += [f'{len(act.kills)} kills'] if act.kills else []
  words += [f'step {act.refused} refused'] if act.refused else []
  words += [f'ends in step {act.stops}'] if act.stops else []
  return ', '.join(words)


def _say(words: str) -> None:
  print(f'rehearsal: {words}', file=sys.stderr, flush=True)
