# SPDX-License-Identifier: Apache-2.0
"""The reports' ablations redone: each a setting; MLA alone has code.

    python -m benchmarks.ablations --preset=small --steps=1000 --minutes=9
    python -m benchmarks.ablations --table
    python -m benchmarks.corpus --megabytes=240 --output=runs/corpus
    python -m benchmarks.race_data --corpus=runs/corpus --data=runs/race
    python -m benchmarks.ablations --seconds=40 --only=attention --data.input= \
      --data.dir=runs/race/shards --eval.batches=0
    python -m benchmarks.ablations --preset=quickstart --steps=200 \
      --model.d_model=128 --model.head_dim=16

A variant is the preset with some flags; further flags of the trainer change the
preset for all. It is tried with each of `--lrs`, multiples of the preset's
learning rate, on the first seed, and with further ones while the best is at the
edge; the best then trains the other seeds. A rate that is alone is taken as it
is. With `--steps` all see the same tokens. With
`--seconds` all have the same time: a short run, alone on its GPU, says how many
steps fit. The schedule is that of a race, a trapezoid of the rate down to 0.
Scored are bits per byte of the text that the run holds out, of shards of a race
whole projects, and the entropy of routers by step.

Each run is a line of `--output` as soon as it is done. Whoever calls again goes
on behind the last line; `--minutes` starts no run that might not end in time,
`--devices` and `--jobs` make several at once. `--table` prints what is there:
means over seeds with 95% intervals (Student's t), the difference to the preset
by seed, and what the reports say.
"""

import argparse
import functools
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import (
  ablations_table,
  race_data,
  race_ours,
  record,
  sweep,
  texts,
)
from benchmarks import ablations_variants as variants
from zaya_jax import config as config_lib
from zaya_jax.config import exit_codes

Row = dict[str, Any]

_LOG = 10  # Steps between points of a curve.


def main() -> None:
  """Runs what is missing, or prints the table."""
  args, args.more = _parser().parse_known_args()
  rows = sweep.read(args.output)
  if args.table:
    print('\n'.join(ablations_table.table(rows)))
    return
  if bool(args.steps) == bool(args.seconds):
    _parser().error('give --steps or --seconds: one of both is held equal.')
  end = time.monotonic() + 60 * args.minutes if args.minutes else math.inf
  facts = record.circumstances('benchmarks.ablations', ('jax', 'jaxlib'))
  text = _corpus(_preset(args))
  mine = _cell(args, '', '')['preset']
  beside = [row for row in rows if row['preset'] == mine]
  texts.same(beside, text, args.output)
  facts |= text

  def make(run: Row, place: sweep.Place) -> Row | None:
    alike = [row['wall_s'] for row in rows if row['budget'] == run['budget']]
    if time.monotonic() + 1.2 * max(alike, default=0) > end:
      print('not enough time for the next run: call again', flush=True)
      return None
    return train(args, run, place) | facts

  # What a step takes is seen alone on a device, whatever --jobs says.
  grids = [(unknown, 1)] if args.seconds else []
  failed = []
  for choose, jobs in (*grids, (missing, args.jobs)):
    choice = functools.partial(choose, args)
    at = sweep.places(args, jobs)
    line = ablations_table.line
    try:
      if not sweep.work(choice, make, rows, args.output, at, line):
        break
    except SystemExit as error:  # Variants that did not fail go on.
      failed.append(str(error))
  print('\n'.join(ablations_table.table(rows)))
  if failed:
    raise SystemExit('\n'.join(failed))


def unknown(
  args: argparse.Namespace, rows: list[Row], under_way: Sequence[Row] = ()
) -> Row | None:
  """The next short run: of a variant whose steps have no time yet."""
  for variant in _variants(args):
    run = {**_cell(args, ablations_table.SPEED, variant), 'lr': 1.0, 'seed': 0}
    run['steps'] = race_ours.WARM_UP
    if run not in under_way and not sweep.of(run, rows):
      return run
  return None


def missing(
  args: argparse.Namespace, rows: list[Row], under_way: Sequence[Row] = ()
) -> Row | None:
  """The next run that is not among `rows`; None: none can begin.

  Args:
    args: the grid.
    rows: what is done, with `--seconds` also the short runs.
    under_way: runs that are being made.
  """
  factors = [float(lr) for lr in args.lrs.split(',')]
  for variant in _variants(args):
    steps, budget = args.steps, f'{args.steps} steps'
    if args.seconds:
      budget = f'{args.seconds:g} s'
      short = sweep.of(_cell(args, ablations_table.SPEED, variant), rows)
      if not short:  # It failed.
        continue
      steps = race_ours.steps_in(args.seconds, short[0]['step_s'])
    cell = {**_cell(args, budget, variant), 'steps': steps}
    seeds, wider = range(args.seeds), len(factors) > 1
    run = sweep.next_of(cell, factors, seeds, rows, under_way, wider=wider)
    if run:
      return run
  return None


def _cell(args, budget, variant) -> Row:
  changes = [f for f in args.more if f.startswith(('--model.', '--optim.'))]
  preset = ' '.join([args.preset, *changes])
  return {'preset': preset, 'budget': budget, 'variant': variant}


def _variants(args) -> list[str]:
  """The preset, and what is asked for of what differs from it."""
  groups = args.only.split(',') if args.only else list(variants.GROUPS)
  names = [v for g in groups for v in variants.GROUPS[g].flags]
  preset, found = _preset(args), [variants.BASE]
  for name in names:
    flags = variants.flags(name, preset.model)
    if not flags:
      continue
    own = variants.module(name) != variants.module(variants.BASE)
    if own or record.preset(args.preset, [*args.more, *flags]) != preset:
      found.append(name)
  only = args.variants.split(',') if args.variants else found
  if wrong := set(only) - set(found):
    raise SystemExit(
      f'--variants={args.variants}: {_cell(args, "", "")["preset"]} has no '
      f'{min(wrong)} that differs from it; choose of {",".join(found)}'
    )
  return [v for v in found if v in only]


def _preset(args) -> config_lib.Config:
  return record.preset(args.preset, args.more)


def _corpus(config: config_lib.Config) -> Row:
  """What a row says of the shards of a race, or the name of other data."""
  folders = map(pathlib.Path, config.data.dir)
  shards = [folder for folder in folders if folder.name == race_data.SHARDS]
  if shards:
    return race_data.facts(shards[0].parent)
  return texts.name(config)


def train(args: argparse.Namespace, run: Row, place: sweep.Place) -> Row:
  """Trains and reads what the run has written of itself.

  Raises:
    SystemExit: with what the run said, if it failed. One that diverged did not:
      its bpb is None.
  """
  args.work.mkdir(parents=True, exist_ok=True)
  began = time.monotonic()
  with tempfile.TemporaryDirectory(dir=args.work) as folder:
    flags = flags_of(args, run, folder)
    sweep.prepare(flags)
    module = variants.module(run['variant'])
    command = [sys.executable, '-m', module, *flags]
    done = subprocess.run(
      command, cwd=record.ROOT, env=place.env, text=True,
      stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode not in (exit_codes.DONE, exit_codes.NUMERICS):
      raise SystemExit(f'{done.stdout}\n{command} ended: {done.returncode}')
    text = (pathlib.Path(folder) / 'metrics.jsonl').read_text()
    about = json.loads((pathlib.Path(folder) / 'config.json').read_text())
  rows = [json.loads(line) for line in text.splitlines()]
  steps = [row for row in rows if 'train/loss' in row]
  scored = [row['val/bpb'] for row in rows if 'val/bpb' in row]
  return {
    **run,
    'device': about['devices']['kind'],
    'bpb': scored[-1] if scored and math.isfinite(scored[-1]) else None,
    'loss': steps[-1]['train/loss'],
    'tokens': steps[-1]['tokens'],
    'step_s': race_ours.late_step_s(steps),
    'wall_s': time.monotonic() - began,
    'curve': race_ours.log_of(steps),
  }


def flags_of(args: argparse.Namespace, run: Row, folder: str) -> list[str]:
  """The flags of a run: the preset, its variant, its rate, its length."""
  config = _preset(args)
  return [
    f'--flagfile={record.ROOT}/configs/{args.preset}.flags',
    f'--data.dir={args.work}/data',
    '--eval.every=0',
    '--checkpoint.every=0',
    f'--log.every={min(_LOG, run["steps"])}',
    '--log.sample_every=0',
    '--nolog.report',
    '--nolog.tensorboard',
    *race_ours.trapezoid(run['steps']),
    *args.more,
    f'--num_steps={run["steps"]}',
    *(variants.flags(run['variant'], config.model) or ()),
    f'--optim.lr={config.optim.lr * run["lr"]:g}',
    f'--seed={run["seed"]}',
    f'--run_dir={folder}',
  ]


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    allow_abbrev=False, description=(__doc__ or '').partition('\n')[0]
  )
  parser.add_argument('--preset', default='small')
  parser.add_argument('--steps', type=int, default=0, help='of each run')
  parser.add_argument('--seconds', type=float, default=0, help='of each run')
  parser.add_argument('--lrs', default='1,2,4', help='times the preset')
  parser.add_argument('--seeds', type=int, default=3)
  parser.add_argument(
    '--only', default='', help=f'some of {", ".join(variants.GROUPS)}'
  )
  parser.add_argument('--variants', default='', help='some of these groups')
  sweep.add_flags(parser)
  parser.add_argument(
    '--work', type=pathlib.Path, default=pathlib.Path('runs/ablations')
  )
  parser.add_argument(
    '--output',
    type=pathlib.Path,
    default=record.OWN / 'ablations.jsonl',
  )
  parser.add_argument('--table', action='store_true')
  parser.set_defaults(more=[])  # Flags of the trainer.
  return parser


if __name__ == '__main__':
  main()
