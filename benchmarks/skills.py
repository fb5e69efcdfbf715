# SPDX-License-Identifier: Apache-2.0
"""What runs of several sizes can do, by the tasks of `benchmarks.skill_tasks`.

    python -m benchmarks.skill_tasks --corpus=corpus --output=skills
    python -m benchmarks.skills --tasks=skills --runs=runs/small,runs/medium

Each run is scored by --mode=eval in a process of its own, which needs the extra
`eval`. A row is kept as soon as it is there; the same command goes on, and
scores what has been trained further since. The
table has active parameters and accuracies with their standard errors:
`acc` of names and words, whose answers end alike, and of lines `acc_norm`, over
their bytes. Flags of the trainer may follow, such as --eval.limit=100.
"""

import argparse
import json
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks import record, skill_tasks, sweep
from zaya_jax import config as config_lib
from zaya_jax.checkpoint import folders
from zaya_jax.model import flops

Row = dict[str, Any]
METRIC = {
  'skill_function': 'acc_norm',
  'skill_name': 'acc',
  'skill_word': 'acc',
}


def main() -> None:
  """Scores the runs that the output lacks, and prints the table."""
  args, more = _parser().parse_known_args()
  manifest = args.tasks / 'manifest.json'
  if not manifest.exists():
    raise SystemExit(
      f'--tasks={args.tasks} holds no manifest.json; make it: python -m '
      f'benchmarks.skill_tasks --corpus=CORPUS --output={args.tasks}'
    )
  about = record.circumstances('benchmarks.skills', ('jax', 'lm-eval'))
  about['tasks'] = json.loads(manifest.read_text())
  rows = [{'step': None, **row} for row in sweep.read(args.output)]
  for run in args.runs:
    # Eval takes the last checkpoint; those of a record may not say which.
    step = max(folders.steps(folders.root(str(run))), default=0)
    cell = {'run': str(run), 'step': step, 'flags': ' '.join(more)}
    if sweep.of(cell | {'tasks': about['tasks']}, rows):
      continue
    rows.append({**cell, **score(run, args.tasks, more), **about})
    sweep.keep(rows[-1], args.output)
  print('\n'.join(table(rows)))


def score(run: pathlib.Path, tasks: pathlib.Path, more: list[str]) -> Row:
  """A run's size, and of each task accuracy and standard error."""
  command = [sys.executable, '-m', 'zaya_jax.main', '--mode=eval', '--json']
  command += [f'--source={run}', f'--eval.task_dir={tasks.resolve()}']
  command += [f'--eval.tasks={",".join(skill_tasks.TASKS)}', *more]
  done = subprocess.run(
    command, cwd=record.ROOT, stdout=subprocess.PIPE, text=True, check=False
  )
  if done.returncode:
    raise SystemExit(f'{run} was not scored: {done.returncode}')
  found = [json.loads(line) for line in done.stdout.splitlines()]
  config = config_lib.Config.from_flagfile(str(run / 'config.flags'))
  counts = flops.parameters(config.model)
  return {
    'active': counts.active,
    'total': counts.total,
    'skills': {row['task']: row for row in found if 'task' in row},
  }


def table(rows: list[Row]) -> Iterator[str]:
  """Lines of Markdown, the smallest run first."""
  yield f'| run | active | {" | ".join(METRIC)} |'
  yield '|' + ' --- |' * (2 + len(METRIC))
  for row in sorted(rows, key=lambda row: row['active']):
    label = pathlib.Path(row['run']).name
    label += f', step {row["step"]}' if row['step'] else ''
    cells = [label, f'{row["active"] / 1e6:,.2f}M']
    for name, metric in METRIC.items():
      found = row['skills'][name]
      value, error = found[metric], found[f'{metric}_stderr']
      cells.append(f'{value:.3f} ± {error:.3f}')
    yield f'| {" | ".join(cells)} |'


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    allow_abbrev=False, description=(__doc__ or '').partition('\n')[0]
  )
  parser.add_argument('--tasks', type=pathlib.Path, required=True)
  parser.add_argument(
    '--runs',
    type=lambda text: [pathlib.Path(part) for part in text.split(',')],
    required=True,
  )
  parser.add_argument(
    '--output', type=pathlib.Path, default=record.OWN / 'skills.jsonl'
  )
  return parser


if __name__ == '__main__':
  main()
