# SPDX-License-Identifier: Apache-2.0
"""CCA's queries and keys of single tokens against the whole prologue."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ops.cca import one, reference
from tests.support import close

B, H, K, C, TAPS = 2, 4, 2, 16, (2, 3)
LENGTH, G = 7, H + K
NAMES = 'projected kernel bias temperature cos sin'


def inputs(d_rope):
  rng = np.random.default_rng(0)
  draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)
  kernel, bias = reference.joint_kernel(
    *(draw(TAPS[0], G * C), draw(G * C), draw(TAPS[1], G, C, C) / C),
    draw(G * C),
  )
  angles = draw(B, LENGTH, d_rope)
  width = (G + K) * C
  return dict(
    zip(
      NAMES.split(),
      (draw(B, LENGTH, width), kernel, bias, draw(K) + 2)
      + (np.cos(angles), np.sin(angles)),
      strict=True,
    )
  )


def expected(given):
  q, k, _ = reference.cca_prologue(*given.values())
  return q[:, -1], k[:, -1]


def found(given):
  projected, kernel, bias, temperature, cos, sin = given.values()
  samples = projected[..., : G * C]
  lags = sum(TAPS) - 1
  kernel = np.asarray(kernel).reshape(G, C, lags, C)[:, :, ::-1]
  kernel = kernel.transpose(0, 3, 2, 1).reshape(G, C, -1)
  run = jax.jit(lambda *args: one.look_back(*args))
  return run(
    *(samples[:, -1], samples[:, LENGTH - lags : -1], kernel, bias),
    *(temperature, (cos[:, -1], sin[:, -1])),
  )


@pytest.mark.parametrize('d_rope', [8, 16])
def test_equals_the_whole_prologue(d_rope):
  given = inputs(d_rope)
  for got, wanted in zip(found(given), expected(given), strict=True):
    assert got.shape == wanted.shape
    close.assert_close(got, wanted, close.FLOAT32)


@pytest.mark.parametrize('name', NAMES.split())
def test_every_input_counts(name):
  given = inputs(8)
  other = {**given, name: jnp.asarray(given[name])[..., ::-1]}
  pairs = zip(found(other), expected(given), strict=True)
  assert max(close.error(got, wanted) for got, wanted in pairs) > 0.01


def test_a_sample_of_another_time_is_seen():
  given = inputs(8)
  late = {**given, 'projected': np.roll(given['projected'], 1, axis=1)}
  late['projected'][:, -1] = given['projected'][:, -1]
  pairs = zip(found(late), expected(given), strict=True)
  assert max(close.error(got, wanted) for got, wanted in pairs) > 0.01
