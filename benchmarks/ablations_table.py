# SPDX-License-Identifier: Apache-2.0
"""The table of `benchmarks.ablations`: means, intervals, agreement."""

import math
import statistics
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks import ablations_variants as variants

# Student's t at 97.5% by degrees of freedom.
_T = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365}
SPEED = 'speed'  # The budget of the short runs that say what a step takes.
_HEAD = (
  'variant',
  'rate',
  'bits per byte',
  'over the preset',
  'entropy at 100, 400',
  'ms a step',
  'M tokens',
  'what the reports say',
  'here',
)


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
  """Lines of Markdown, one table for each preset and budget.

  Args:
    rows: of `ablations`, one a run.
  """
  for preset, budget in dict.fromkeys((r['preset'], r['budget']) for r in rows):
    if budget == SPEED:
      continue
    here = [r for r in rows if (r['preset'], r['budget']) == (preset, budget)]
    speed = {
      r['variant']: r['step_s']
      for r in rows
      if (r['preset'], r['budget']) == (preset, SPEED)
    }
    yield f'`{preset}`, {budget} each:'
    yield ''
    yield f'| {" | ".join(_HEAD)} |'
    yield '|' + ' --- |' * len(_HEAD)
    base = best(here, variants.BASE)
    for variant in dict.fromkeys(r['variant'] for r in here):
      cells = _cells(variant, best(here, variant), base, speed.get(variant))
      yield f'| {" | ".join(cells)} |'
    yield ''


def alike(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
  """Whole runs that can be compared.

  Raises:
    SystemExit: if they are of several presets, budgets or devices.
  """
  rows = [row for row in rows if row['budget'] != SPEED]
  kinds = {(row['preset'], row['budget'], row['device']) for row in rows}
  if len(kinds) != 1:
    raise SystemExit(f'one preset, budget and device, not {sorted(kinds)}')
  return rows


def line(row: dict[str, Any]) -> str:
  """A run for people."""
  bpb = 'diverged' if row['bpb'] is None else f'{row["bpb"]:.4f} bits per byte'
  return (
    f'{row["budget"]:<10} {row["variant"]:<20} lr x{row["lr"]:<5g} seed '
    f'{row["seed"]}  {bpb}  {row["steps"]:,} steps of '
    f'{1e3 * row["step_s"]:.1f} ms  {row["wall_s"]:.0f} s'
  )


def best(rows: list[dict[str, Any]], variant: str) -> dict[int, dict[str, Any]]:
  """By seed the runs of a variant with its best learning rate on seed 0."""
  mine = [r for r in rows if r['variant'] == variant and r['bpb'] is not None]
  first = [r for r in mine if r['seed'] == 0]
  if not first:
    return {}
  lr = min(first, key=lambda r: r['bpb'])['lr']
  return {r['seed']: r for r in mine if r['lr'] == lr}


def interval(values: Iterable[float]) -> tuple[float, float]:
  """The mean and half of its 95% interval; NaN of one value."""
  values = list(values)
  n = len(values)
  if n < 2:
    return statistics.fmean(values), math.nan
  t = _T.get(n - 1, 1.96 + 2.8 / (n - 1))
  return statistics.fmean(values), t * statistics.stdev(values) / n**0.5


def verdict(difference: float, half: float, lower: bool | None) -> str:
  """Whether a difference, variant minus preset, agrees with the reports."""
  if lower is None or math.isnan(half):
    return '—'
  if abs(difference) <= half:
    return 'within the noise'
  return 'agrees' if (difference > 0) == lower else 'disagrees'


def _cells(variant, mine, base, step_s) -> list[str]:
  if not mine:
    return [variant, *['—'] * (len(_HEAD) - 1)]
  mean, half = interval(r['bpb'] for r in mine.values())
  both = sorted(mine.keys() & base.keys())
  over, spread = math.nan, math.nan
  if both:
    over, spread = interval(mine[s]['bpb'] - base[s]['bpb'] for s in both)
  group = variants.group_of(variant)
  row = mine[min(mine)]
  return [
    variant,
    f'x{row["lr"]:g}',
    number(mean, half),
    number(over, spread, '+') if group else '—',
    ', '.join(_entropy(mine.values(), step) for step in (100, 400)),
    f'{1e3 * step_s:.1f}' if step_s else '—',
    f'{row["tokens"] / 1e6:.1f}',
    group.says if group else '',
    verdict(over, spread, group.lower) if group else '',
  ]


def number(mean: float, half: float, sign: str = '') -> str:
  """A mean and half of its interval, for people."""
  return f'{mean:{sign}.4f} ± {"?" if math.isnan(half) else f"{half:.4f}"}'


def _entropy(rows, step):
  """The mean at a step over seeds; — where no run has it, or no router."""
  points = [p for r in rows for p in r['curve'] if p[0] == step]
  found = [entropy for _, _, entropy, _ in points if entropy is not None]
  return f'{statistics.fmean(found):.3f}' if found else '—'
