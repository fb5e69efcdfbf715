# SPDX-License-Identifier: Apache-2.0
"""What the benchmark of memory errors concludes from its tool."""

from benchmarks import memcheck

SUMMARY = '========= ERROR SUMMARY: {} errors\n'


def _row(errors, op='cca', engine='pallas', cases=('a',)):
  return {'op': op, 'engine': engine, 'cases': [*cases], 'errors': errors}


def test_summary_counts_cases_and_errors():
  found = memcheck.summary('noise\nran a\nran b\n' + SUMMARY.format(3), 0)
  assert found == {'cases': ['a', 'b'], 'errors': 3}


def test_a_process_that_failed_says_how():
  found = memcheck.summary('ran a\n\nno device\n', 1)
  assert found['errors'] is None and found['status'] == 1
  assert found['last'] == ['ran a', 'no device']


def test_clean_means_that_the_tool_found_only_what_was_planted():
  planted = _row(64, *memcheck.PLANTED)
  assert memcheck.clean([planted, _row(0)])
  assert not memcheck.clean([_row(0, *memcheck.PLANTED), _row(0)])
  for wrong in (_row(1), _row(None), _row(0, cases=())):
    assert not memcheck.clean([planted, _row(0), wrong])


def test_cases_that_an_engine_takes_are_run(capsys):
  memcheck.run_cases('muon_apply', 'xla')
  lines = capsys.readouterr().out.splitlines()
  assert lines and all(line.startswith('ran ') for line in lines)
