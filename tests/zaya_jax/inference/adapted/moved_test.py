# SPDX-License-Identifier: Apache-2.0
"""Which experts an adapter moved, by hand."""

import numpy as np

from zaya_jax.inference.adapted import moved

BASE = np.array([[50, 30, 20], [100, 0, 0]])
TUNED = np.array([[45, 25, 30], [99, 1, 0]])


def test_shares_and_what_moved():
  found = moved.compare(BASE, TUNED)
  assert found['tokens'] == 100
  assert found['base'] == [[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]]
  assert found['tuned'] == [[0.45, 0.25, 0.3], [0.99, 0.01, 0.0]]
  assert found['moved'] == [0.1, 0.01]
  first, *_ = found['most']
  assert first == {'layer': 0, 'expert': 2, 'base': 0.2, 'tuned': 0.3}
  assert found['moved'] != moved.compare(TUNED, TUNED)['moved'] == [0.0, 0.0]
