# SPDX-License-Identifier: Apache-2.0
"""What conftest.py promises to all other tests."""

import jax
import jax.numpy as jnp
import pytest


def test_eight_cpu_devices():
  assert [device.platform for device in jax.devices()] == ['cpu'] * 8


def test_rank_promotion_raises():
  with pytest.raises(ValueError, match='rank_promotion'):
    jnp.ones([2, 3]) + jnp.ones([3])
