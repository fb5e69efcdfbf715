# SPDX-License-Identifier: Apache-2.0
"""The router of single tokens against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ops.router import reference
from ops.router.triton import one

T, R, X, EPS = 16, 64, 17, 1e-5
NAMES = 'own previous down_bias eda norm fc1 fc1_bias fc2 fc2_bias out balance'


def inputs():
  rng = np.random.default_rng(0)
  shapes = (T, R), (T, R), (R,), (R,), (R,), (R, R), (R,), (R, R), (R,), (X, R)
  found = [rng.standard_normal(s).astype(np.float32) for s in (*shapes, (X,))]
  for i in (5, 7, 9):  # Matrices: else one class has all.
    found[i] *= R**-0.5
  found[9] *= 4
  found[-1] *= 0.3
  found[-1][-1] = -1.0  # As the skip class begins.
  return dict(zip(NAMES.split(), found, strict=True))


def expected(given):
  """The reference, with a first product that only passes `own` on."""
  with jax.enable_x64(True):
    wide = {k: jnp.asarray(v, jnp.float64) for k, v in given.items()}
    matrices = {k: wide[k].T for k in ('fc1', 'fc2', 'out')}
    own, previous, *rest = {**wide, **matrices}.values()
    choice, weight, _, state = reference.router(
      own[None], previous[None], jnp.eye(R), *rest, eps=EPS
    )
    return [np.asarray(a[0]) for a in (choice, weight, state)]


def test_equals_the_reference():
  given = inputs()
  found = jax.jit(lambda *a: one.router(*a, eps=EPS))(*given.values())
  choice, weight, state = expected(given)
  assert np.array_equal(found[0], choice) and len(set(choice.tolist())) > 1
  np.testing.assert_allclose(found[1], weight, rtol=2e-6)
  np.testing.assert_allclose(found[2], state, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize('name', NAMES.split())
def test_every_input_counts(name):
  given = inputs()
  other = {**given, name: given[name][..., ::-1].copy()}
  found = one.router(*other.values(), eps=EPS)
  wanted = expected(given)
  apart = [np.abs(f - w).max() for f, w in zip(found, wanted, strict=True)]
  assert max(apart) > 1e-3


def test_the_first_of_equal_classes_is_chosen():
  given = inputs() | {'out': np.zeros((X, R), np.float32)}
  given['balance'] = np.array([0, 0.5, 0.5] + [0] * (X - 3), np.float32)
  choice, weight, _ = one.router(*given.values(), eps=EPS)
  assert choice.tolist() == [1] * T
  np.testing.assert_allclose(weight, 1 / X, rtol=1e-6)
