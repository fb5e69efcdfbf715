# SPDX-License-Identifier: Apache-2.0
"""The best learning rate by dial, from runs of `benchmarks.dial`.

Of a cell: loss = s_seed + k (x - x*)^2 with x = log lr, from the rates around
the best one; x* is the best rate. Over cells: x* = log PEAK + w log(width/1024)
+ t log(longer), the rule of `zaya_jax.config.presets.dial`, whose exponents are
fitted where width and length vary. Intervals: seeds drawn anew, with
replacement. Along the dial layers are width, so that w stands for both.
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
_WIDTH = 1024


def parabola(rows: list[Row]) -> tuple[float, float] | None:
  """The logarithm of the best rate, and the curvature k.

  Args:
    rows: of a cell, with lr, seed and bpb; a seed may come several times under
      several names.

  Returns:
    None if the loss has no lowest point among the rates around the best one.
  """
  best = min(rows, key=lambda row: row['bpb'])['lr']
  near = [r for r in rows if 1 / _NEAR <= r['lr'] / best <= _NEAR]
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
    'rule': best[0]['lr'] / best[0]['factor'],
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


def fit(cells: list[list[Row]]) -> Row:
  """PEAK and the exponents, with intervals, and how well they predict.

  Returns:
    peak, width, tokens, each with its range (None: not fitted, as nothing
    varies); scatter, the root mean square of log2 of a best rate over the
    rule's; held_out, the rate predicted for the largest dial from all others,
    over its best.

  Raises:
    ValueError: if there are too few cells with a best rate.
  """
  known = [(cell, p) for cell in cells if (p := parabola(cell))]
  widths = {cell[0]['width'] for cell, _ in known}
  if len(widths) < 2:
    raise ValueError(
      f'best rates are known at {len(widths)} width(s), and a rule needs 2: '
      'run more of --dials, or further --factors.'
    )
  x = [p[0] for _, p in known]
  constants = _rule([cell[0] for cell, _ in known], x)
  several = any(len({r['seed'] for r in cell}) > 1 for cell, _ in known)
  drawn = []
  for choice in _draws([cell for cell, _ in known]) if several else ():
    pairs = [(cell[0], p[0]) for cell in choice if (p := parabola(cell))]
    if len({cell['width'] for cell, _ in pairs}) >= 2:
      drawn.append(_rule(*zip(*pairs, strict=True)))
  predicted = [_predict(constants, cell[0]) for cell, _ in known]
  wrong = (np.array(x) - predicted) / math.log(2)
  largest = max(range(len(known)), key=lambda i: known[i][0][0]['active'])
  rest = [i for i in range(len(known)) if i != largest]
  held_out = None
  if len({known[i][0][0]['width'] for i in rest}) >= 2:
    others = _rule([known[i][0][0] for i in rest], [x[i] for i in rest])
    off = _predict(others, known[largest][0][0]) - x[largest]
    held_out = math.exp(off)
  return {
    **constants,
    'range': {
      name: _range([d[name] for d in drawn])
      for name in constants
      if drawn and constants[name] is not None
    },
    'scatter': float(np.sqrt(np.mean(wrong**2))),
    'held_out': held_out,
    'held_out_dial': known[largest][0][0]['dial'],
    'now': {
      'peak': dial_lib.PEAK,
      'width': dial_lib.WIDTH_EXPONENT,
      'tokens': dial_lib.TOKENS_EXPONENT,
    },
  }


def _rule(cells, x) -> dict[str, float | None]:
  """Least squares of log rates; an exponent of what does not vary is None."""
  width = np.log([cell['width'] / _WIDTH for cell in cells])
  longer = np.log([cell['longer'] for cell in cells])
  x = np.array(x, float)
  varies = np.ptp(longer) > 0.1
  columns = [np.ones_like(width), width]
  if varies:
    columns.append(longer)
  else:
    x = x - dial_lib.TOKENS_EXPONENT * longer
  found = np.linalg.lstsq(np.stack(columns, axis=1), x)[0]
  return {
    'peak': math.exp(found[0]),
    'width': float(found[1]),
    'tokens': float(found[2]) if varies else None,
  }


def _predict(rule, cell) -> float:
  tokens = (
    dial_lib.TOKENS_EXPONENT if rule['tokens'] is None else rule['tokens']
  )
  return (
    math.log(rule['peak'])
    + rule['width'] * math.log(cell['width'] / _WIDTH)
    + tokens * math.log(cell['longer'])
  )


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


def _draws(cells):
  """All cells, each with its seeds drawn anew, _DRAWS times."""
  rng = np.random.default_rng(0)
  for _ in range(_DRAWS):
    yield [
      _drawn(cell, rng.choice(seeds, len(seeds)))
      for cell in cells
      for seeds in [sorted({row['seed'] for row in cell})]
    ]


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
