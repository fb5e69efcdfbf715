# SPDX-License-Identifier: Apache-2.0
"""Symmetric products for Hopper GPUs: interpreted where jax can, or lowered."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ops.newton_schulz.hopper import symmetric as newton_schulz
from tests.support import gpus
from tests.support.ops import interpreter, plain_products


@pytest.fixture
def interpreted(monkeypatch):
  """Kernels run in Python: threads, barriers, copies and all."""
  # Each second store is none, which jax takes for less than a group of copies:
  # it sees races that a GPU has not.
  with interpreter.products(monkeypatch, detect_races=False):
    yield


def _differ(found, wanted):
  found, wanted = (np.asarray(x, np.float32) for x in (found, wanted))
  return np.abs(found - wanted).max() > 0.03


@interpreter.needs_transposes
@pytest.mark.parametrize('n', [512, 1024])  # Without squares in fours and with.
@pytest.mark.parametrize(
  'options', [{}, {'alpha': 2.0, 'beta': -4.8, 'diagonal': 3.4}]
)
def test_symmetric_matmul_interpreted(interpreted, options, n):
  rng = np.random.default_rng(0)
  a = jnp.asarray(rng.standard_normal((2, n, n)) / n**0.5, jnp.bfloat16)
  a = jnp.tril(a) + jnp.tril(a, -1).mT
  arrays = (a, a, a, jnp.asarray([1.5, 0.25])) if options else (a, a)
  found = newton_schulz.symmetric_matmul(*arrays, **options)
  wanted = plain_products.symmetric_matmul(*arrays, **options)
  assert not _differ(found.reshape(-1, n), wanted.reshape(-1, n))
  np.testing.assert_array_equal(found, found.mT)
  other = plain_products.symmetric_matmul(*arrays, **{**options, 'diagonal': 1})
  assert _differ(found.reshape(-1, n), other.reshape(-1, n))
  if options:
    other = plain_products.symmetric_matmul(*arrays[:3], **options)
    assert _differ(found[0], other[0]) and _differ(found[1], other[1])


@pytest.mark.parametrize('added', [False, True])
def test_symmetric_matmul_lowers(added):
  def run(a):
    c = a if added else None
    scale = jnp.ones(len(a)) if added else None
    return newton_schulz.symmetric_matmul(
      a, a, c, scale, beta=2.0, diagonal=3.0
    )

  a = jax.ShapeDtypeStruct((2, 1024, 1024), jnp.bfloat16)
  lowered = gpus.lower(jax.jit(run).trace(a), 'cuda')
  assert 'mosaic_gpu' in lowered.as_text()
