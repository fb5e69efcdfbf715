# SPDX-License-Identifier: Apache-2.0
"""Who gives which part back."""

from zaya_jax.checkpoint.writing import neighbours


def test_who_has_the_least_to_give_gives_the_part_of_another():
  key = (8, 0, 'state')
  # The processes 0 and 1 have lost theirs; 2 and 3 hold all.
  offers = [{}, {}, *[{(key, owner): '' for owner in range(4)}] * 2]
  found = neighbours.choose(offers, 4)
  assert found == (key, {0: 2, 1: 3, 2: 2, 3: 3})
