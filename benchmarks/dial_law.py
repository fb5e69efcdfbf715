# SPDX-License-Identifier: Apache-2.0
"""Fits the scaling law of `zaya_jax.plan.law` to runs of `benchmarks.dial`.

    L = (E + A / N^a + B / D^b) / W^c,   N = active * (total / active)^g

As in Chinchilla (arXiv 2203.15556, appendix D.2) residuals are those of log L,
with Huber's loss of 1e-3, from several starts: of a grid of exponents those for
which E, A and B fit best. g is 0 where total over active parameters hardly
varies, c where the bytes of a row hardly do.
"""

import itertools
import math
from typing import Any

import numpy as np
from scipy import optimize

from zaya_jax.plan import law as law_lib

NAMES = ('E', 'A', 'a', 'B', 'b', 'g', 'c')
SIZES = ('active', 'total', 'bytes', 'context')
_HUBER = 1e-3
_LOW = (-20.0, -20.0, 0.02, -20.0, 0.02, 0.0, 0.0)
_HIGH = (5.0, 10.0, 1.5, 10.0, 1.5, 1.0, 1.0)
# Exponents to start from, and how many of them.
_GRID = {
  'a': np.linspace(0.1, 1, 7),
  'b': np.linspace(0.1, 1, 7),
  'g': (0.0, 0.2, 0.5),
  'c': (0.0, 0.15),
}
_STARTS = 6
_VARIES = 1.3  # Times: what varies less decides no exponent.

Row = dict[str, Any]


def fit(points: list[Row], near: dict[str, float] | None = None) -> Row:
  """The constants, by name.

  Args:
    points: with active, total, bytes, context and bpb.
    near: constants to start from, in place of all starts.

  Raises:
    ValueError: in one sentence, if the points cannot tell the constants.
  """
  size = {name: np.log([p[name] for p in points]) for name in SIZES}
  loss = np.array([p['bpb'] for p in points], float)
  idle = size['total'] - size['active']
  n0, d0 = np.mean(size['active']), np.mean(size['bytes'])
  size = {
    'n': size['active'] - n0,
    'd': size['bytes'] - d0,
    'idle': idle,
    'w': size['context'] - math.log(1024),
  }
  varies = lambda name: np.ptp(size[name]) > math.log(_VARIES)
  free = [
    n for n in NAMES if n not in 'gc' or varies({'g': 'idle', 'c': 'w'}[n])
  ]
  if len(points) <= len(free):
    raise ValueError(
      f'{len(points)} sizes and lengths cannot tell {len(free)} constants: '
      'run more of --dials, or of --longer.'
    )
  if np.ptp(size['d'] - size['n']) < math.log(_VARIES):
    raise ValueError(
      'all runs have as much text for a parameter, so that size and text '
      'cannot be told apart: run --longer=0.5,1,2.'
    )

  def residuals(theta):
    t = dict.fromkeys(NAMES, 0.0) | dict(zip(free, theta, strict=True))
    n = size['n'] + t['g'] * idle
    terms = [t['E'] + 0 * n, t['A'] - t['a'] * n, t['B'] - t['b'] * size['d']]
    sums = np.logaddexp.reduce(terms, axis=0) - t['c'] * size['w']
    return sums - np.log(loss)

  bounds = [[side[NAMES.index(n)] for n in free] for side in (_LOW, _HIGH)]
  best = None
  for start in _starts(size, loss, near and _logs(near, n0, d0), free):
    found = optimize.least_squares(
      residuals, np.clip([start[n] for n in free], *bounds), bounds=bounds,
      loss='huber', f_scale=_HUBER, x_scale=0.1, xtol=1e-8, ftol=1e-8,
      gtol=1e-8, max_nfev=300,
    )  # fmt: skip
    if best is None or found.cost < best.cost:
      best = found
  found = dict.fromkeys(NAMES, 0.0) | dict(zip(free, best.x, strict=True))
  found['A'] += found['a'] * n0
  found['B'] += found['b'] * d0
  return {
    name: float(math.exp(value) if name in 'EAB' else value)
    for name, value in found.items()
  }


def _logs(constants, n0, d0):
  """Constants as they are fitted: logarithms, at the middle size."""
  found = {n: math.log(v) if n in 'EAB' else v for n, v in constants.items()}
  found['A'] -= found['a'] * n0
  found['B'] -= found['b'] * d0
  return found


def _starts(size, loss, near, free):
  """Logarithms of E and of both terms at the middle size, and exponents."""
  if near:
    return [near]
  tried = []
  grid = [_GRID[name] if name in free else (0.0,) for name in _GRID]
  for values in itertools.product(*grid):
    t = dict(zip(_GRID, values, strict=True))
    n = size['n'] + t['g'] * size['idle']
    terms = [np.ones_like(loss), np.exp(-t['a'] * n)]
    terms.append(np.exp(-t['b'] * size['d']))
    # Errors are relative.
    weight = np.exp(-t['c'] * size['w']) / loss
    matrix = np.stack(terms, axis=1) * weight[:, None]
    found, _ = optimize.nnls(matrix, np.ones_like(loss))
    logs = np.log(np.maximum(found, 1e-3 * loss.min()))
    off = float(np.sum(np.abs(matrix @ found - 1)))
    tried.append((off, len(tried), dict(zip('EAB', logs, strict=True)) | t))
  return [start for *_, start in sorted(tried)[:_STARTS]]


def predict(constants: Row, point: Row) -> float:
  """Bits per byte at a size and length, as `zaya_jax.plan.law` has it."""
  return law_lib.loss(constants, point)


def summary(points: list[Row]) -> Row:
  """The law, its errors, and what the largest run was predicted as.

  Returns:
    constants; rms, of relative residuals; held_out, of the run with most
    FLOPs: predicted, measured, error, constants, of all other runs; left_out,
    the relative error at each run from all others.

  Raises:
    ValueError: as `fit`, also of the runs without the largest.
  """
  largest = max(points, key=lambda p: (p['active'] * p['tokens'], p['total']))
  rest = [p for p in points if p is not largest]
  constants = fit(points)
  before = fit(rest)
  error = lambda found, p: predict(found, p) / p['bpb'] - 1
  left_out = [
    error(fit([q for q in points if q is not p], constants), p) for p in points
  ]
  return {
    'constants': constants,
    'rms': float(np.sqrt(np.mean([error(constants, p) ** 2 for p in points]))),
    'held_out': {
      'predicted': predict(before, largest),
      'measured': largest['bpb'],
      'error': error(before, largest),
      'constants': before,
      **{key: largest[key] for key in ('dial', 'longer', 'experts')},
    },
    'left_out': left_out,
  }
