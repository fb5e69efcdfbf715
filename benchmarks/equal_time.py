# SPDX-License-Identifier: Apache-2.0
"""Bits per byte of a held-out text after the same seconds of training.

    python -m benchmarks.corpus --megabytes=500 --output=runs/corpus
    python -m benchmarks.equal_time [--seconds=120] [--minutes=9] [--FLAG ...]
    python -m benchmarks.equal_time --table

A preset as it is (`--preset=small`; flags of the trainer win) beside two dense
GPTs in PyTorch, compiled: one with AdamW, one as public speedruns have it. All
train on the same shards and are scored on the same windows, whole projects that
no one has trained on; `benchmarks.race` says what is on the clock. Each run is
a line of `--output` as soon as it is done, and whoever calls again goes on; two
processes on two GPUs, with an output each, share the work by `--only`.
"""

import argparse
import pathlib
from collections.abc import Iterator

from benchmarks import ablations_table, race, race_table, record, sweep


def main() -> None:
  """Runs what is missing, and prints the table."""
  args, more = _parser().parse_known_args()
  if args.table:
    rows = sweep.read(args.output)
  else:
    seconds = dict.fromkeys((race.OURS, *race.PEERS), args.seconds)
    rows = race.run(args, more, 'benchmarks.equal_time', seconds)
  print('\n'.join(table(rows)))


def table(rows: list[race.Row]) -> Iterator[str]:
  """Lines of Markdown: each program with its best rate, and its seeds."""
  yield (
    '| program | device | text | flags, shape and rate | seeds '
    '| training, s | tokens, M | epochs | bits per byte |'
  )
  yield '|' + ' --- |' * 9
  rows = [row for row in rows if row['target'] is None]
  most = max((row['seconds'] for row in rows), default=0)  # Not of trials.
  for mine in race_table.groups(
    [row for row in rows if row['seconds'] == most]
  ):
    mean, half = ablations_table.interval(r['bpb'] for r in mine)
    seconds = [row['train_s'] for row in mine]
    tokens = [row['tokens'] / 1e6 for row in mine]
    epochs = [race_table.epochs(row) for row in mine]
    cells = [
      mine[0]['program'],
      mine[0]['device'],
      race_table.text(mine[0]),
      race_table.settings(mine[0]),
      str(len(mine)),
      f'{min(seconds):.1f} to {max(seconds):.1f}',
      f'{sum(tokens) / len(tokens):.0f}',
      f'{max(epochs):.2f}',
      ablations_table.number(mean, half),
    ]
    yield f'| {" | ".join(cells)} |'


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    allow_abbrev=False, description=(__doc__ or '').partition('\n')[0]
  )
  race.add_flags(parser)
  parser.add_argument('--seconds', type=float, default=120.0)
  parser.add_argument(
    '--output', type=pathlib.Path, default=record.OWN / 'equal_time.jsonl'
  )
  parser.add_argument('--table', action='store_true', help='of what is there')
  return parser


if __name__ == '__main__':
  main()
