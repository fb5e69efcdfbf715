# SPDX-License-Identifier: Apache-2.0
"""Lines between agents and their supervisor, whatever comes."""

import json

import pytest

from zaya_jax.aegis.agent import protocol

REPORT = {'kind': 'status', 'generation': 1, 'sent': 4, 'ranks': []}


def test_lines_come_in_any_pieces():
  data = b'one\n\ntwo\nthr'
  for size in range(1, len(data)):
    lines, found = protocol.Lines(), []
    for i in range(0, len(data), size):
      found += lines.feed(data[i : i + size])
    assert found == [b'one', b'', b'two']
    assert lines.feed(b'ee\n') == [b'three'] and lines.cut == 0


def test_long_line_is_cut_and_counted_and_hides_nothing_after_it():
  lines = protocol.Lines()
  for _ in range(4):
    assert lines.feed(b'x' * protocol.LINE) == []
  first, second = lines.feed(b'\nnext\n')
  assert (len(first), second) == (protocol.LINE, b'next')
  assert lines.cut == 3 * protocol.LINE


def test_report_with_long_reasons_fits_into_a_line():
  ranks = [{'rank': i, 'why': '\n' * 500} for i in range(100)]
  line = protocol.encode_report({**REPORT, 'ranks': ranks})
  assert len(line) <= protocol.LINE + 1
  assert json.loads(line)['ranks'][99] == {'rank': 99, 'why': '\n' * 100}


@pytest.mark.parametrize(
  'line',
  [
    b'',
    b'Welcome!',
    b'null',
    b'[]',
    b'\xff\xfe',
    b'[' * 60_000,
    json.dumps({**REPORT, 'ranks': None}).encode(),
    json.dumps({**REPORT, 'sent': '4'}).encode(),
    json.dumps({**REPORT, 'generation': True}).encode(),
    json.dumps({**REPORT, 'kind': 1}).encode(),
    json.dumps({'kind': 'status'}).encode(),
  ],
)
def test_what_is_no_report_is_none(line):
  assert protocol.report(json.dumps(REPORT).encode()) == REPORT
  assert protocol.report(line) is None
