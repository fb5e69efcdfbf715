# SPDX-License-Identifier: Apache-2.0
"""Timing, on a clock that the test turns."""

import numpy as np
import pytest

from zaya_jax.bench.sweep import clock


class Machine:
  """Programs take their launch and their calls, and a first run more."""

  def __init__(self, launch_s, call_s):
    self.launch_s, self.call_s = launch_s, call_s
    self.time, self.made = 0.0, []

  def now(self):
    return self.time

  def make(self, calls):
    self.made.append(calls)
    first = [True]

    def run():
      self.time += self.launch_s + calls * self.call_s
      if first:
        self.time += 10 * bool(first.pop())

    return run

  def measure(self, **options):
    settings = {'repeats': 20, 'launch_s': self.launch_s, 'now': self.now}
    return clock.measure(self.make, **{**settings, **options})


@pytest.mark.parametrize('call_s', [1e-6, 2e-5, 3e-3, 0.7])
@pytest.mark.parametrize('launch_s', [1e-5, 3e-4])
def test_launch_does_not_decide(launch_s, call_s):
  machine = Machine(launch_s, call_s)
  found = machine.measure()
  # Half of the wanted length is enough: twice the share at most.
  most = 2 * clock.LAUNCH_SHARE
  if found.calls < 4096:
    assert found.seconds == pytest.approx(call_s, rel=1.1 * most)
  assert len(machine.made) <= 3
  assert 3 <= found.samples <= 20


def test_one_call_a_program_would_time_the_launch(monkeypatch):
  monkeypatch.setattr(clock, '_MOST_CALLS', 1)
  found = Machine(3e-4, 2e-5).measure()
  assert found.seconds == pytest.approx(3.2e-4)


def test_known_neighbours_save_a_program():
  machine = Machine(3e-4, 2e-5)
  assert machine.measure(expected_s=1.9e-5).calls == machine.made[0]
  assert len(machine.made) == 1


def test_all_processes_do_as_they_agree():
  machine = Machine(1e-5, 2e-5)
  machine.measure(agree=lambda mine: 1.0)
  assert machine.made == [1]


def test_quartiles_are_those_of_numpy():
  times = list(np.random.default_rng(0).random(11))
  wanted = np.percentile(times, [25, 50, 75])
  np.testing.assert_allclose(clock.quartiles(times), wanted)
  assert clock.quartiles([2.0]) == (2.0, 2.0, 2.0)


def test_budget_is_what_is_left():
  time = [5.0]
  budget = clock.Budget(60.0, now=lambda: time[0])
  time[0] = 50.0
  assert budget.left() == 15.0


def test_launch_is_a_median_without_the_first_run():
  machine = Machine(3e-4, 0.0)
  assert clock.launch(machine.make(1), machine.now) == pytest.approx(3e-4)
