# SPDX-License-Identifier: Apache-2.0
"""Runs of the trainer and of its peers in PyTorch against the same clock.

`benchmarks.equal_time` and `benchmarks.speedrun` race by it. A run is a process
of its own that gets the same windows (`benchmarks.race_data`), batch and
seconds. Only training is on the clock: neither start nor compiling, evaluation
or the last save.

Peers know their clock: the schedule follows it, and no step begins that would
end too late. The trainer counts steps, so a short run first says what one
takes; a run has as many as fit, less one in 25. What it took is added up
from its own log; a run that took longer does not count and is made again with
fewer.
"""

import argparse
import importlib.util
import json
import math
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from benchmarks import race_data, race_ours, race_table, record, sweep, texts
from zaya_jax import config as config_lib

Row = dict[str, Any]

OURS = race_ours.NAME
PEERS = {
  'adamw': 'benchmarks.peers.dense_gpt',
  'strong': 'benchmarks.peers.strong_gpt',
}
# Flags of the trainer that peers follow, too.
_SEEN = ('--data.', '--model.vocab_size')
# Ours are of Muon and AdamW alike, those of `strong` of its Muon.
_LRS = {
  OURS: [2e-3, 4e-3, 8e-3],
  'adamw': [1e-3, 2e-3],
  'strong': [0.0125, 0.025, 0.05],
}
_START_S = 90.0  # Of a program that has not been run.


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Of what races, and how often."""
  race_data.add_flags(parser)
  parser.add_argument(
    '--only',
    type=_names,
    default=_names(','.join([OURS, *PEERS])),
    help=f'some of {OURS},{",".join(PEERS)}',
  )
  parser.add_argument(
    '--seeds',
    type=lambda text: [int(part) for part in text.split(',')],
    default=[0, 1, 2],
  )
  for name in PEERS:
    parser.add_argument(
      f'--{name}_shape',
      type=_shape,
      default='8x512',
      help='its layers x width, and x rows of a step if not --data.batch_size',
    )
  for name, rates in _LRS.items():
    parser.add_argument(
      f'--{name}_lrs',
      type=_numbers,
      default=rates,
      help='tried on the first seed; the best one trains the others',
    )
  parser.add_argument(
    '--tune_s', type=float, default=0, help='of such a trial; 0: the whole time'
  )
  parser.add_argument(
    '--every', type=int, default=100, help='steps between scores; 0: the last'
  )
  parser.add_argument(
    '--minutes', type=float, default=0, help='starts nothing later; 0: no limit'
  )


def run(
  args: argparse.Namespace,
  more: list[str],
  module: str,
  seconds: Mapping[str, float],
  target: float | None = None,
) -> list[Row]:
  """Makes the runs that `args.output` lacks, as far as the time allows.

  Args:
    args: of `add_flags`, and the output, a .jsonl of one machine.
    more: flags of the trainer.
    module: the benchmark, as 'benchmarks.speedrun'.
    seconds: on the clock, by program.
    target: bits per byte at which a run ends.

  Returns:
    All rows of the output.
  """
  end = time.monotonic() + 60 * args.minutes if args.minutes else math.inf
  config = record.preset(args.preset, more)
  race_data.make(
    args.corpus, args.data, config.model.vocab_size, args.held_out_bytes
  )
  about = record.circumstances(module, ('jax', 'jaxlib'))
  text, rows = race_data.facts(args.data), sweep.read(args.output)
  texts.same(rows, text, args.output)
  about |= text
  if set(args.only) - {OURS} and not importlib.util.find_spec('torch'):
    raise SystemExit(
      f'--only={",".join(args.only)} needs PyTorch, which {sys.executable} '
      f'does not have; install it, or race {OURS} alone.'
    )
  while (trial := missing(args, more, seconds, target, rows)) is not None:
    if time.monotonic() + _expected(trial, rows) > end:
      print('not enough time for the next run: call again', flush=True)
      break
    row = {**trial, **_make(args, more, config, trial, rows), **about}
    rows.append(row)
    sweep.keep(row, args.output)
    print(race_table.line(row), flush=True)
  return rows


def missing(
  args: argparse.Namespace,
  more: list[str],
  seconds: Mapping[str, float],
  target: float | None,
  rows: list[Row],
) -> Row | None:
  """The next run that is not among `rows`; None: all are there."""
  rows = [row for row in rows if row['counts']]
  for name in args.only:
    cell = {
      'program': name,
      'preset': args.preset,
      'flags': ' '.join(more if name == OURS else _seen(more)),
      'shape': getattr(args, f'{name}_shape', ''),
      'seconds': seconds[name],
      'target': target,
    }
    rates, first = _rates(args, name, more), args.seeds[:1]
    trial = None
    # With a target all rates end with the same score.
    tune_s = args.tune_s or (seconds[name] if target else 0)
    if tune_s and len(rates) > 1:
      short = {**cell, 'seconds': tune_s, 'target': None}
      trial = sweep.next_of(short, rates, first, rows)
      if not trial:
        tuned = sweep.tuned_of(short, first[0], rows)
        rates = [min(rates, key=lambda rate: tuned[rate])]
    trial = trial or sweep.next_of(cell, rates, args.seeds, rows)
    if trial:
      return trial
  return None


def _rates(args, name: str, more: list[str]) -> list[float]:
  """What is tried; a rate among the flags of the trainer is the only one."""
  given = [flag for flag in more if flag.startswith('--optim.lr=')]
  if name == OURS and given:
    return [float(given[-1].partition('=')[2])]
  return getattr(args, f'{name}_lrs')


def _seen(more: list[str]) -> list[str]:
  """The flags of the trainer that change what peers get."""
  return [flag for flag in more if flag.startswith(_SEEN)]


def _make(
  args: argparse.Namespace,
  more: list[str],
  config: config_lib.Config,
  trial: Row,
  rows: list[Row],
) -> Row:
  """Trains; what `trial` does not say."""
  began, each = time.time(), config.data.batch_size
  if trial['program'] == OURS:
    found = race_ours.run(args, more, trial, rows)
  else:
    layers, width, *own = map(int, trial['shape'].split('x'))
    each = own[0] if own else each
    found = _peer(args, config, trial, layers, width, each)
  return {
    **found,
    'tokens': found['steps'] * each * config.data.seq_len,
    'counts': found['train_s'] <= trial['seconds'],
    'wall_s': time.time() - began,
  }


def _peer(args, config, trial, layers, width, rows) -> Row:
  train, held_out = race_data.windows(args.data, config)
  how = {
    **{name: trial[name] for name in ('lr', 'seed', 'seconds', 'target')},
    'layers': layers,
    'width': width,
    'vocab': config.model.vocab_size,
    'length': config.data.seq_len,
    'rows': rows,
    'train': str(train),
    'held_out': str(held_out),
    'bytes_per_token': race_data.bytes_per_token(args.data),
    'every': args.every,
    'began': time.time(),
  }
  command = [sys.executable, '-m', PEERS[trial['program']], json.dumps(how)]
  done = subprocess.run(
    command, cwd=record.ROOT, stdout=subprocess.PIPE, text=True
  )
  if done.returncode:
    raise SystemExit(f'{trial["program"]} ended: {done.returncode}')
  return json.loads(done.stdout.splitlines()[-1])


def _expected(trial: Row, rows: list[Row]) -> float:
  """Seconds that a run may take, from what others took beside training."""
  mine = [row for row in rows if row['program'] == trial['program']]
  aside = [row['wall_s'] - row['train_s'] for row in mine]
  return trial['seconds'] + max(aside, default=_START_S)


def _names(text: str) -> list[str]:
  names = text.split(',')
  if wrong := set(names) - {OURS, *PEERS}:
    raise argparse.ArgumentTypeError(
      f'{wrong.pop()} does not race; choose of {OURS},{",".join(PEERS)}'
    )
  return names


def _shape(text: str) -> str:
  layers, *rest = text.split('x')
  good = len(rest) in (1, 2) and all(n.isdecimal() for n in (layers, *rest))
  if not (good and _divides(int(rest[0])) and int(rest[-1])):
    raise argparse.ArgumentTypeError(
      f'{text} must be LAYERSxWIDTH or LAYERSxWIDTHxROWS, with a width of '
      'whole heads: a multiple of 128, or an even one up to 64; for example '
      '8x512'
    )
  return text


def _divides(width: int) -> bool:
  return width % 128 == 0 or (width <= 64 and width % 2 == 0)


def _numbers(text: str) -> list[float]:
  return [float(part) for part in text.split(',')]
