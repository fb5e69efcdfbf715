# SPDX-License-Identifier: Apache-2.0
"""Short runs beside a machine file, and runs that hang, fail or are none."""

import sys

import pytest

from zaya_jax.bench.machine import file
from zaya_jax.bench.sweep import record
from zaya_jax.preflight import errors, short_runs


def _point(case, size, seconds, devices=1):
  return record.Point(
    case=case,
    devices=devices,
    size=size,
    work=size,
    seconds=seconds,
    low=seconds,
    high=seconds,
    samples=3,
    calls=1,
  )


def _runs(script):
  command = (sys.executable, '-c', script)
  return short_runs.ShortRuns('machine.json', command)


def test_share_is_that_of_the_largest_size_that_is_short():
  points = [_point('triad', 2**k, 2.0**k) for k in (10, 20, 30)]
  asked = []

  def measure(size):
    asked.append(size)
    return 2.0**21  # Half as fast.

  found = short_runs.share(points, 'triad', 1, measure)
  assert found == {'share': 0.5} and asked == 3 * [2**20]
  assert short_runs.share(points, 'triad', 2, measure) == {
    'skipped': 'the file has no triad on 2'
  }


def test_what_is_slow_once_is_not_slow():
  points, seconds = [_point('triad', 2**20, 1.0)], [4.0, 1.0, 0.5]
  measure = lambda size: seconds.pop(0)
  assert short_runs.share(points, 'triad', 1, measure) == {'share': 1.0}
  assert seconds == [0.5]


def test_file_of_another_chip_is_not_compared(tmp_path):
  path = str(tmp_path / 'machine.json')
  machine = file.Machine(chip='H100', platform='gpu', devices=8, processes=1)
  file.write(path, machine)
  first, *others = short_runs.lines(path)
  assert first['run'] == 'chip' and first['share'].endswith('not H100')
  assert [x['run'] for x in others] == list(short_runs.RUNS)
  assert all('another chip' in x['skipped'] for x in others)


def test_what_was_measured_here_is_compared(tmp_path):
  here, path = file.here(), str(tmp_path / 'machine.json')
  sections = {
    'memory': file.section('GB/s', points=(_point('triad', 2**20, 1.0),)),
    'transfer': file.section('GB/s', points=(_point('to host', 2**16, 1.0),)),
  }
  file.write(path, file.Machine(**{**vars(here), 'sections': sections}))
  found = list(short_runs.lines(path))
  assert found[0] == {'run': 'chip', 'place': '', 'share': 'as there'}
  shares = {(x['run'], x['place']) for x in found[1:] if 'share' in x}
  # No machine takes a second for it.
  assert ('memory', 'device 0') in shares and ('transfer', 'to host') in shares
  assert all(x['share'] > 1 for x in found[1:] if 'share' in x)
  assert 'collective' in {x['run'] for x in found if 'skipped' in x}


def test_nothing_runs_without_a_file():
  runs = short_runs.ShortRuns('', ('no_such_program',))
  with pytest.raises(errors.UnseenError, match='--preflight.machine= names no'):
    runs.values('memory')


def test_runs_that_hang_are_killed_and_what_ended_stands():
  line = '{"run": "memory", "place": "device 0", "share": 0.9}'
  words = 'sh', '-c', f"echo '{line}'; exec sleep 60"
  runs = short_runs.ShortRuns('machine.json', words, limit_s=1.0)
  assert runs.values('memory') == {'device 0': 0.9}
  with pytest.raises(errors.SickError, match='do not end within 1 s'):
    runs.values('collective')


def test_runs_that_fail_are_a_fault():
  runs = _runs("raise SystemExit('triad gave wrong values')")
  with pytest.raises(errors.SickError, match='ended with 1: triad gave wrong'):
    runs.values('memory')


def test_run_that_was_left_out_is_not_seen():
  line = '{"run": "collective", "place": "", "skipped": "one device"}'
  runs = _runs(f"print('{line}')")
  with pytest.raises(errors.UnseenError, match='one device') as caught:
    runs.values('collective')
  assert not isinstance(caught.value, errors.SickError)
