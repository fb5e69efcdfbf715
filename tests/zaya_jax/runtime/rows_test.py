# SPDX-License-Identifier: Apache-2.0
"""Programs read JSON with every digit, people read columns."""

import json
import sys

import pytest

from zaya_jax.runtime import rows

ROW = {
  'step': 12_000,
  'bytes': 33_061_432,
  'time': '2026-11-23T20:09:46+00:00',
  'valid': True,
  'val/bpb': 2.3614123456789,
  'params_hash': '0123456789abcdef0123',
  'tokens': None,
  'sealed': True,
}


@pytest.fixture
def shown(monkeypatch, capsys):
  """What is printed of rows, to a terminal or to a pipe."""

  def show(*lines, terminal=True, **kwargs):
    monkeypatch.setattr(sys.stdout, 'isatty', lambda: terminal, raising=False)
    printer = rows.Rows(**kwargs)
    for line in lines:
      printer.print(line)
    return capsys.readouterr().out.splitlines()

  return show


def test_pipe_gets_whole_json_lines(shown):
  lines = shown(ROW, ROW, terminal=False, leave_out=('sealed',))
  assert [json.loads(line) for line in lines] == [ROW, ROW]


@pytest.mark.parametrize('terminal', [True, False])
def test_the_flag_decides_where_it_is_given(shown, terminal):
  lines = shown(ROW, terminal=terminal, json='true')
  assert [json.loads(line) for line in lines] == [ROW]
  assert len(shown(ROW, terminal=terminal, json='false')) == 2


def test_terminal_gets_columns_rounded(shown):
  out = ('sealed', 'params_hash')
  assert shown(ROW, {**ROW, 'step': 9, 'bytes': 99_999}, leave_out=out) == [
    '  step    bytes               time  valid  val/bpb  tokens',
    '12,000  33.1 MB  2026-11-23T20:09Z    yes    2.361       -',
    '     9   99,999  2026-11-23T20:09Z    yes    2.361       -',
  ]


def test_terminal_gets_the_start_of_a_hash(shown):
  assert shown({'state_hash': '0123456789abcdef0123'})[1] == '0123456789ab'


def test_long_text_gets_a_line_of_its_own(shown):
  reason = 'Checkpoint 3 is damaged: its third file has another hash.'
  assert shown({'step': 3, 'valid': False, 'reason': reason}) == [
    'step  valid',
    '   3     no',
    f'  reason: {reason}',
  ]


def test_new_columns_get_a_new_header(shown):
  assert shown({'a': 1}, {'a': 2, 'b': 3}, {'a': 4}, {'c': 5}) == [
    *('a', '1'),
    *('a  b', '2  3', '4'),
    *('c', '5'),
  ]
