# SPDX-License-Identifier: Apache-2.0
"""The best learning rate by dial, from runs of `benchmarks.dial`.

Of a cell: loss = s_seed + k (x - x*)^2 with x = log lr, from the rates around
the best one; x* is the best rate. Over cells: x* = log PEAK + w log(width/1024)
+ b log(tokens of a step/131,072), the rule of `zaya_jax.config.presets.dial`,
whose exponents are fitted where both vary. There the loss is relative and k is
one for all cells, so that a cell whose best rate lies at the edge says what it
can. Intervals: cells drawn anew, with replacement. Along the dial layers are
width, so that w stands for both.
"""

import itertools
import math
from typing import Any

import numpy as np

from benchmarks import dial_cells
from zaya_jax.config.presets import dial as dial_lib

Row = dict[str, Any]
_NEAR = 4.01  # Times the best rate, up or down: beyond it is no parabola.
_DRAWS = 200
_WIDTH, _STEP = 1024, 131_072


def parabola(rows: list[Row]) -> tuple[float, float] | None:
  """The logarithm of the best rate, and the curvature k.

  Args:
    rows: of a cell, with lr, seed and bpb; a seed may come several times under
      several names.

  Returns:
    None if the loss has no lowest point among the rates around the best one.
  """
  near = _near(rows)
  if len({round(math.log(r['lr']), 6) for r in near}) < 3:
    return None
  x = np.log([r['lr'] for r in near])
  middle = np.mean(x)
  seeds = sorted({r['seed'] for r in near}, key=str)
  columns = [[float(r['seed'] == seed) for r in near] for seed in seeds]
  matrix = np.stack([*columns, x - middle, (x - middle) ** 2], axis=1)
  *_, slope, k = np.linalg.lstsq(matrix, [r['bpb'] for r in near])[0]
  if k <= 0:
    return None
  at = middle - slope / (2 * k)
  return (float(at), float(k)) if x.min() <= at <= x.max() else None


def point(rows: list[Row]) -> Row:
  """What a cell says: its size, its best loss, its best rate with interval.

  Args:
    rows: of a cell, none of which diverged.
  """
  by_factor: dict[float, list[Row]] = {}
  for row in rows:
    by_factor.setdefault(row['factor'], []).append(row)
  seeds = lambda found: len({row['seed'] for row in found})
  most = max(map(seeds, by_factor.values()))
  full = [found for found in by_factor.values() if seeds(found) == most]
  best = min(full, key=lambda found: np.mean([r['bpb'] for r in found]))
  losses = [r['bpb'] for r in best]
  names = (*dial_cells.CELL, 'width', 'layers')
  sizes = ('active', 'total', 'bytes', 'tokens', 'bytes_per_token')
  sizes += ('vocabulary', 'seq_len')
  found: Row = {name: best[0][name] for name in (*names, *sizes)}
  found |= {
    'context': found['seq_len'] * found['bytes_per_token'],
    'bpb': float(np.mean(losses)),
    'seeds': most,
    'spread': float(np.std(losses, ddof=1)) if most > 1 else None,
    'rule': rule_of(best[0]),
    'lr': None,
  }
  fitted = parabola(rows)
  if fitted:
    x, k = fitted
    drawn = [p[0] for r in _resamples(rows) if (p := parabola(r))]
    found['lr'] = math.exp(x)
    found['lr_range'] = _range(np.exp(drawn)) if drawn else None
    # What the rule as it stands costs beside the best rate.
    found['cost'] = k * (x - math.log(found['rule'])) ** 2
  return found


def rule_of(row: Row) -> float:
  """The rate of the rule as it is now, where the run was made by another."""
  return dial_lib.learning_rate(row['width'], row['layers'], _step(row))


def fit(cells: list[list[Row]]) -> Row:
  """PEAK and the exponents, with intervals, and how well the rule transfers.

  Args:
    cells: runs of each, none of which diverged.

  Returns:
    peak, width, step, each with its range; k, of relative losses; transfer, by
    dial: `off`, the mean of log2 of its best rates over those of the rule in
    use whose peak is fitted to all other dials, and `costs`, what that is worth
    in relative loss; now, the constants in use, and what they cost.

  Raises:
    ValueError: if there are too few cells.
  """
  fitted = [p for cell in cells if (p := parabola(_relative(cell)))]
  known = [cell for cell in cells if len({r['lr'] for r in _near(cell)}) > 1]
  sizes = _sizes(known) if known else np.empty((0, 2))
  widths, steps = (len(set(column)) for column in sizes.T)
  if not fitted or widths < 2 or steps < 2:
    raise ValueError(
      f'there are {len(fitted)} best rates within those tried, '
      f'{widths} width(s) and {steps} batch(es), and a rule needs '
      '1, 2 and 2: run more of --dials, --longer, or further --factors.'
    )
  k = float(np.median([curvature for _, curvature in fitted]))
  found = [_best(cell, k) for cell in known]
  constants = _rule(known, found)
  rng = np.random.default_rng(0)
  drawn = []
  for _ in range(_DRAWS):
    some = rng.choice(len(known), len(known))
    if np.ptp(sizes[some], axis=0).all():
      drawn.append(_rule([known[i] for i in some], [found[i] for i in some]))
  now = {
    'peak': dial_lib.PEAK,
    'width': dial_lib.WIDTH_EXPONENT + dial_lib.LAYERS_EXPONENT,
    'step': dial_lib.STEP_EXPONENT,
  }
  rules = [math.log(rule_of(cell[0])) for cell in known]
  off = np.array([x for x, _ in found]) - rules
  return {
    **constants,
    'k': k,
    'range': {name: _range([d[name] for d in drawn]) for name in constants},
    'transfer': _transfer(known, off, k),
    'now': {**now, 'costs': k * float(np.mean(off**2))},
  }


def _transfer(cells, off, k) -> dict[str, Row]:
  """By dial, how far and dear the rule is whose peak comes from all others."""
  dials = np.array([cell[0]['dial'] for cell in cells])
  found = {}
  for dial in sorted(set(dials)):
    mine = off[dials == dial]
    if len(mine) < len(off):
      mine = mine - np.mean(off[dials != dial])
    found[str(dial)] = {
      'off': float(np.mean(mine)) / math.log(2),
      'costs': k * float(np.mean(mine**2)),
    }
  return found


def _rule(cells, found) -> dict[str, float]:
  """Least squares of log rates, each as much as it is known."""
  x, weights = np.array(found).T
  matrix = np.column_stack([np.ones_like(x), _sizes(cells)])
  root = np.sqrt(weights)
  peak, width, step = np.linalg.lstsq(matrix * root[:, None], x * root)[0]
  return {'peak': math.exp(peak), 'width': float(width), 'step': float(step)}


def _sizes(cells) -> np.ndarray:
  """[cells, 2]: logarithms of width and tokens of a step, over the rule's."""
  return np.log([[c[0]['width'] / _WIDTH, _step(c[0]) / _STEP] for c in cells])


def _best(cell, k) -> tuple[float, float]:
  """The logarithm of the best rate for a curvature, and how well it is known.

  Of s_seed + k (x - x*)^2 what is left without k x^2 is a line in x.
  """
  rows = _near(_relative(cell))
  x = np.array([math.log(r['lr']) for r in rows])
  y = np.array([r['bpb'] for r in rows]) - k * x**2
  seeds = [r['seed'] for r in rows]
  columns = [[float(s == seed) for s in seeds] for seed in dict.fromkeys(seeds)]
  flat = np.array(columns).T
  inside = lambda v: v - flat @ np.linalg.lstsq(flat, v)[0]
  spread = float(inside(x) @ inside(x))
  return float(inside(x) @ inside(y)) / spread / (-2 * k), spread


def _relative(cell) -> list[Row]:
  """The runs with logarithms of their losses."""
  return [{**row, 'bpb': math.log(row['bpb'])} for row in cell]


def _near(rows) -> list[Row]:
  best = min(rows, key=lambda row: row['bpb'])['lr']
  return [r for r in rows if 1 / _NEAR <= r['lr'] / best <= _NEAR]


def _step(row) -> int:
  return row['tokens'] // row['steps']


def _resamples(rows: list[Row]) -> list[list[Row]]:
  """The cell with its seeds drawn anew: all ways, or some where many."""
  seeds = sorted({row['seed'] for row in rows})
  n = len(seeds)
  if n == 1:
    return []
  choices = (
    list(itertools.product(seeds, repeat=n))
    if n <= 3
    else [
      tuple(np.random.default_rng(i).choice(seeds, n)) for i in range(_DRAWS)
    ]
  )
  return [_drawn(rows, choice) for choice in choices]


def _drawn(rows, choice) -> list[Row]:
  return [
    {**row, 'seed': f'{place} {seed}'}
    for place, seed in enumerate(choice)
    for row in rows
    if row['seed'] == seed
  ]


def _range(values) -> list[float]:
  """From the 2.5th to the 97.5th percentile."""
  return [float(q) for q in np.percentile(values, (2.5, 97.5))]
