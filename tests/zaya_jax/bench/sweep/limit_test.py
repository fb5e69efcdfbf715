# SPDX-License-Identifier: Apache-2.0
"""What does not end is named."""

import threading

from zaya_jax.bench.sweep import limit

WHAT = 'all-reduce of 1,024 bytes over 8 devices'


def test_measurement_that_does_not_end_is_named():
  ended, said = threading.Event(), []

  def end(error):
    said.append(error)
    ended.set()

  with limit.Limit(0.01, end).within(WHAT):
    assert ended.wait(60)  # As a collective that hangs.
  [error] = said
  assert f'{WHAT} did not end within 0.01 s in process 0 of 1' in str(error)
  assert error.exit_code == 75


def test_measurement_that_ends_is_not():
  said = []
  for _ in range(2):
    with limit.Limit(1000.0, said.append).within(WHAT):
      pass
  assert not said and all(
    timer.finished.is_set()
    for timer in threading.enumerate()
    if isinstance(timer, threading.Timer)
  )
