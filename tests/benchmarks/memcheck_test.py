# SPDX-License-Identifier: Apache-2.0
"""What the benchmark of memory errors concludes from its tool."""

import pytest

from benchmarks import memcheck

SUMMARY = '========= ERROR SUMMARY: {} errors\n'


def _row(errors, op='cca', engine='triton', cases=('a',)):
  return {'op': op, 'engine': engine, 'cases': [*cases], 'errors': errors}


def test_summary_counts_cases_and_errors():
  found = memcheck.summary('noise\nran a\nran b\n' + SUMMARY.format(3), 0)
  assert found == {'cases': ['a', 'b'], 'errors': 3}


def test_a_process_that_failed_says_how():
  found = memcheck.summary('ran a\n\nno device\n', 1)
  assert found['errors'] is None and found['status'] == 1
  assert found['last'] == ['ran a', 'no device']


def test_clean_means_that_the_tool_found_only_what_was_planted():
  planted = _row(64, *memcheck.PLANTED[:2])
  assert memcheck.clean([planted, _row(0)])
  assert not memcheck.clean([_row(0, *memcheck.PLANTED[:2]), _row(0)])
  for wrong in (_row(1), _row(None), _row(0, engine='hopper', cases=())):
    assert not memcheck.clean([planted, _row(0), wrong])


def test_case_that_an_engine_does_not_take_is_no_error():
  rows = [_row(64, *memcheck.PLANTED[:2]), _row(0), _row(0, cases=())]
  assert memcheck.clean(rows)


def test_tries_end_with_the_first_that_the_tool_survives(monkeypatch):
  fate = iter([-11, -11, 0])
  text = SUMMARY.format(0)
  monkeypatch.setattr(
    memcheck, '_find', lambda *_: memcheck.summary(text, next(fate))
  )
  row = memcheck.find('cca', 'triton', 'wide', tool='memcheck', limit_s=1)
  assert row['tries'] == 3 and row['errors'] == 0 and 'status' not in row


@pytest.mark.parametrize(
  ('engine', 'ran'), [('xla', 'ran small\n'), ('hip', '')]
)
def test_case_is_run_by_an_engine_that_takes_it(engine, ran, capsys):
  memcheck.run_case('muon_momentum', engine, 'small')
  assert capsys.readouterr().out == ran


@pytest.mark.parametrize(
  'engine', ['xla', pytest.param('triton', marks=pytest.mark.long)]
)
def test_stacks_of_layers_are_a_case_of_the_experts(engine, capsys):
  memcheck.run_case('experts', engine, memcheck.STACKS)
  assert capsys.readouterr().out == 'ran stacks\n'


def test_engine_that_there_is_not_is_refused(monkeypatch, capsys):
  monkeypatch.setattr('sys.argv', ['memcheck', '--engines=triton,mosaic'])
  with pytest.raises(SystemExit, match='2'):
    memcheck.main()
  assert '--engines: no mosaic; there are' in capsys.readouterr().err


def test_machine_without_the_tool_is_told_so(monkeypatch, capsys):
  monkeypatch.setenv('PATH', '')
  monkeypatch.setattr('sys.argv', ['memcheck'])
  with pytest.raises(SystemExit, match='2'):
    memcheck.main()
  assert 'compute-sanitizer is not on PATH' in capsys.readouterr().err
