# SPDX-License-Identifier: Apache-2.0
"""What is left of many points, numbers made of others, and robust axes."""

import numpy as np

from tests.support import run_files
from zaya_jax.report import curves, records


def _run(tmp_path, rows):
  tmp_path.mkdir(exist_ok=True)
  run_files.lines(tmp_path / 'metrics.jsonl', rows)
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


def test_long_curve_has_its_mean(tmp_path):
  rows = [{'step': s, 'optim/lr': s % 2} for s in range(1, 5001)]
  run = _run(tmp_path, rows)
  (choice,) = curves.draw(_figure('lr'), [run], [])
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
  (choice,) = curves.draw(_figure('time'), [run], [])
  traces = {trace['name']: trace for trace in choice['traces']}
  assert traces['compute']['y'] == [0.375, 0.5]
  assert traces['saving, a step']['y'] == [0.15, 0.2]


def test_metrics_of_an_older_version_say_what_is_missing(tmp_path):
  run = _run(tmp_path, [{'step': 1, 'train/loss': 2.0, 'loss': 'x'}])
  bpb = _figure('bpb')
  assert curves.draw(bpb, [run], []) == []
  assert 'no val/bpb' in bpb.missing and '--eval.every' in bpb.caption
  assert curves.draw(_figure('loss'), [run], [])


def test_text_where_a_number_should_be_is_left_out(tmp_path):
  rows = [{'step': 1, 'train/loss': '<b>'}, {'step': 2, 'train/loss': None}]
  run = _run(tmp_path, [*rows, {'step': 3, 'train/loss': 1.5}])
  (choice,) = curves.draw(_figure('loss'), [run], [])
  assert choice['traces'][0]['x'] == [3]


def test_several_runs_have_a_colour_each(tmp_path):
  runs = [
    _run(tmp_path / name, [{'step': 1, 'train/loss': 1, 'val/loss': 2}])
    for name in 'ab'
  ]
  (choice,) = curves.draw(_figure('loss'), runs, [])
  assert [t['place'] for t in choice['traces']] == [
    [0, 0],
    [0, 1],
    [1, 0],
    [1, 1],
  ]
  assert choice['traces'][2]['name'] == f'{tmp_path}/b: train'


def test_first_losses_do_not_flatten_the_rest():
  # 5.7 at step 1, then 23 points from 2.4 to 1.3, as in the quick start.
  loss = [5.7, 3.3, *np.linspace(2.4, 1.3, 21)]
  low, high = curves.robust_range([loss])
  assert 1.1 < low < 1.3 and 2.4 < high < 2.6
  # An axis for all values would give the last half of the points a tenth.
  assert (loss[12] - loss[-1]) / (high - low) > 0.4


def test_axis_shows_all_where_that_flattens_nothing():
  assert curves.robust_range([np.linspace(3, 1, 50)]) is None
  assert curves.robust_range([[5.7, 3.3, 2.4]]) is None  # Too few to judge.
  assert curves.robust_range([[1.0] * 20]) is None


def test_axis_shows_half_of_a_run_that_is_far_above_the_others():
  good, bad = np.linspace(2, 1, 200), np.linspace(20, 6, 10)
  _, high = curves.robust_range([good, bad])
  assert 13 < high < 15


def test_only_losses_have_a_robust_axis(tmp_path):
  rows = [
    {'step': s, **dict.fromkeys(('train/loss', 'optim/lr'), 9 / s)}
    for s in range(1, 21)
  ]
  run = _run(tmp_path, rows)
  loss, lr = (
    curves.draw(_figure(name), [run], [])[0]['range'] for name in ('loss', 'lr')
  )
  assert loss[1] < 5 and lr is None


def _scored(tmp_path, *runs):
  """The traces of held-out bits per byte; runs are (steps, zlib)."""
  read = [
    _run(
      tmp_path / str(i),
      [{'step': s, 'val/bpb': 2.5, 'val/zlib_bpb': zlib} for s in steps],
    )
    for i, (steps, zlib) in enumerate(runs)
  ]
  (choice,) = curves.draw(_figure('bpb'), read, [])
  return choice['traces']


def test_zlib_is_a_line_beside_one_evaluation(tmp_path):
  model, zlib = _scored(tmp_path, ([30], 2.02))
  assert model['x'] == [30] and 'level' not in model
  assert (zlib['x'], zlib['y'], zlib['level']) == ([0, 30], [2.02, 2.02], True)


def test_runs_with_the_same_text_share_the_line_of_zlib(tmp_path):
  traces = _scored(tmp_path, ([30], 2.02), ([30, 90], 2.02), ([60], 2.11))
  lines = [(t['name'], t['x'], t['place']) for t in traces if 'level' in t]
  assert lines == [
    ('zlib -9', [0, 90], None),
    (f'{tmp_path}/2: zlib -9', [0, 60], [2, 1]),
  ]


def test_zlib_that_changes_is_a_curve(tmp_path):
  rows = [{'step': s, 'val/zlib_bpb': 2 + s} for s in (1, 2)]
  (choice,) = curves.draw(_figure('bpb'), [_run(tmp_path, rows)], [])
  assert [(t['x'], 'level' in t) for t in choice['traces']] == [([1, 2], False)]
