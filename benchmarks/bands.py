# SPDX-License-Identifier: Apache-2.0
"""Losses of a preset with the chosen kernels and with others, seed by seed.

    python -m benchmarks.bands --preset=small [--steps=200 --seeds=0,1,2]

Runs of the trainer on the same shards, a process each: with the engines that
the device gets by itself, and with those of `--against`, by default XLA's,
which are the specification of every operation. A seed has the same parameters,
rows and order in both, so the difference of its losses is due to the engines.
Noise is how far seeds lie apart: kernels that are as good as XLA's programs
differ by no more than that, and not in one direction. Flags of the trainer may
follow.
"""

import argparse
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks import record
from zaya_jax.config import machine

_XLA = ' '.join(
  f'--ops.{name}={"triton" if name == "experts" else "xla"}'
  for name in vars(machine.OpsConfig())
)


def main() -> None:
  """Runs all, prints a line each, and keeps the result."""
  args, more = _parser().parse_known_args()
  about = record.circumstances('benchmarks.bands', ('jax', 'jaxlib'))
  curves: dict[str, dict[int, list[float]]] = {'chosen': {}, 'against': {}}
  with tempfile.TemporaryDirectory() as folder:
    for seed in args.seeds:
      for name, engines in (('chosen', ''), ('against', args.against)):
        flags = [*engines.split(), *more, f'--seed={seed}']
        curves[name][seed] = losses = _run(args, pathlib.Path(folder), flags)
        print(f'{name:<8} seed {seed}  last {losses[-1]:.4f}', flush=True)
  found = compare(curves['chosen'], curves['against'], args.last)
  print(json.dumps(found, indent=2))
  row = {'against': args.against, **found, 'losses': curves}
  record.write(args.output, {**about, **row})


def compare(
  chosen: dict[int, list[float]], against: dict[int, list[float]], last: int
) -> dict[str, Any]:
  """Puts the curves of two sets of engines side by side.

  Args:
    chosen: by seed, the losses of its run in nats a token.
    against: those of the other engines, with the same seeds.
    last: how many losses at the end of a run are averaged.

  Returns:
    The means of each seed; `difference`, the mean of chosen minus against, and
    its `standard_error` over seeds; `noise`, the standard deviation over seeds
    of those of `against`; `first_apart`, the largest difference in the first
    loss; `within`: whether the difference is at most two standard errors or a
    noise, whichever is more.
  """
  mean = lambda losses: statistics.fmean(losses[-last:])
  ours = {seed: mean(losses) for seed, losses in chosen.items()}
  theirs = {seed: mean(losses) for seed, losses in against.items()}
  apart = [ours[seed] - theirs[seed] for seed in ours]
  error = statistics.stdev(apart) / math.sqrt(len(apart))
  noise = statistics.stdev(theirs.values())
  difference = statistics.fmean(apart)
  return {
    'means': {'chosen': ours, 'against': theirs},
    'difference': difference,
    'standard_error': error,
    'noise': noise,
    'first_apart': max(abs(chosen[s][0] - against[s][0]) for s in chosen),
    'within': abs(difference) <= max(2 * error, noise),
  }


def _run(args, folder: pathlib.Path, flags: list[str]) -> list[float]:
  """Trains in a process of its own; its losses, a value every five steps."""
  run = tempfile.mkdtemp(dir=folder)
  command = [
    *(sys.executable, '-m', 'zaya_jax.main'),
    f'--flagfile={record.ROOT}/configs/{args.preset}.flags',
    f'--data.dir={folder}/data',
    f'--run_dir={run}',
    f'--num_steps={args.steps}',
    '--log.every=5',
    '--log.sample_every=0',
    '--eval.every=0',
    *flags,
  ]
  subprocess.run(command, cwd=record.ROOT, stdout=sys.stderr, check=True)
  lines = (pathlib.Path(run) / 'metrics.jsonl').read_text().splitlines()
  rows = map(json.loads, lines)
  return [row['train/loss'] for row in rows if 'train/loss' in row]


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    allow_abbrev=False, description=(__doc__ or '').partition('\n')[0]
  )
  parser.add_argument('--preset', default='small')
  parser.add_argument('--steps', type=int, default=200)
  parser.add_argument(
    '--seeds',
    type=lambda text: [int(part) for part in text.split(',')],
    default=[0, 1, 2],
  )
  parser.add_argument('--against', default=_XLA, help='engines of the other')
  parser.add_argument(
    '--last', type=int, default=10, help='losses at the end that count'
  )
  parser.add_argument(
    '--output', type=pathlib.Path, default=record.RESULTS / 'bands.json'
  )
  return parser


if __name__ == '__main__':
  main()
