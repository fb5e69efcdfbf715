# SPDX-License-Identifier: Apache-2.0
"""The reports' ablations redone: each a setting, no code of its own.

    python -m benchmarks.ablations --preset=small --steps=1000 --minutes=9
    python -m benchmarks.ablations --preset=small --seconds=120 --only=attention
    python -m benchmarks.ablations --table

A variant is the preset with some flags. It is tried with each of `--lrs`, the
same multiples of the preset's learning rate for all, on the first seed; its
best rate then trains the other seeds. With `--steps` all see the same tokens,
with `--seconds` all have the same time. Scored are bits per byte of the text
that the run holds out, and the entropy of its routers by step.

Each run is a line of `--output` as soon as it is done. Whoever calls again goes
on behind the last line; `--minutes` starts no run that might not end in time.
`--table` prints what is there: means over seeds with 95% intervals (Student's
t), the difference to the preset by seed, and what the reports say.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import ablations_table, record
from benchmarks import ablations_variants as variants
from zaya_jax import config as config_lib

Row = dict[str, Any]


def main() -> None:
  """Runs what is missing, or prints the table."""
  args, more = _parser().parse_known_args()
  rows = read(args.output)
  if args.table:
    print('\n'.join(ablations_table.table(rows)))
    return
  if bool(args.steps) == bool(args.seconds):
    _parser().error('give --steps or --seconds: one of both is held equal.')
  end = time.monotonic() + 60 * args.minutes if args.minutes else None
  facts = record.circumstances('benchmarks.ablations', ('jax', 'jaxlib'))
  while (run := missing(args, rows)) is not None:
    longest = max((row['wall_s'] for row in rows if _same(row, run)), default=0)
    if end and time.monotonic() + 1.2 * longest > end:
      print('not enough time for the next run: call again')
      return
    rows.append(train(args, run, more) | facts)
    with args.output.open('a') as file:
      file.write(json.dumps(rows[-1]) + '\n')
    print(_line(rows[-1]), flush=True)
  print('\n'.join(ablations_table.table(rows)))


def read(path: pathlib.Path) -> list[Row]:
  """The runs that are done; a line that a kill has cut is none."""
  rows = []
  for line in path.read_text().splitlines() if path.exists() else ():
    try:
      rows.append(json.loads(line))
    except json.JSONDecodeError:
      print(f'{path}: a line is cut short; its run is made again')
  return rows


def missing(args: argparse.Namespace, rows: list[Row]) -> Row | None:
  """The next run that is not among `rows`; None: all are there.

  Args:
    args: the grid.
    rows: what is done.
  """
  factors = [float(lr) for lr in args.lrs.split(',')]
  budget = f'{args.steps} steps' if args.steps else f'{args.seconds:g} s'
  for variant in _variants(args):
    cell = {'preset': args.preset, 'budget': budget, 'variant': variant}
    run = next_of(cell, factors, range(args.seeds), rows)
    if run:
      return run
  return None


def next_of(
  cell: Row, rates: Sequence[float], seeds: Sequence[int], rows: list[Row]
) -> Row | None:
  """The next run of a cell that is not among `rows`; None: all are there.

  Args:
    cell: what its runs have in common.
    rates: all tried on the first seed; the best trains the others.
    seeds: at least one.
    rows: what is done, of any cell.
  """
  tuned = _tuned(cell, seeds, rows)
  for rate in rates:
    if rate not in tuned:
      return {**cell, 'lr': rate, 'seed': seeds[0]}
  best = best_rate(cell, rates, seeds, rows)
  have = {r['seed'] for r in _of(cell, rows) if r['lr'] == best}
  left = [seed for seed in seeds if seed not in have]
  return {**cell, 'lr': best, 'seed': left[0]} if left else None


def best_rate(
  cell: Row, rates: Sequence[float], seeds: Sequence[int], rows: list[Row]
) -> float:
  """The best of rates that have all been tried on the first seed."""
  tuned = _tuned(cell, seeds, rows)
  return min(rates, key=lambda rate: tuned[rate])


def _tuned(cell, seeds, rows) -> dict[float, float]:
  """By rate, what it came to on the first seed."""
  done = _of(cell, rows)
  return {r['lr']: r['bpb'] for r in done if r['seed'] == seeds[0]}


def _of(cell, rows) -> list[Row]:
  return [r for r in rows if all(r[key] == cell[key] for key in cell)]


def _variants(args) -> list[str]:
  """The preset, and what is asked for of what it has."""
  groups = args.only.split(',') if args.only else list(variants.GROUPS)
  names = [v for g in groups for v in variants.GROUPS[g].flags]
  model = _preset(args).model
  found = [variants.BASE, *(v for v in names if variants.flags(v, model))]
  only = args.variants.split(',') if args.variants else found
  return [v for v in found if v in only]


def _preset(args, more=()) -> config_lib.Config:
  return record.preset(args.preset, more)


def train(args: argparse.Namespace, run: Row, more: list[str]) -> Row:
  """Trains and reads what the run has written of itself."""
  args.work.mkdir(parents=True, exist_ok=True)
  began = time.monotonic()
  with tempfile.TemporaryDirectory(dir=args.work) as folder:
    command = [sys.executable, '-m', 'zaya_jax.main']
    command += flags_of(args, run, folder, more)
    done = subprocess.run(
      command, cwd=record.ROOT, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
      raise SystemExit(f'{done.stdout}\n{command} ended: {done.returncode}')
    text = (pathlib.Path(folder) / 'metrics.jsonl').read_text()
  rows = [json.loads(line) for line in text.splitlines()]
  steps = [row for row in rows if 'train/loss' in row]
  scored = [row['val/bpb'] for row in rows if 'val/bpb' in row]
  return {
    **run,
    'bpb': scored[-1],
    'loss': steps[-1]['train/loss'],
    'steps': steps[-1]['step'],
    'tokens': steps[-1]['tokens'],
    'tokens_per_s': steps[-1]['throughput/tokens_per_second'],
    'wall_s': time.monotonic() - began,
    'curve': [
      [row['step'], round(row['train/loss'], 4)]
      + [round(row[f'moe/{name}'], 4) for name in ('entropy', 'load_min')]
      for row in steps
    ],
  }


def flags_of(
  args: argparse.Namespace, run: Row, folder: str, more: list[str]
) -> list[str]:
  """The flags of a run: the preset, its variant, its rate, its length."""
  config = _preset(args, more)
  optim = config.optim
  length = [f'--num_steps={args.steps}']
  if args.seconds:
    length = [f'--hours={args.seconds / 3600}']
  return [
    f'--flagfile={record.ROOT}/configs/{args.preset}.flags',
    f'--data.dir={args.work}/data',
    '--eval.every=0',
    '--checkpoint.every=0',
    '--log.sample_every=0',
    '--nolog.report',
    '--nolog.tensorboard',
    *more,
    *length,
    *(variants.flags(run['variant'], config.model) or ()),
    f'--optim.lr={optim.lr * run["lr"]:g}',
    f'--optim.lr_final={optim.lr_final * run["lr"]:g}',
    f'--seed={run["seed"]}',
    f'--run_dir={folder}',
  ]


def _same(row, run):
  return all(row[key] == run[key] for key in ('preset', 'budget'))


def _line(row: Row) -> str:
  return (
    f'{row["variant"]:<22} lr x{row["lr"]:<5g} seed {row["seed"]}  '
    f'{row["bpb"]:.4f} bits per byte  entropy {row["curve"][-1][2]:.3f}  '
    f'{row["steps"]:,} steps  {row["wall_s"]:.0f} s'
  )


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    allow_abbrev=False, description=(__doc__ or '').partition('\n')[0]
  )
  parser.add_argument('--preset', default='small')
  parser.add_argument('--steps', type=int, default=0, help='of each run')
  parser.add_argument('--seconds', type=float, default=0, help='of each run')
  parser.add_argument('--lrs', default='0.5,1,2', help='times the preset')
  parser.add_argument('--seeds', type=int, default=3)
  parser.add_argument(
    '--only', default='', help=f'some of {", ".join(variants.GROUPS)}'
  )
  parser.add_argument('--variants', default='', help='some of these groups')
  parser.add_argument('--minutes', type=float, default=0, help='0: no limit')
  parser.add_argument(
    '--work', type=pathlib.Path, default=pathlib.Path('runs/ablations')
  )
  parser.add_argument(
    '--output',
    type=pathlib.Path,
    default=record.RESULTS / 'ablations.jsonl',
  )
  parser.add_argument('--table', action='store_true')
  return parser


if __name__ == '__main__':
  main()
