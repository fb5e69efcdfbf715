# SPDX-License-Identifier: Apache-2.0
"""Fits the scaling law of `zaya_jax.plan.law` to runs of `benchmarks.dial`.

    L = E + A / N^a + B / D^b,   N = active * (total / active)^g

As in Chinchilla (arXiv 2203.15556, appendix D.2) residuals are those of log L,
with Huber's loss of 1e-3, from several starts: of a grid of exponents those for
which E, A and B fit best. g is 0 where total over active parameters hardly
varies.
"""

import itertools
import math
from typing import Any

import numpy as np
from scipy import optimize

NAMES = ('E', 'A', 'a', 'B', 'b', 'g')
SIZES = ('active', 'total', 'bytes')
_HUBER = 1e-3
_LOW = (-20.0, -20.0, 0.02, -20.0, 0.02, 0.0)
_HIGH = (5.0, 10.0, 1.5, 10.0, 1.5, 1.0)
# Exponents a, b and g to start from, and how many of them.
_GRID = (np.linspace(0.1, 1, 7), np.linspace(0.1, 1, 7), (0.0, 0.2, 0.5))
_STARTS = 6
_VARIES = 1.3  # Times: what varies less decides no exponent.

Row = dict[str, Any]


def fit(points: list[Row], near: dict[str, float] | None = None) -> Row:
  """The constants, by name.

  Args:
    points: with active, total, bytes and bpb.
    near: constants to start from, in place of all starts.

  Raises:
    ValueError: in one sentence, if the points cannot tell the constants.
  """
  size = {name: np.log([p[name] for p in points]) for name in SIZES}
  loss = np.array([p['bpb'] for p in points], float)
  idle = size['total'] - size['active']
  with_g = np.ptp(idle) > math.log(_VARIES)
  if len(points) <= 5 + with_g:
    raise ValueError(
      f'{len(points)} sizes and lengths cannot tell {5 + with_g} constants: '
      'run more of --dials, or of --longer.'
    )
  if np.ptp(size['bytes'] - size['active']) < math.log(_VARIES):
    raise ValueError(
      'all runs have as much text for a parameter, so that size and text '
      'cannot be told apart: run --longer=0.5,1,2.'
    )
  n0, d0 = np.mean(size['active']), np.mean(size['bytes'])

  def residuals(theta):
    e, log_a, a, log_b, b, *g = theta
    n = size['active'] + (g[0] * idle if g else 0) - n0
    terms = [e + 0 * n, log_a - a * n, log_b - b * (size['bytes'] - d0)]
    return np.logaddexp.reduce(terms, axis=0) - np.log(loss)

  free = 5 + with_g
  bounds = (_LOW[:free], _HIGH[:free])
  best = None
  for start in _starts(size, loss, near, with_g):
    start = np.clip(start[:free], *bounds)
    found = optimize.least_squares(
      residuals, start, bounds=bounds, loss='huber', f_scale=_HUBER,
      x_scale=0.1, xtol=1e-8, ftol=1e-8, gtol=1e-8, max_nfev=300,
    )  # fmt: skip
    if best is None or found.cost < best.cost:
      best = found
  e, log_a, a, log_b, b, *g = best.x
  return dict(
    zip(
      NAMES,
      map(float, (
        math.exp(e), math.exp(log_a + a * n0), a, math.exp(log_b + b * d0), b,
        g[0] if g else 0.0,
      )),
      strict=True,
    )
  )  # fmt: skip


def _starts(size, loss, near, with_g):
  """Logarithms of E and of both terms at the middle size, and exponents."""
  idle = size['total'] - size['active']
  d = size['bytes'] - np.mean(size['bytes'])
  mine = lambda g: size['active'] + g * idle - np.mean(size['active'])
  if near:
    n0, d0 = np.mean(size['active']), np.mean(size['bytes'])
    e, log_a, log_b = (math.log(near[name]) for name in 'EAB')
    a, b = near['a'], near['b']
    return [(e, log_a - a * n0, a, log_b - b * d0, b, near['g'])]
  tried = []
  for a, b, g in itertools.product(*_GRID[:2], _GRID[2] if with_g else (0,)):
    terms = [np.ones_like(loss), np.exp(-a * mine(g)), np.exp(-b * d)]
    matrix = np.stack(terms, axis=1) / loss[:, None]  # Errors are relative.
    found, _ = optimize.nnls(matrix, np.ones_like(loss))
    e, log_a, log_b = np.log(np.maximum(found, 1e-3 * loss.min()))
    off = np.sum(np.abs(matrix @ found - 1))
    tried.append((off, (e, log_a, a, log_b, b, g)))
  return [start for _, start in sorted(tried)[:_STARTS]]


def predict(constants: Row, point: Row) -> float:
  """Bits per byte at a size and length, as `zaya_jax.plan.law` has it."""
  c = constants
  n = point['active'] * (point['total'] / point['active']) ** c['g']
  return c['E'] + c['A'] / n ** c['a'] + c['B'] / point['bytes'] ** c['b']


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
