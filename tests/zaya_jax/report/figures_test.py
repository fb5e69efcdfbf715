# SPDX-License-Identifier: Apache-2.0
"""Which figures there are, and whose curves, loads and incidents they show."""

import json

import pytest

from tests.support import run_files
from zaya_jax.report import figures, overview


def _of(*folders):
  """Figures by id."""
  runs = overview.read([str(folder) for folder in folders])
  return {figure.id: figure for figure in figures.of_runs(runs)}


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  return run_files.write(tmp_path_factory.mktemp('figures') / 'run')


def test_curves_and_marks_of_one_run(run):
  (loss,) = _of(run)['loss'].choices
  assert [trace['name'] for trace in loss['traces']] == ['train', 'held out']
  assert [(m['x'], m['kind']) for m in loss['marks']] == [(130, 'incident')]
  assert loss['marks'][0]['text'].startswith('skipped steps: 2 since step 120')


def test_phases_are_marks_where_they_begin(tmp_path):
  rows = [
    {'step': step, 'train/loss': 2.0, 'phase': 'web' if step < 5 else 'mid'}
    for step in range(1, 9)
  ]
  run = run_files.write(tmp_path / 'run')
  run_files.lines(run / 'metrics.jsonl', rows)
  (loss,) = _of(run)['loss'].choices
  (mark,) = loss['marks']
  assert (mark['x'], mark['kind'], mark['text']) == (
    4,
    'continued',
    'phase: mid',
  )
  page = overview.make(overview.read([str(run)]))
  assert ['phases', 'web, mid'] in page.summary


def test_load_of_each_layer(run):
  layers = _of(run)['experts'].choices
  assert [choice['label'] for choice in layers] == [
    'layer 0',
    'layer 1',
    'layer 2',
  ]
  names = [f'expert {e}' for e in range(4)]
  assert layers[2]['y'] == [*names, 'skip']
  assert len(layers[2]['z'][4]) == len(layers[2]['x'])
  assert set(layers[2]['z'][0]) == {0}  # Nobody chose it.


def test_skip_class_that_nobody_chose_says_so(tmp_path):
  run = run_files.write(tmp_path / 'run')
  share = [[0.25] * 4 + [0.0], [0.2] * 5, [0.25] * 4 + [0.0]]
  run_files.lines(run / 'experts.jsonl', [{'step': 1, 'share': share}])
  last = [choice['y'][-1] for choice in _of(run)['experts'].choices]
  assert last == ['skip: none', 'skip', 'skip: none']


def test_loads_of_another_model_are_not_drawn(tmp_path):
  run = run_files.write(tmp_path / 'run', layers=1)
  rows = [
    {'step': step, 'share': [[1 / number] * number]}
    for step, number in ((1, 3), (2, 5), (3, 5))
  ]
  run_files.lines(run / 'experts.jsonl', rows)
  (choice,) = _of(run)['experts'].choices
  assert choice['x'] == [2, 3]


def test_load_is_in_per_cent_of_an_even_share(tmp_path):
  run = run_files.write(tmp_path / 'run', layers=1)
  share = [[0.5, 0.25, 0.125, 0.025, 0.1]]
  run_files.lines(run / 'experts.jsonl', [{'step': 1, 'share': share}])
  (choice,) = _of(run)['experts'].choices
  # Of four experts an even share is a quarter of the tokens.
  assert choice['z'] == [[200], [100], [50], [10], [40]]


def test_without_a_known_peak_there_is_no_figure_of_utilization(tmp_path):
  run = run_files.write(tmp_path / 'run')
  text = (run / 'metrics.jsonl').read_text()
  rows = [json.loads(line) for line in text.splitlines()]
  for row in rows:
    row.pop('throughput/mfu', None)
  run_files.lines(run / 'metrics.jsonl', rows)
  found = _of(run)
  assert 'mfu' not in found and 'throughput' in found
  assert found['samples'].wide  # No figure is left beside it.


def test_more_steps_are_marked_and_no_incident(tmp_path):
  run = run_files.write(tmp_path / 'run', restart_at=100)
  (run / 'log.txt').write_text('done: 100 of 100 steps, 410k tokens\n')
  found = _of(run)
  marks = found['loss'].choices[0]['marks']
  assert [(m['x'], m['kind']) for m in marks] == [
    (130, 'incident'),
    (100, 'continued'),
  ]
  assert [row[0] for row in found['incidents'].choices[0]['rows']] == [130]


def test_runs_are_drawn_together(tmp_path):
  folders = [
    run_files.write(tmp_path / name, layers=layers)
    for name, layers in (('a', 2), ('b', 3))
  ]
  found = _of(*folders)
  traces = found['lr'].choices[0]['traces']
  assert [trace['name'] for trace in traces] == ['a', 'b']
  labels = [choice['label'] for choice in found['experts'].choices]
  assert labels == [
    'a, layer 0',
    'a, layer 1',
    *(f'b, layer {n}' for n in range(3)),
  ]


def test_incident_of_several_runs_says_whose_it_is(tmp_path):
  folders = [
    run_files.write(tmp_path / name, restart_at=at)
    for name, at in (('a', 0), ('b', 50))
  ]
  found = _of(*folders)
  (table,) = found['incidents'].choices
  assert table['columns'][0] == 'run'
  assert [row[:3] for row in table['rows']] == [
    ['a', 130, 'skipped steps'],
    ['b', 50, 'restart'],
    ['b', 130, 'skipped steps'],
  ]
  marks = found['loss'].choices[0]['marks']
  assert [m['text'].partition(',')[0] for m in marks] == ['a', 'b', 'b']
  assert [m['place'] for m in marks] == [0, 1, 1]  # Colours of the curves.
