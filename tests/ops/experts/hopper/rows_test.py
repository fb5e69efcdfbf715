# SPDX-License-Identifier: Apache-2.0
"""Rows copied by number: NumPy's indexing, and zeros."""

import jax.numpy as jnp
import numpy as np
import pytest

from ops.experts.hopper import rows


def _differ(tokens, width, row_P, count=None):
  rng = np.random.default_rng(0)
  x_TD = rng.standard_normal((tokens, width)).astype(np.float32)
  found = rows.take(jnp.asarray(x_TD), jnp.asarray(row_P, jnp.int32), count)
  wanted = np.concatenate([x_TD, np.zeros_like(x_TD[:1])])[row_P[:count]]
  assert found.shape == wanted.shape
  return (np.asarray(found) != wanted).any()


@pytest.mark.parametrize(
  ('tokens', 'width', 'count'), [(1, 512, 3), (40, 768, 200), (70, 1024, 64)]
)
def test_rows_are_taken_and_those_of_no_token_are_zero(tokens, width, count):
  row_P = np.random.default_rng(1).integers(0, tokens + 1, count)
  assert not _differ(tokens, width, row_P)
  assert not _differ(tokens, width, row_P, count - 2)


def test_a_row_of_the_one_before_is_noticed(monkeypatch):
  load = rows.plgpu.load

  def shifted(ref, mask=None, other=None):
    found = load(ref, mask=mask, other=other)
    return jnp.maximum(found - 1, 0) if found.ndim == 1 else found

  monkeypatch.setattr(rows.plgpu, 'load', shifted)
  assert _differ(40, 512, np.arange(1, 40))
