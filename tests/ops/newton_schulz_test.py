# SPDX-License-Identifier: Apache-2.0
"""Newton-Schulz against what it does to singular values, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ops
from tests import close

SHAPES = {'wide': (4, 9), 'tall': (9, 4), 'square': (6, 6), 'row': (1, 5)}


def matrix(shape, seed=0):
  return jax.random.normal(jax.random.key(seed), shape)


def specification(x, steps):
  """U p(p(...(S))) V^T: the quintic only ever changes singular values."""
  u, s, vt = np.linalg.svd(np.asarray(x, np.float64), full_matrices=False)
  s /= np.linalg.norm(s)
  for _ in range(steps):
    s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
  return (u * s) @ vt


@pytest.mark.parametrize('steps', [1, 5])
@pytest.mark.parametrize('name', SHAPES)
def test_equals_the_polynomial_of_the_singular_values(name, steps):
  x = matrix(SHAPES[name])
  found = ops.newton_schulz(x, steps=steps)
  # Each step can grow an error by the slope of the quintic at 0, 3.4.
  tolerance = close.FLOAT32 * 3.5 ** (steps - 1)
  close.assert_close(found, specification(x, steps), tolerance)


@pytest.mark.parametrize('name', SHAPES)
def test_result_is_about_orthogonal(name):
  found = np.asarray(ops.newton_schulz(100 * matrix(SHAPES[name])))
  values = np.linalg.svd(found, compute_uv=False)
  assert 0.6 < values.min() and values.max() < 1.3


def test_each_matrix_of_a_stack_is_treated_alone():
  x = jnp.stack([matrix((3, 5), seed) * 10**seed for seed in range(4)])
  stacked = ops.newton_schulz(x.reshape(2, 2, 3, 5)).reshape(4, 3, 5)
  for one, found in zip(x, stacked, strict=True):
    close.assert_close(found, ops.newton_schulz(one), close.FLOAT32_DEEP)


def test_zero_stays_zero():
  x = jnp.zeros((2, 3, 4)).at[1].set(matrix((3, 4)))
  found = ops.newton_schulz(x)
  assert not np.any(found[0])
  assert np.isfinite(found).all()


def test_bfloat16_iteration_gives_the_type_of_the_input():
  x = matrix((6, 9))
  found = ops.newton_schulz(x, dtype=jnp.bfloat16)
  assert found.dtype == jnp.float32
  # Five iterations in 8 bits, each of which can grow what came before.
  close.assert_close(found, specification(x, 5), 5 * close.BFLOAT16)


def test_vectors_are_refused():
  with pytest.raises(ValueError, match=r'needs \[..., m, n\]'):
    ops.newton_schulz(jnp.zeros(3))
