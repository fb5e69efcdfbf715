# SPDX-License-Identifier: Apache-2.0
"""Rates of chips: between devices of a node with links each, and without."""

import pytest

from zaya_jax.model import flops
from zaya_jax.runtime import chips


@pytest.mark.parametrize('name, peak', [('mi300x', 1307.4), ('h200', 989.5)])
def test_large_products_reach_a_share_of_the_peak(name, peak):
  chip = chips.CHIPS[name]
  assert chip.peak == pytest.approx(peak * 1e12, rel=1e-2)
  assert chip.rate == pytest.approx(chip.peak * chip.achievable)
  assert flops.peak_tflops(chip.name) * 1e12 == chip.peak


@pytest.mark.parametrize(
  'name, members, links',
  [('mi300x', 8, 7), ('mi300x', 2, 1), ('mi300x', 1, 1), ('h200', 8, 1)],
)
def test_devices_of_a_mesh_send_the_faster_the_more_take_part(
  name, members, links
):
  chip = chips.CHIPS[name]
  assert chip.local_rate(members) == links * chip.link
