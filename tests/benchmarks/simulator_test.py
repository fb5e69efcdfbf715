# SPDX-License-Identifier: Apache-2.0
"""A year of failures: what is simulated agrees with what can be computed."""

import json
import pathlib

import pytest

from benchmarks import simulator

Machine = simulator.Machine
RESULT = 'benchmarks/results/effective_time.json'


@pytest.fixture(scope='module')
def year():
  return simulator.simulate(Machine(), seed=0)


def test_effective_time_at_a_failure_each_eight_hours(year):
  assert year.effective >= 0.99
  assert 900 < year.failures < 1300  # 1,095 a year.
  assert not [a for a in year.actions if a.startswith('stop') and '75' not in a]


def test_it_agrees_with_the_closed_form(year):
  machine = Machine()
  # Each failure: noticed, started, and half an interval again; each interval
  # has a save. Rollbacks and scheduler are not in it, nor failures meanwhile.
  per_failure = machine.detect_s + machine.recover_s + machine.interval_s / 2
  expected = (1 - year.failures * per_failure / (365 * 86_400)) * (
    machine.interval_s / (machine.interval_s + machine.save_s)
  )
  assert expected - 0.002 < year.effective < expected + 0.0005


def test_all_seconds_are_accounted_for(year):
  lost = sum(year.lost_s.values())
  assert lost == pytest.approx((1 - year.effective) * 365 * 86_400)
  assert all(seconds >= 0 for seconds in year.lost_s.values())
  # Near Young's and Daly's interval, saving costs what doing again does.
  assert year.lost_s['saved'] == pytest.approx(
    year.lost_s['done again'], rel=0.15
  )


def test_the_same_seed_gives_the_same_year(year):
  assert simulator.simulate(Machine(), seed=0) == year
  assert simulator.simulate(Machine(), seed=1).failures != year.failures


def test_nothing_fails():
  machine = Machine(mtbf_s=1e15)
  quiet = simulator.simulate(machine, seed=0, length_s=1e7)
  assert quiet.failures == 0 and quiet.effective == 1.0


@pytest.mark.parametrize(
  'worse', [dict(recover_s=900.0), dict(save_s=5.0), dict(detect_s=600.0)]
)
def test_slower_machines_are_below_the_target(worse):
  assert simulator.simulate(Machine(**worse), seed=0).effective < 0.99


def test_without_spares_the_scheduler_is_asked_each_time():
  week = 7 * 86_400.0
  bare = simulator.simulate(Machine(spares=0), seed=0, length_s=week)
  full = simulator.simulate(Machine(spares=16), seed=0, length_s=week)
  assert bare.actions['stop 75'] > 5 and not full.actions['stop 75']
  assert bare.effective < full.effective


def test_result_of_the_benchmark_says_what_is_claimed():
  root = pathlib.Path(__file__).resolve().parents[2]
  if not (root / RESULT).exists():
    pytest.skip(f'{RESULT} is not among the data of this test')
  settings = json.loads((root / RESULT).read_text())['settings']
  (row,) = [s for s in settings if s['assumed']['mtbf_s'] == 8 * 3600]
  assert row['effective_least'] >= 0.99
  assert row['assumed'] | {'interval_s': 0} == vars(Machine()) | {
    'interval_s': 0
  }
