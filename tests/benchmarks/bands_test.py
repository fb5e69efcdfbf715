# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of the bands; the runs themselves need a GPU's minutes."""

import pytest

from benchmarks import bands

AGAINST = {0: [9.0, 3.0, 3.2], 1: [9.0, 3.2, 3.2], 2: [9.0, 3.4, 3.2]}


def shifted(by):
  """The same runs with other numbers added to the losses of each."""
  return {s: [x + by[s] for x in AGAINST[s]] for s in AGAINST}


@pytest.mark.parametrize(
  'by, difference, within',
  [
    ([0.0, 0.0, 0.0], 0.0, True),
    ([0.05, -0.05, 0.03], 0.01, True),  # Either way, and less than a noise.
    ([0.5, 0.5, 0.5], 0.5, False),  # All in one direction.
    ([0.09, 0.09, 0.09], 0.09, True),  # Less than seeds lie apart.
  ],
)
def test_a_difference_beyond_the_noise_is_seen(by, difference, within):
  found = bands.compare(shifted(by), AGAINST, last=2)
  assert found['difference'] == pytest.approx(difference)
  assert found['noise'] == pytest.approx(0.1)  # Of 3.1, 3.2 and 3.3.
  assert found['within'] is within
  assert found['first_apart'] == pytest.approx(max(map(abs, by)))


def test_engines_of_the_other_side_are_all_named():
  flags = bands._XLA.split()
  assert '--ops.attention=xla' in flags and '--ops.experts=triton' in flags
  assert len(flags) == 8
