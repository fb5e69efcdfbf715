# SPDX-License-Identifier: Apache-2.0
"""Calls that may block."""

import asyncio
import threading

import pytest

from zaya_jax.aegis.supervisor.nodes import background


def test_result_and_error_are_those_of_the_call():
  run = background.run(divmod, 7, 2, limit_s=30)
  assert asyncio.run(run) == (3, 1)
  with pytest.raises(ZeroDivisionError):
    asyncio.run(background.run(divmod, 7, 0, limit_s=30))


def test_call_that_hangs_is_left_alone():
  free = threading.Event()
  with pytest.raises(TimeoutError):
    asyncio.run(background.run(free.wait, limit_s=0.01))
  free.set()  # Its answer finds no loop any more.
