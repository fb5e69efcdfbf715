# SPDX-License-Identifier: Apache-2.0
"""The seconds that a user has waited, and the time of a row."""

import time

import pytest

import zaya_jax
from zaya_jax import config, main
from zaya_jax.runtime import clock


@pytest.fixture
def now(monkeypatch):
  """The time, which only the test moves."""
  now = [100.0]
  monkeypatch.setattr(clock, '_start', None)
  monkeypatch.setattr(time, 'monotonic', lambda: now[0])
  return now


def test_seconds_count_from_the_start_and_from_each_one_anew(now):
  for _ in range(2):
    clock.start()
    now[0] += 2.5
    assert clock.elapsed() == 2.5


def test_seconds_without_a_start_count_from_the_first_look(now):
  assert clock.elapsed() == 0.0
  now[0] += 2.5
  assert clock.elapsed() == 2.5


@pytest.mark.parametrize(
  'command',
  [
    lambda: main.main(['zaya_jax', '--version']),
    lambda: zaya_jax.train(config.Config()),  # Refused: it lacks a folder.
  ],
)
def test_each_command_starts_the_clock(now, command):
  clock.start()
  now[0] += 1000.0
  try:
    command()
  except config.UsageError:
    pass
  assert clock.elapsed() == 0.0


def test_rows_say_both_times(now, monkeypatch):
  monkeypatch.setattr(time, 'time', lambda: 7.0)
  clock.start()
  now[0] += 2.5
  assert clock.stamps() == {'time/elapsed_s': 2.5, 'time/unix_s': 7.0}
