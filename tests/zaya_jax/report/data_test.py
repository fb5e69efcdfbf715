# SPDX-License-Identifier: Apache-2.0
"""What the page and the last lines of a run say of its data."""

import json

import pytest

from benchmarks import ledger_run
from zaya_jax.data.ledger import mode
from zaya_jax.report import data, figures, overview


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  folder = tmp_path_factory.mktemp('data') / 'run'
  ledger_run.make(folder)
  return folder


def test_totals_are_those_that_are_proven(run):
  proven = [x for x in mode.check(str(run), 'chain') if 'refused' in x]
  found = data.totals(str(run))
  for name in ('phase', 'source', 'tokens', 'rows', 'refused', 'left_out'):
    assert [row[name] for row in found] == [row[name] for row in proven], name
  # Windows are counted whole, and those of an epoch's end are not.
  for row, other in zip(found, proven, strict=True):
    assert row['epochs'] == pytest.approx(other['epochs'], rel=0.02)
  shares = {'short': (0.5, 0.5), 'long': (0.75, 0.25), 'longer': (0.25, 0.75)}
  for row in found:
    expected = shares[row['phase']]['ab'.index(row['source'])]
    assert row['share'] == pytest.approx(expected, abs=0.06)


def test_last_lines_and_page_have_them(run):
  lines = data.lines(str(run))
  assert [line.partition(':')[0] for line in lines] == [
    'short', 'long', 'longer',
  ]  # fmt: skip
  assert 'a 288 tokens (0.0' in lines[0]
  [figure] = [
    figure
    for figure in figures.of_runs(overview.read([str(run)]))
    if figure.id == 'data'
  ]
  [table] = figure.choices
  assert table['columns'] == list(data.COLUMNS)
  assert table['rows'][0][:3] == ['short', 'a', 288]


@pytest.mark.parametrize(
  'content', [None, b'', b'{"rows":[0,8],', b'[]\n', b'{"rows":1}\n', b'\xff\n']
)
def test_what_cannot_be_read_is_not_shown(tmp_path, content):
  if content is not None:
    (tmp_path / data.NAME).write_bytes(content)
  assert data.totals(str(tmp_path)) == []
  assert data.lines(str(tmp_path)) == []


def test_a_line_that_is_being_written_does_not_count(run, tmp_path):
  content = (run / data.NAME).read_bytes()
  (tmp_path / data.NAME).write_bytes(content[:-5])
  last = json.loads(content.splitlines()[-1])
  rows = sum(row['rows'] for row in data.totals(str(run)))
  less = rows - (last['rows'][1] - last['rows'][0])
  assert sum(row['rows'] for row in data.totals(str(tmp_path))) == less
