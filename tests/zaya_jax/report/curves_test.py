# SPDX-License-Identifier: Apache-2.0
"""What is left of many points, numbers made of others, and incidents."""

import numpy as np
import pytest

from tests.support import run_files
from zaya_jax.aegis.decide import events, state
from zaya_jax.aegis.supervisor import incidents as aegis_incidents
from zaya_jax.report import curves, incidents, records


def _run(tmp_path, rows, *entries):
  tmp_path.mkdir(exist_ok=True)
  run_files.lines(tmp_path / 'metrics.jsonl', rows)
  run_files.lines(tmp_path / 'incidents.jsonl', entries)
  return records.read(str(tmp_path))


def _figure(name):
  return next(figure for figure in curves.TABLE if figure.id == name)


def test_thinning_keeps_ends_and_spikes():
  x, y = np.arange(20_000), np.zeros(20_000)
  y[[7, 12_345, 19_000]] = [5, -3, 8]
  thin_x, thin_y = curves.thin(x, y)
  assert len(thin_x) < 1100
  points = dict(zip(thin_x, thin_y, strict=True))
  assert (points[7], points[12_345], points[19_000]) == (5, -3, 8)
  assert (thin_x[0], thin_x[-1]) == (0, 19_999)
  assert thin_x == sorted(thin_x)


def test_few_points_stay_as_they_are():
  assert curves.thin([1, 2], [0.123456789, 3.0]) == ([1, 2], [0.123457, 3])


def test_long_curve_has_its_mean():
  rows = [{'step': s, 'optim/lr': s % 2} for s in range(1, 5001)]
  run = records.Run(
    name='r',
    rows=rows,
    experts=[],
    incidents=[],
    samples=[],
    facts={},
    flags='',
    lacks=[],
    running=False,
    changed_at=None,
  )
  (choice,), _ = curves.draw(_figure('lr'), [run], [])
  (trace,) = choice['traces']
  assert set(trace['mean'][1]) <= {0.48, 0.5, 0.52}
  assert trace['mean'][0][0] == 13  # Of steps 1 to 25.


def test_seconds_of_a_step(tmp_path):
  run = _run(
    tmp_path,
    [
      {'step': 10, 'time/step_s': 0.5, 'time/data_s': 0.125},
      {'step': 20, 'time/step_s': 0.5},
      {'step': 20, 'time/checkpoint_s': 3.0},
      {'step': 50, 'time/checkpoint_s': 6.0},
    ],
  )
  (choice,), missing = curves.draw(_figure('time'), [run], [])
  traces = {trace['name']: trace for trace in choice['traces']}
  assert traces['compute']['y'] == [0.375, 0.5]
  assert traces['saving, a step']['y'] == [0.15, 0.2]
  assert not missing


def test_metrics_of_an_older_version_say_what_is_missing(tmp_path):
  run = _run(tmp_path, [{'step': 1, 'train/loss': 2.0, 'loss': 'x'}])
  choices, missing = curves.draw(_figure('mfu'), [run], [])
  assert choices == []
  assert '--log.peak_tflops' in missing and 'throughput/mfu' in missing
  assert curves.draw(_figure('loss'), [run], [])[0]


def test_text_where_a_number_should_be_is_left_out(tmp_path):
  rows = [{'step': 1, 'train/loss': '<b>'}, {'step': 2, 'train/loss': None}]
  run = _run(tmp_path, [*rows, {'step': 3, 'train/loss': 1.5}])
  (choice,), _ = curves.draw(_figure('loss'), [run], [])
  assert choice['traces'][0]['x'] == [3]


def test_several_runs_have_a_colour_each(tmp_path):
  runs = [
    _run(tmp_path / name, [{'step': 1, 'train/loss': 1, 'val/loss': 2}])
    for name in 'ab'
  ]
  (choice,), _ = curves.draw(_figure('loss'), runs, [])
  assert [t['place'] for t in choice['traces']] == [
    [0, 0],
    [0, 1],
    [1, 0],
    [1, 1],
  ]
  assert choice['traces'][2]['name'] == f'{tmp_path}/b: train'


def test_restarts_and_skipped_steps_are_incidents(tmp_path):
  row = lambda step, clock, skipped: {
    'step': step,
    'time/elapsed_s': clock,
    'optim/skipped': skipped,
  }
  run = _run(
    tmp_path, [row(10, 50, 0), row(20, 60, 3), row(30, 20, 3), row(40, 30, 4)]
  )
  found = incidents.of_run(run)
  assert [(x['step'], x['kind']) for x in found] == [
    (20, 'skipped steps'),
    (30, 'restart'),
    (40, 'skipped steps'),
  ]
  assert '3 since step 10' in found[0]['seen']
  assert 'ended after step 20' in found[1]['seen']


@pytest.mark.parametrize(
  'entry',
  [
    {'time': 0, 'kind': 'hang', 'step': 5, 'seen': 'stuck', 'done': 'restart'},
    aegis_incidents.to_row(
      events.Event(time_s=0, kind='hang', step=5, detail='stuck'),
      events.Action(kind='restart'),
    ),
  ],
)
def test_incidents_flat_or_nested(tmp_path, entry):
  (found,) = incidents.of_run(_run(tmp_path, [], entry))
  assert found == {
    'step': 5,
    'time': '1970-01-01 00:00 UTC',
    'kind': 'hang',
    'seen': 'stuck',
    'done': 'restart',
  }


def test_incidents_are_what_is_not_ordinary(tmp_path):
  _run(tmp_path, [])
  log = aegis_incidents.Incidents(
    tmp_path / 'incidents.jsonl', state.start(('a',)), time_s=0.0
  )
  for kind in ('running', 'sealed', 'hang'):
    log.decide(events.Event(time_s=0.0, kind=kind, step=5))
  log.close()
  (found,) = incidents.of_run(records.read(str(tmp_path)))
  assert found['kind'] == 'hang' and found['done'].startswith('restart: no ')


def test_what_is_no_incident_is_left_out(tmp_path):
  rows = [{'time': 0, 'kind': kind} for kind in ('supervise', 'sealed', 'done')]
  assert incidents.of_run(_run(tmp_path, [], *rows)) == []


def test_incident_of_odd_types_is_shown_without_them(tmp_path):
  (found,) = incidents.of_run(
    _run(tmp_path, [], {'time': 1e300, 'step': 'x', 'kind': ['a'], 'seen': {}})
  )
  assert (found['step'], found['kind'], found['seen']) == (None, '', '')
