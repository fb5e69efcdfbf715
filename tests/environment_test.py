# SPDX-License-Identifier: Apache-2.0
"""What conftest.py promises to all other tests."""

import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest


def test_eight_cpu_devices():
  assert [device.platform for device in jax.devices()] == ['cpu'] * 8


def test_rank_promotion_raises():
  with pytest.raises(ValueError, match='rank_promotion'):
    jnp.ones([2, 3]) + jnp.ones([3])


def test_programs_that_tests_start_hear_ctrl_c():
  """Even where a shell started pytest with SIGINT ignored."""
  asked = 'import signal; print(signal.getsignal(signal.SIGINT).__name__)'
  words = [sys.executable, '-c', asked]
  done = subprocess.run(words, capture_output=True, text=True, check=True)
  assert done.stdout == 'default_int_handler\n'
  assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
