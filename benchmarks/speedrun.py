# SPDX-License-Identifier: Apache-2.0
"""Seconds of training until a held-out text is predicted: a speedrun.

    make speedrun
    python -m benchmarks.speedrun [--target=1.12] [--minutes=9] [--FLAG ...]
    python -m benchmarks.speedrun --page

One GPU, the same text, windows and held-out projects for all: the preset
`small` (flags of the trainer win) beside two dense GPTs in PyTorch, compiled,
one with AdamW and one as public speedruns have it; three seeds each. Each
schedule ends after the program's own `--*_seconds`; a run is scored every
`--every` steps with the clock stopped, and ends at the target or with its
schedule. One that does not get there is told as such. docs/speedrun.md has the
rules and the runs on record, which `--page` writes there from
benchmarks/results/speedrun_*.jsonl: the `--output` of a machine each.
"""

import argparse
import collections
import pathlib
import statistics
from collections.abc import Iterable, Iterator

from benchmarks import (
  ablations_table,
  race,
  race_ours,
  race_table,
  record,
  sweep,
)

PAGE = record.ROOT / 'docs' / 'speedrun.md'
_BEGIN, _END = '<!-- records: begin -->', '<!-- records: end -->'
# A little above what the plain dense GPT comes to on an H200 and the corpus of
# 500 MB in the seconds that its schedule has here: 1.109.
_TARGET = 1.12
# Seconds on the clock after which a schedule ends: enough, and not far more.
_SECONDS = {'zaya_jax': 30.0, 'adamw': 120.0, 'strong': 25.0}


def main() -> None:
  """Runs what is missing and prints the table, or writes the page."""
  args, more = _parser().parse_known_args()
  if args.page:
    text = page(PAGE.read_text('utf-8'), recorded())
    PAGE.write_text(text, 'utf-8')
    return
  seconds = {name: getattr(args, f'{name}_seconds') for name in _SECONDS}
  rows = race.run(args, more, 'benchmarks.speedrun', seconds, args.target)
  print('\n'.join(table(rows)))


def recorded() -> list[race.Row]:
  """The runs on record, of all machines."""
  files = sorted(record.RESULTS.glob('speedrun_*.jsonl'))
  return [row for file in files for row in sweep.read(file)]


def page(text: str, rows: list[race.Row]) -> str:
  """The page with the table of these runs."""
  before, _, rest = text.partition(_BEGIN)
  _, _, after = rest.partition(_END)
  lines = '\n'.join(table(rows))
  return f'{before}{_BEGIN}\n{lines}\n{_END}{after}'


def table(rows: list[race.Row]) -> Iterator[str]:
  """Lines of Markdown, a table for each target, the fastest first."""
  rows = [row for row in rows if row['target'] is not None]
  if not rows:
    yield 'No run is on record yet.'
  targets: dict[float, list[list[race.Row]]] = collections.defaultdict(list)
  for mine in race_table.groups(rows):
    targets[mine[0]['target']].append(mine)
  for target in sorted(targets):
    yield ''
    yield f'To {target:g} bits per byte:'
    yield ''
    yield (
      '| program | flags, shape and rate | training, s | with start, s '
      '| seeds that got there | the others ended at | GPU | text | date |'
    )
    yield '|' + ' --- |' * 9
    for mine in sorted(targets[target], key=_order):
      yield f'| {" | ".join(_cells(mine))} |'
    yield ''


def _cells(mine: list[race.Row]) -> list[str]:
  ends = [race_ours.reached(row['curve'], row['target']) for row in mine]
  there = [end for end in ends if end]
  # The last score: what a run had come to when its time was over.
  rest = [row for row, end in zip(mine, ends, strict=True) if not end]
  return [
    mine[0]['program'],
    race_table.settings(mine[0]),
    _mean(end['train_s'] for end in there),
    _mean(end['whole_s'] for end in there),
    f'{len(there)} of {len(mine)}',
    ', '.join(f'{r["bpb"]:.4f} after {r["train_s"]:.0f} s' for r in rest),
    mine[0]['device'],
    race_table.text(mine[0]),
    max(row['date'] for row in mine)[:10],
  ]


def _order(mine: list[race.Row]) -> tuple[int, float]:
  """Who got there with more seeds, then in less time."""
  ends = [race_ours.reached(row['curve'], row['target']) for row in mine]
  there = [end['train_s'] for end in ends if end]
  return len(mine) - len(there), statistics.fmean(there or [0.0])


def _mean(values: Iterable[float]) -> str:
  """The mean and half of its 95% interval; nothing of none."""
  found = list(values)
  if not found:
    return ''
  mean, half = ablations_table.interval(found)
  return f'{mean:.1f}' + (f' ± {half:.1f}' if len(found) > 1 else '')


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    allow_abbrev=False, description=(__doc__ or '').partition('\n')[0]
  )
  race.add_flags(parser)
  parser.set_defaults(every=25)
  parser.add_argument(
    '--target', type=float, default=_TARGET, help='bits per byte'
  )
  for name, seconds in _SECONDS.items():
    parser.add_argument(
      f'--{name}_seconds',
      type=float,
      default=seconds,
      help='on the clock, until its schedule ends',
    )
  parser.add_argument(
    '--output',
    type=pathlib.Path,
    default=record.OWN / 'speedrun.jsonl',
    help='of this machine: a run is a line',
  )
  parser.add_argument(
    '--page', action='store_true', help='writes the table of docs/speedrun.md'
  )
  return parser


if __name__ == '__main__':
  main()
