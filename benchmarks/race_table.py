# SPDX-License-Identifier: Apache-2.0
"""Runs of `benchmarks.race` for people: a line of each, and which count."""

from collections.abc import Iterator
from typing import Any

from benchmarks import race_ours, texts

Row = dict[str, Any]

# What all seeds and rates of a program have in common.
_CELL = (
  'program', 'preset', 'flags', 'shape', 'seconds', 'target', 'device',
)  # fmt: skip


def line(row: Row) -> str:
  """A run for people."""
  end = race_ours.reached(row['curve'], row['target'])
  return (
    f'{row["program"]:<9} {row["shape"]:<7} lr {row["lr"]:<7g} seed '
    f'{row["seed"]}  {row["steps"]:6,} steps {row["train_s"]:6.1f} of '
    f'{row["seconds"]:g} s  {epochs(row):.2f} epochs  {row["bpb"]:.4f} bits '
    'per byte'
    + (f', {row["target"]:g} at {end["train_s"]:.1f} s' if end else '')
    + ('' if row['counts'] else '  too long: does not count')
  )


def epochs(row: Row) -> float:
  """How often a run read the text: who reads it twice learns it by heart."""
  return row['tokens'] / row['train_tokens']


def groups(rows: list[Row]) -> Iterator[list[Row]]:
  """The runs of each program at its full time and best rate, by seed.

  Those of another text or GPU are other ones.

  Args:
    rows: of one or several outputs.
  """
  rows = [row for row in rows if row['counts']]
  cells = {_cell(row): None for row in rows}
  for cell in cells:
    mine = [row for row in rows if _cell(row) == cell]
    by_rate: dict[float, dict[int, Row]] = {}
    for row in mine:
      by_rate.setdefault(row['lr'], {})[row['seed']] = row
    most = max(map(len, by_rate.values()))
    full = [seeds for seeds in by_rate.values() if len(seeds) == most]
    best = min(full, key=lambda seeds: min(r['bpb'] for r in seeds.values()))
    yield [best[seed] for seed in sorted(best)]


def _cell(row: Row) -> tuple[Any, ...]:
  return *(row[key] for key in _CELL), texts.of(row)


def text(row: Row) -> str:
  """Which text a run has read: the first digits of its hash."""
  return texts.of(row)[0][:8]


def settings(row: Row) -> str:
  """Of a run, what is not its program or seed."""
  if row['program'] == race_ours.NAME:
    return ' '.join([row['preset'], row['flags']]).strip() + f', {row["lr"]:g}'
  return f'{row["shape"]}, {row["lr"]:g}'
