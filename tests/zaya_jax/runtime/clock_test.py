# SPDX-License-Identifier: Apache-2.0
"""The seconds that a user has waited, and the time of a row."""

import time

from zaya_jax.runtime import clock


def test_seconds_count_from_the_first_import(monkeypatch):
  monkeypatch.setattr(time, 'monotonic', lambda: clock.START + 2.5)
  assert clock.elapsed() == 2.5


def test_rows_say_both_times(monkeypatch):
  monkeypatch.setattr(time, 'monotonic', lambda: clock.START + 2.5)
  monkeypatch.setattr(time, 'time', lambda: 7.0)
  assert clock.stamps() == {'time/elapsed_s': 2.5, 'time/unix_s': 7.0}
