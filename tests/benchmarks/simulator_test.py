# SPDX-License-Identifier: Apache-2.0
"""A year of failures: what is simulated agrees with what can be computed."""

import dataclasses
import json
import pathlib

import pytest

from benchmarks import effective_time, simulator
from zaya_jax.aegis.decide import state as state_lib

Machine = simulator.Machine
RESULT = 'benchmarks/results/effective_time.json'


@pytest.fixture(scope='module')
def year():
  return simulator.simulate(Machine(), seed=0)


def test_effective_time_at_a_failure_each_eight_hours(year):
  assert year.effective >= 0.99
  assert 900 < year.failures < 1300  # 1,095 a year.
  assert not [a for a in year.actions if a.startswith('stop') and '75' not in a]


# Without those of many nodes, which are also waited for.
ALONE = {kind: n for kind, n in simulator.MIX.items() if n > 0.03 or n < 0.015}
ALONE.pop('power')


def test_it_agrees_with_the_closed_form():
  machine = Machine()
  year = simulator.simulate(machine, seed=0, mix=ALONE)
  assert not year.lost_s['awaited']
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
  assert bare.actions['stop 75'] > 3 and not full.actions['stop 75']
  assert bare.effective < full.effective


def test_nodes_that_are_lost_together_are_waited_for_and_not_condemned():
  week = 7 * 86_400.0
  year = simulator.simulate(
    Machine(mtbf_s=3600.0), seed=0, length_s=week, mix={'switch': 1.0}
  )
  assert year.actions['wait'] > 100 and year.lost_s['awaited'] > 3600
  assert year.actions['restart'] > 0.9 * year.actions['wait']
  assert not year.actions['kept by the caps'] and not year.actions['warn']


def test_broken_node_that_the_caps_keep_fails_until_they_let_it_go():
  def broken(most):
    policy = state_lib.Policy(condemn_per_hour=most)
    return simulator.simulate(
      Machine(policy=policy), seed=0, length_s=7 * 86_400.0, mix={'gpu': 1.0}
    )

  never, ever = broken(0), broken(2)
  assert never.actions['kept by the caps'] == never.failures
  assert not ever.actions['kept by the caps'] and ever.actions['replace_node']
  assert never.effective < ever.effective


def test_times_of_drills_are_medians_by_kind(tmp_path):
  rows = [
    {'fault': 'kill_rank', 'recover_s': 2.0},
    {'fault': 'segv_rank', 'recover_s': 4.0},
    {'fault': 'ecc_line', 'recover_s': None},
  ]
  for name in ('a', 'b'):
    (tmp_path / name).write_text(json.dumps({'drills': rows}))
  (tmp_path / 'c').write_text('{}')
  times, files = effective_time.drill_times(sorted(tmp_path.iterdir()))
  assert times == {'rank_killed': 3.0} and files == ['a', 'b']
  machine = Machine(measured=tuple(times.items()))
  assert (machine.down_s('rank_killed'), machine.down_s('gpu')) == (3.0, 120.0)


def test_result_of_the_benchmark_says_what_is_claimed():
  root = pathlib.Path(__file__).resolve().parents[2]
  if not (root / RESULT).exists():
    pytest.skip(f'{RESULT} is not among the data of this test')
  settings = json.loads((root / RESULT).read_text())['settings']
  (row,) = [s for s in settings if s['assumed']['mtbf_s'] == 8 * 3600]
  assert row['effective_least'] >= 0.99
  assumed = json.loads(json.dumps(dataclasses.asdict(Machine())))
  assert row['assumed'] == assumed | {
    'interval_s': round(Machine().interval_s, 1)
  }
  assert 'switch' in json.loads((root / RESULT).read_text())['mix']
