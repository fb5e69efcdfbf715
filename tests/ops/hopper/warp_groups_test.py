# SPDX-License-Identifier: Apache-2.0
"""Which machines the kernels for Hopper GPUs are refused on."""

import jax
import pytest

from ops import dispatch
from ops.hopper import warp_groups


@pytest.mark.parametrize(
  ('capability', 'reason'),
  [('8.0', 'needs compute capability 9'), ('10.0', 'this one has 10.0')],
)
def test_other_gpus_are_refused_by_name(monkeypatch, capability, reason):
  monkeypatch.setattr(dispatch, 'platform', lambda: 'cuda')
  device = type('Device', (), {'compute_capability': capability})
  monkeypatch.setattr(jax, 'devices', lambda: [device])
  assert reason in warp_groups.unavailable()


def test_a_cpu_is_refused():
  assert (
    warp_groups.unavailable() == 'it is made of instructions of Hopper GPUs'
  )
