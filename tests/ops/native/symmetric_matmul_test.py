# SPDX-License-Identifier: Apache-2.0
"""symmetric_matmul.hip, emulated, against float64; and mutants of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ops.newton_schulz import hip
from tests.support import quick
from tests.support.ops import native_build as build

SHAPES = (
  (1, 8),  # The least.
  (3, 7, 24),  # Less than a stage of depth, fewer rows than an MFMA.
  (2, 33, 72),  # A chunk of depth and a bit.
  (40, 256),  # Several chunks.
  (256, 32),  # One tile, one stage.
  (2, 257, 64),  # A row beyond the tile.
  (1, 520, 40),  # Six tiles, of which three on the diagonal.
  (11, 16, 8),  # More blocks than dies.
)
# Rounding of the result, and of sums in another order.
TOLERANCE = {'bfloat16': 2.0**-8, 'float16': 2.0**-11}
FILES = ('symmetric_matmul.hip', 'tile.h', 'wave.h')
MUTANTS = {
  'rows of the matrix instruction': (
    'kWave / kEdge * four + lane / kEdge',
    'four + lane / kEdge',
  ),
  'depth of an operand': (
    'half_of(of.b[step][j], half)',
    'half_of(of.b[step][j], 1)',
  ),
  'no barrier before the loop': (
    'put(0, 0);\n  __syncthreads();',
    'put(0, 0);',
  ),
  'no barrier before the second stage': (
    'fetch(next);\n    __syncthreads();',
    'fetch(next);',
  ),
  'no barrier before the next chunk': (
    'put(0, next);\n    multiply(1);\n    __syncthreads();',
    'put(0, next);\n    multiply(1);',
  ),
  'operands of another step': ('piece = 2 * next + ', 'piece = '),
  'operands of another stage': ('read(1, 0);', 'read(0, 0);'),
  'no mirror image': ('if (!whole) mirror[y] = bits[r];', ''),
  'no mirror image in whole tiles': (
    'if (whole && row < n) *reinterpret_cast<bits4*>(mirror + row) = bits;',
    '',
  ),
  'tail of the depth': (
    'inside ? pieces[2 * stage + i] : bits8{}',
    'pieces[2 * stage + i]',
  ),
  'tail of the rows': ('if (y < n && y >= column)', 'if (y >= column)'),
  'order of the blocks': ('blockIdx.x, gridDim.x)', 'blockIdx.x, 8)'),
  'matrix of the stack': ('matrix = item / tiles', 'matrix = 0'),
  'scale of another matrix': ('at.scale[matrix]', 'at.scale[0]'),
}

# With matrix instructions of 16 x 16; the first is right at 32 x 32.
MUTANTS_16 = {
  'rows of the matrix instruction': (
    'kWave / kEdge * four + lane / kEdge',
    'kWave / 32 * four + lane / kEdge',
  ),
  'depth of an operand': (
    'half_of(of.b[right][j], half)',
    'half_of(of.b[right][j], 1)',
  ),
  'rows of another quarter': ('wave.row + 64 + row', 'wave.row + row'),
  'operands of the next stage, too early': ('quarter == 3', 'quarter == 2'),
}
EVERY_MUTANT = [
  *((32, name) for name in MUTANTS),
  *((16, name) for name in MUTANTS_16),
]


def error(shape, dtype, beta=2.0) -> float:
  """Of the kernel; over the tolerance, so that 1 is the most allowed."""
  rng = np.random.default_rng(0)
  a, c = (
    rng.standard_normal(shape),
    rng.standard_normal((*shape[:-1], shape[-2])),
  )
  a, c = jnp.asarray(a, dtype), jnp.asarray(c + c.swapaxes(-1, -2), dtype)
  scale = jnp.asarray(rng.uniform(0.5, 2, shape[:-2]), jnp.float32)
  factors = {'alpha': 0.5, 'beta': beta, 'diagonal': 3.0}
  try:
    found = hip.symmetric_matmul(a, a, c, scale, **factors)
    found.block_until_ready()
  except jax.errors.JaxRuntimeError as fault:  # What the emulation found.
    assert 'zaya_ops: symmetric_matmul' in str(fault)
    return np.inf
  a, c, found = (np.asarray(x, np.float64) for x in (a, c, found))
  wanted = 0.5 * a @ a.swapaxes(-1, -2) + beta * c + 3 * np.eye(shape[-2])
  wanted *= np.asarray(scale, np.float64)[..., None, None]
  assert found.dtype == np.float64 and found.shape == wanted.shape
  if not np.array_equal(found, found.swapaxes(-1, -2)):
    return np.inf
  return np.abs(found - wanted).max() / np.abs(wanted).max() / TOLERANCE[dtype]


@pytest.mark.parametrize('dtype', TOLERANCE)
@pytest.mark.parametrize('shape', SHAPES, ids=str)
def test_product_is_that_of_float64(products, shape, dtype):
  assert error(shape, dtype) < 1


def test_other_matrix_is_not_read_without_a_factor(emulated):
  a = jnp.ones((16, 8), jnp.bfloat16)
  found = hip.symmetric_matmul(a, a, jnp.full((16, 16), jnp.nan, a.dtype))
  assert np.array_equal(np.asarray(found, np.float32), np.full((16, 16), 8.0))


def test_product_of_two_that_commute(emulated):
  rng = np.random.default_rng(0)
  x = rng.standard_normal((2, 40, 40))
  a = jnp.asarray(x + x.swapaxes(-1, -2), jnp.float16)
  b = hip.symmetric_matmul(a, a)
  found = np.asarray(hip.symmetric_matmul(a, b), np.float64)
  wanted = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
  assert np.abs(found - wanted).max() < 2e-3 * np.abs(wanted).max()


@pytest.mark.parametrize(
  'mutant',
  quick.only(
    EVERY_MUTANT,
    (32, 'no mirror image'),
    (16, 'rows of the matrix instruction'),
  ),
  ids=str,
)
def test_mutant_is_caught(emulated, monkeypatch, mutant):
  edge, name = mutant
  old, new = (MUTANTS if edge == 32 else MUTANTS_16)[name]
  file = next(f for f in FILES if old in (build.SOURCE / f).read_text())
  made = build.build(
    'cpu', (file, old, new), kernels=('symmetric_matmul',), edge=edge
  )
  monkeypatch.setenv('ZAYA_OPS_LIBRARY', str(made / 'libzaya_ops.so'))
  assert not all(error(shape, 'bfloat16') < 1 for shape in SHAPES)
