# SPDX-License-Identifier: Apache-2.0
"""Where tokens go among blocks of rows of one expert each."""

import jax.numpy as jnp
import numpy as np
import pytest

from ops.experts.hopper import places, products


@pytest.mark.parametrize('tokens', [1, 127, 128, 1000, 2500, 16_000])
def test_places_are_a_stable_sort_into_blocks(tokens):
  rng = np.random.default_rng(tokens)
  expert = rng.integers(0, 6, tokens).astype(np.int32)  # 5 has no expert.
  found = places.find(jnp.asarray(expert), 5, products.ROWS)
  token_P, row_T, expert_B, first, spare_Q = map(np.asarray, found)
  assert first[0] == 0 and len(first) == 6
  assert len(token_P) > len(expert_B) * products.ROWS
  token_P = token_P[: len(expert_B) * products.ROWS]
  for e in range(5):
    rows = slice(first[e] * products.ROWS, first[e + 1] * products.ROWS)
    mine = np.flatnonzero(expert == e)
    np.testing.assert_array_equal(token_P[rows][: mine.size], mine)
    assert (token_P[rows][mine.size :] == tokens).all()
    assert (expert_B[first[e] : first[e + 1]] == e).all()
    assert first[e + 1] > first[e]
  with_expert = np.flatnonzero(expert < 5)
  np.testing.assert_array_equal(token_P[row_T[with_expert]], with_expert)
  assert (row_T[np.flatnonzero(expert == 5)] == token_P.size).all()
  empty = np.flatnonzero(token_P[: first[-1] * products.ROWS] == tokens)
  real = spare_Q[spare_Q < token_P.size]
  np.testing.assert_array_equal(np.sort(real), empty)
  assert (spare_Q <= token_P.size).all()


def test_a_token_in_two_places_is_seen(monkeypatch):
  one_hot = lambda expert_R, wide: expert_R[:, None] <= jnp.arange(wide)[None]
  monkeypatch.setattr(places, '_one_hot', one_hot)
  with pytest.raises(AssertionError):
    test_places_are_a_stable_sort_into_blocks(1000)
