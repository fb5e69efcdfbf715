# SPDX-License-Identifier: Apache-2.0
"""The experts' kernels, emulated, against float64; and mutants of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ops.experts import hip
from tests.support import quick
from tests.support.ops import native_build as build

# Rows of each expert and, last, of those without one; D; F.
CASES = (
  ((1, 0), 8, 8),  # The least.
  ((130, 0, 3, 5), 24, 136),  # A row beyond a wave, two tiles of columns.
  ((2, 257, 0), 72, 16),  # A row beyond the tile; a chunk of depth and a bit.
  ((0, 70, 9), 264, 8),  # Several chunks; rows that end between pieces.
)
TOLERANCE = 2.0**-8  # Of the largest value: rounding of the result.
KERNELS = ('grouped_matmul', 'experts_d_weights')
FILES = (*(f'{name}.hip' for name in KERNELS), 'tile.h', 'wave.h')
MUTANTS = {
  'depth of what lies along': (
    'inside ? pieces[2 * stage + i] : bits8{}',
    'pieces[2 * stage + i]',
  ),
  'depth of what lies across': (
    'i < left ? pieces[i][row] : 0',
    'pieces[i][row]',
  ),
  'no barrier': ('fetch(next);\n    __syncthreads();', 'fetch(next);'),
  'stage of the other waves': ('return threadIdx.x / 256;', 'return 0;'),
  'end of the expert': (
    'item.end = tiles.end[place];',
    'item.end = tiles.end[place] - 1;',
  ),
  'end of the expert in the weights': (
    '[expert + 1] - first;',
    '[expert + 1] - first + 1;',
  ),
  'waves without rows': (
    'return first + wave.column < end;',
    'return wave.column == 0;',
  ),
  'channels behind the last': (
    'again = n - 8 + (i & 7);',
    'again = n - 8;',
  ),
  'another expert': ('w += size_t(item.expert) * depth * columns;', ''),
  'rows without an expert': ('item.expert < tiles.experts;', 'true;'),
  'gate is up': (
    'sums.four(four, own), up = sums.four(four + kFours / 2, own)',
    'sums.four(four + kFours / 2, own), up = sums.four(four, own)',
  ),
  'place of the token': (
    'at.order[item.row(wave.column_of(own))];',
    'item.row(wave.column_of(own));',
  ),
}


def expected(x, order, counts, gate_up, down, dy, dh):
  """Of each product of `found`, in float64."""
  starts = np.cumsum([0, *counts])
  experts = range(len(counts) - 1)
  rows = [slice(starts[e], starts[e + 1]) for e in experts]
  slopes, a = np.zeros(dh.shape), np.zeros((dh.shape[0], dh.shape[1] // 2))
  y, d_a, d_x = np.zeros(x.shape), np.zeros(a.shape), np.zeros(x.shape)
  d_w = np.zeros(gate_up.shape)
  for e, row in zip(experts, rows, strict=True):
    gate, up = np.split(x[order[row]] @ gate_up[e], 2, axis=-1)
    sigmoid = 1 / (1 + np.exp(-gate))
    slope = up * sigmoid * (1 + gate * (1 - sigmoid))
    slopes[row] = np.concatenate([slope, gate * sigmoid], axis=-1)
    a[row] = gate * sigmoid * up
    y[order[row]] = dh[row, : a.shape[1]] @ down[e]
    d_a[row] = dy[row] @ down[e].T
    d_x[order[row]] = dh[row] @ gate_up[e].T
    d_w[e] = dy[row].T @ dh[row]
  d_h = np.concatenate([d_a, d_a], axis=-1) * dh
  return a, slopes, y, d_h, d_x, d_w


def found(x, order, starts, gate_up, down, dy, dh):
  """The products, each of given inputs: dh also as slopes and as a."""
  places = order, starts
  a, slopes = hip.up(x, places, gate_up, save=True)
  half = dh[:, : a.shape[1]]
  return (
    a,
    slopes,
    hip.matmul(half, places, down),
    hip.d_up(dy, dh, places, down),
    hip.matmul(dh, places, gate_up, transposed=True),
    hip.d_weights(dy, dh, places),
  )


def draw(counts, d, f):
  """Random arguments of `found`, in bfloat16."""
  rng = np.random.default_rng(0)
  t, e = sum(counts), len(counts) - 1
  normal = lambda *s: jnp.asarray(rng.standard_normal(s), jnp.bfloat16)
  order = jnp.asarray(rng.permutation(t), jnp.int32)
  starts = jnp.asarray(np.cumsum([0, *counts[:-1]]), jnp.int32)
  matrices = normal(e, d, 2 * f) * 0.25, normal(e, f, d)
  return normal(t, d), order, starts, *matrices, normal(t, d), normal(t, 2 * f)


def error(case) -> float:
  """The largest of all products, over the tolerance: 1 is the most allowed."""
  args = draw(*case)
  try:
    results = [np.asarray(r, np.float64) for r in found(*args)]
  except jax.errors.JaxRuntimeError as fault:  # What the emulation found.
    assert 'zaya_ops: experts_' in str(fault)
    return np.inf
  x, order, _, *rest = args
  double = lambda a: np.asarray(a, np.float64)
  wanted = expected(double(x), np.asarray(order), case[0], *map(double, rest))
  off = [
    np.abs(a - b).max() / max(np.abs(b).max(), 1e-3)
    for a, b in zip(results, wanted, strict=True)
  ]
  return np.inf if np.isnan(off).any() else max(off) / TOLERANCE


@pytest.mark.parametrize('case', CASES, ids=str)
def test_products_are_those_of_float64(products, case):
  assert error(case) < 1


def test_what_it_cannot_take(emulated):
  half, single = jnp.zeros((1, 8), jnp.bfloat16), jnp.zeros((1, 8))
  assert hip.unsupported(half, None, half, half) is None
  assert 'bfloat16, not float32' in hip.unsupported(
    single, None, single, single
  )
  assert 'bfloat16, float32' in hip.unsupported(single, None, half, half)


@pytest.mark.parametrize('mutant', quick.only(MUTANTS, 'no barrier'))
def test_mutant_is_caught(emulated, monkeypatch, mutant):
  old, new = MUTANTS[mutant]
  file = next(f for f in FILES if old in (build.SOURCE / f).read_text())
  made = build.build('cpu', (file, old, new), kernels=KERNELS)
  monkeypatch.setenv('ZAYA_OPS_LIBRARY', str(made / 'libzaya_ops.so'))
  assert not all(error(case) < 1 for case in CASES)
