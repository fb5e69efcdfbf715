# SPDX-License-Identifier: Apache-2.0
"""--dial on trial: which learning rate is best at each, and the scaling law.

    python -m benchmarks.dial --dials=1,2,3,4,5 --minutes=9 --data.input=FOLDER
    python -m benchmarks.dial --dials=1,2,3 --longer=0.5,1,2 --experts=0,16
    python -m benchmarks.dial --fit [--dials=4,5] [--experts=0] [--law=LAW.toml]

A cell is a dial, so many times its own tokens (`--longer`), and experts, a
vocabulary and tokens of a row (`--experts`, `--vocab`, `--row`; 0: its own).
All of these grow with the dial: to tell what each is worth, hold it. The first
seed is trained with multiples of the rule's learning rate (`--factors`, and
more of them while the best is at the edge), the other seeds with the best and
its two neighbours. A factor that is alone is taken as it is.

Each run is a line of `--output` as soon as it is done. Whoever calls again goes
on: after `--minutes` the runs that are under way save themselves, and the next
call goes on with them; `--devices` and `--jobs` make several at once. `--fit`
fits what is there (`dial_rate`, `dial_law`), prints tables and writes
`--result`. Flags that are not listed here go to the trainer.
"""

import argparse
import itertools
import json
import math
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import (
  dial_cells,
  dial_law,
  dial_rate,
  dial_table,
  record,
  texts,
)
from benchmarks import sweep as sweep_lib
from zaya_jax import config as config_lib
from zaya_jax.config import exit_codes
from zaya_jax.plan import law as law_lib

Row = dict[str, Any]
_DIALS = '1,2,3,4,5'


def main() -> None:
  """Runs what is missing, or fits what is there."""
  args, more = _parser().parse_known_args()
  args.work = args.work.resolve()  # Runs have a folder of their own.
  rows = sweep_lib.read(args.output)
  for row in rows:  # Some are of an earlier rule.
    row['factor'] = float(f'{row["lr"] / dial_rate.rule_of(row):.3g}')
  if not args.fit:
    sweep(args, more, rows)
    return
  given = {'dial': args.dials, **{n: vars(args)[n] for n in dial_cells.HELD}}
  for name, only in given.items():
    if only:
      rows = [r for r in rows if r[name] in _numbers(only, int)]
  if not rows:
    raise SystemExit(f'--output={args.output} has no such runs: train some.')
  result = fit(rows)
  print('\n'.join(dial_table.table(result)))
  about = record.circumstances('benchmarks.dial', ('scipy',))
  record.write(args.result, {**about, **result})
  if args.law:
    text = dial_table.toml(result, rows, about['command'])
    args.law.write_text(text, encoding='utf-8')
    law_lib.Law.read(args.law)  # That it can be read.


def sweep(args: argparse.Namespace, more: list[str], rows: list[Row]) -> None:
  """Trains what is not among `rows`, until the time is over."""
  end = time.monotonic() + 60 * args.minutes if args.minutes else math.inf
  facts = record.circumstances('benchmarks.dial', ('jax', 'jaxlib'))
  texts.same(rows, texts.name(dial_cells.inputs(more)), args.output)

  def make(run: Row, place: sweep_lib.Place) -> Row | None:
    row = train(args, run, more, end - time.monotonic(), place)
    if row is None:
      print(f'{dial_cells.name(run)}: not done in time; call again', flush=True)
    return row and row | facts

  sweep_lib.work(
    lambda rows, busy: missing(args, rows, busy),
    make, rows, args.output, sweep_lib.places(args, args.jobs), dial_table.line,
  )  # fmt: skip


def missing(
  args: argparse.Namespace, rows: list[Row], under_way: Sequence[Row] = ()
) -> Row | None:
  """The next run that is not among `rows`; None: none can begin.

  Args:
    args: the grid.
    rows: what is done.
    under_way: runs that are being made.
  """
  each = (
    _numbers(args.dials or _DIALS, int),
    _numbers(args.longer, float),
    *(_numbers(vars(args)[name] or '0', int) for name in dial_cells.HELD),
  )
  for values in itertools.product(*each):
    cell = dict(zip(dial_cells.CELL, values, strict=True))
    busy = [run for run in under_way if cell.items() <= run.items()]
    if found := _missing_of(args, sweep_lib.of(cell, rows), busy):
      return cell | found
  return None


def _missing_of(args, done, busy) -> Row | None:
  """The factor and the seed that come next in a cell."""
  tuned = {r['factor']: _loss(r) for r in done if not r['seed']}
  begun = {(r['factor'], r['seed']) for r in (*done, *busy)}
  factors = _numbers(args.factors, float)
  for factor in factors:
    if (factor, 0) not in begun:
      return {'factor': factor, 'seed': 0}
  if any(not run['seed'] for run in busy):
    return None
  if len(factors) > 1:
    if (further := sweep_lib.beyond(tuned)) is not None:
      return {'factor': further, 'seed': 0}
    order = sorted(tuned)
    at = order.index(min(order, key=lambda factor: tuned[factor]))
    factors = order[max(0, at - 1) : at + 2]
  for seed in range(1, args.seeds):
    for factor in factors:
      if (factor, seed) not in begun:
        return {'factor': factor, 'seed': seed}
  return None


def train(
  args: argparse.Namespace,
  run: Row,
  more: list[str],
  seconds: float,
  place: sweep_lib.Place,
) -> Row | None:
  """Trains and reads what the run has written of itself.

  Args:
    args: of the command line.
    run: its cell, factor and seed.
    more: flags of the trainer.
    seconds: after which it is asked to stop, and to go on at the next call.
    place: where.

  Returns:
    None if it was stopped; of a run that diverged bpb is None.
  """
  folder = args.work / dial_cells.name(run)
  flags = [*dial_cells.flags_of(args, run, more), f'--run_dir={folder}']
  sweep_lib.prepare(flags)
  command = [sys.executable, '-m', 'zaya_jax.main', *flags]
  folder.parent.mkdir(parents=True, exist_ok=True)
  with subprocess.Popen(
    command, cwd=record.ROOT, env=place.env, stdout=subprocess.PIPE, text=True
  ) as child:
    try:
      said, _ = child.communicate(timeout=max(1, min(seconds, 1e6)))
    except subprocess.TimeoutExpired:
      child.send_signal(signal.SIGTERM)
      said, _ = child.communicate()
  if child.returncode in (exit_codes.STOPPED, -signal.SIGTERM):
    return None
  if child.returncode not in (exit_codes.DONE, exit_codes.NUMERICS):
    raise SystemExit(f'{said}\n{command} ended: {child.returncode}')
  text = (folder / 'metrics.jsonl').read_text(encoding='utf-8')
  row = read(
    run, dial_cells.parse(run, more), [json.loads(x) for x in text.splitlines()]
  )
  shutil.rmtree(folder)
  return row


def read(run: Row, config: config_lib.Config, rows: list[Row]) -> Row:
  """What counts of a run.

  Args:
    run: its cell, factor and seed.
    config: of the rule's learning rate.
    rows: of metrics.jsonl.
  """
  steps = [row for row in rows if 'train/loss' in row]
  scored = [row for row in rows if 'val/bpb' in row]
  found = {
    **run,
    **law_lib.parameters(config.model),
    'width': config.model.d_model,
    'layers': config.model.num_layers,
    'vocabulary': config.model.vocab_size,
    'seq_len': config.data.seq_len,
    'lr': config.optim.lr * run['factor'],
    'tokens': steps[-1]['tokens'],
    'steps': steps[-1]['step'],
    'tokens_per_s': steps[-1]['throughput/tokens_per_second'],
    **texts.name(config),
    'bpb': None,
  }
  if scored and math.isfinite(scored[-1]['val/bpb']):
    bpb, nats = scored[-1]['val/bpb'], scored[-1]['val/loss']
    each = nats / math.log(2) / bpb
    found |= {'bpb': bpb, 'bytes_per_token': each}
    found['bytes'] = found['tokens'] * each
  return found


def fit(rows: list[Row]) -> Row:
  """The rule of the learning rate and the law, as far as `rows` suffice."""
  cells: dict[tuple, list[Row]] = {}
  for row in rows:
    if row['bpb'] is not None:
      cells.setdefault(tuple(row[key] for key in dial_cells.CELL), []).append(
        row
      )
  points = [dial_rate.point(cell) for cell in cells.values()]
  found: Row = {'points': points, 'runs': len(rows)}
  found['diverged'] = sum(row['bpb'] is None for row in rows)
  fits = (
    ('rate', dial_rate.fit, [*cells.values()]),
    ('law', dial_law.summary, points),
  )
  for name, make, of in fits:
    try:
      found[name] = make(of)
    except ValueError as error:
      found[name] = {'missing': str(error)}
  return found


def _loss(row) -> float:
  return math.inf if row['bpb'] is None else row['bpb']


def _numbers(text: str, kind: type) -> list[Any]:
  return [kind(word) for word in text.split(',')]


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    allow_abbrev=False, description=(__doc__ or '').partition('\n')[0]
  )
  parser.add_argument('--dials', help=f'default: {_DIALS}; of --fit: all')
  parser.add_argument('--longer', default='1', help="times a dial's own tokens")
  for name in dial_cells.HELD:
    parser.add_argument(
      f'--{name}', help="0, the default: a dial's own; of --fit: all"
    )
  parser.add_argument('--factors', default='0.5,1,2', help="times the rule's")
  parser.add_argument('--seeds', type=int, default=3)
  sweep_lib.add_flags(parser)
  parser.add_argument(
    '--score_bytes', type=float, default=1e6, help='held out, about'
  )
  parser.add_argument(
    '--work', type=pathlib.Path, default=pathlib.Path('runs/dial')
  )
  parser.add_argument(
    '--output', type=pathlib.Path, default=record.OWN / 'dial.jsonl'
  )
  parser.add_argument('--fit', action='store_true')
  parser.add_argument(
    '--result', type=pathlib.Path, default=record.OWN / 'dial_fit.json'
  )
  parser.add_argument('--law', type=pathlib.Path, help='a .toml file to write')
  return parser


if __name__ == '__main__':
  main()
