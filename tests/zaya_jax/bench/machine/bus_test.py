# SPDX-License-Identifier: Apache-2.0
"""The share of a message that rings send, counted chunk by chunk."""

import pytest

from zaya_jax.bench.machine import bus


@pytest.mark.parametrize('n', [2, 3, 8])
def test_factors_are_those_of_rings(n):
  """A message of n chunks, of which a device passes one on in each turn."""
  turns = {
    'reduce-scatter': n - 1, 'all-gather': n - 1, 'all-reduce': 2 * (n - 1),
    'all-to-all': n - 1, 'broadcast': n, 'permute': n,
  }  # fmt: skip
  found = {kind: n * factor(n) for kind, factor in bus.FACTORS.items()}
  assert found == pytest.approx(turns)
