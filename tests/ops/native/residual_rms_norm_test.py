# SPDX-License-Identifier: Apache-2.0
"""residual_rms_norm.hip, emulated, against float64; and mutants of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ops.residual_rms_norm import hip
from tests.support import quick
from tests.support.ops import native_build as build

SHAPES = (
  (1, 1),  # The least.
  (7, 21),  # Rows that are padded; more of them than blocks.
  (5, 520),  # Two waves, one nearly empty.
  (4, 2048),  # That of ZAYA1: four full waves.
  (2, 4096),  # The longest.
)
TOLERANCE = {'float32': 2e-6, 'bfloat16': 2.0**-8}
FILE = 'residual_rms_norm.hip'
MUTANTS = {
  'wrong tail of the sum': ('mine.inside ? sum : 0', 'sum'),
  'wrong tail of the sum, back': ('mine.inside ? dot : 0', 'dot'),
  'threads behind the row': ('column = inside ? column : 0;', ''),
  'mean with the padding': ('1.f / columns', '1.f / int(sizes[1])'),
  'no barrier': ('__syncthreads();', ''),
  'one place for all turns': ('shared.sums[turn % 2]', 'shared.sums[0]'),
  'one wave': ('total += sums[i]', 'total = sums[i]'),
  'row ahead': (
    'branch.get(h);\n    x.get(z);\n    fetch(row + gridDim.x);',
    'fetch(row + gridDim.x);\n    branch.get(h);\n    x.get(z);',
  ),
}

IN_ORDER = (None, None, None)  # No rows of the branch elsewhere.


def draw(shape, dtype):
  """The arguments, and the gradients of both results."""
  rng = np.random.default_rng(0)
  normal = lambda *s: jnp.asarray(rng.standard_normal(s), jnp.float32)
  vectors = [normal(shape[1]) + mean for mean in (1, 0, 1, 0, 1)]
  args = (normal(*shape).astype(dtype), normal(*shape), *vectors)
  return args, (normal(*shape), normal(*shape).astype(dtype))


def wanted(args, d_results):
  """Results and gradients in float64."""
  h, x, s_h, b_h, s_r, b_r, scale, d_new, dy = (
    np.asarray(a, np.float64) for a in (*args, *d_results)
  )
  new = (h + b_h) * s_h + (x + b_r) * s_r
  rstd = 1 / np.sqrt(np.mean(new**2, -1, keepdims=True) + 1e-5)
  unit, dn = new * rstd, dy * scale
  dz = d_new + rstd * (dn - unit * np.mean(dn * unit, -1, keepdims=True))
  total = dz.sum(0)
  of = lambda a: (dz * a).sum(0)
  return (
    *(new, unit * scale, dz * s_h, dz * s_r),
    *(of(h + b_h), s_h * total, of(x + b_r), s_r * total, (dy * unit).sum(0)),
  )


def error(shape, dtype) -> float:
  """The largest of all results, over the tolerance: 1 is the most allowed."""
  args, d_results = draw(shape, dtype)
  run = lambda *a: hip.residual_rms_norm(*a, *IN_ORDER, eps=1e-5, dtype=dtype)
  try:
    results, vjp = jax.vjp(run, *args)
    found = [np.asarray(a, np.float64) for a in (*results, *vjp(d_results))]
  except jax.errors.JaxRuntimeError as fault:  # What the emulation found.
    assert 'zaya_ops: residual_rms_norm' in str(fault)
    return np.inf
  off = [
    np.abs(a - b).max() / max(np.abs(b).max(), 1)
    for a, b in zip(found, wanted(args, d_results), strict=True)
  ]
  return np.inf if np.isnan(off).any() else max(off) / TOLERANCE[dtype]


@pytest.mark.parametrize('dtype', TOLERANCE)
@pytest.mark.parametrize('shape', SHAPES, ids=str)
def test_results_and_gradients_are_those_of_float64(emulated, shape, dtype):
  assert error(shape, dtype) < 1


def test_no_rows(emulated):
  args, d_results = draw((0, 16), 'float32')
  run = lambda *a: hip.residual_rms_norm(
    *a, *IN_ORDER, eps=1e-5, dtype='float32'
  )
  results, vjp = jax.vjp(run, *args)
  grads = vjp(d_results)
  assert all(r.shape == (0, 16) for r in (*results, *grads[:2]))
  assert not any(np.any(g) for g in grads[2:])


def test_what_it_cannot_take(emulated):
  vectors = [None] * 5
  reason = lambda *rows, **dtype: hip.unsupported(
    *(*rows, *vectors, *IN_ORDER), **dtype
  )
  row, wide = jnp.zeros((1, 8)), jnp.zeros((1, 4097))
  half = row.astype(jnp.bfloat16)
  assert reason(row, row, dtype=row.dtype) is None
  assert reason(half, row, dtype=half.dtype) is None
  assert 'not float32' in reason(half, half, dtype=half.dtype)
  assert 'not both' in reason(half, row, dtype=row.dtype)
  assert 'longer than 4096' in reason(wide, wide, dtype=wide.dtype)
  taken = hip.unsupported(row, row, *vectors, row, row, row, dtype=row.dtype)
  assert taken == 'it takes no branch in another order'


@pytest.mark.parametrize('mutant', quick.only(MUTANTS, 'no barrier'))
def test_mutant_is_caught(emulated, monkeypatch, mutant):
  change = (FILE, *MUTANTS[mutant])
  made = build.build('cpu', change, kernels=('residual_rms_norm',))
  monkeypatch.setenv('ZAYA_OPS_LIBRARY', str(made / 'libzaya_ops.so'))
  assert not all(error(shape, 'float32') < 1 for shape in SHAPES)
