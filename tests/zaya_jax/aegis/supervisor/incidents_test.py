# SPDX-License-Identifier: Apache-2.0
"""incidents.jsonl: all that is needed to decide again."""

import json
import pathlib

import pytest

from zaya_jax.aegis.decide import events
from zaya_jax.aegis.decide import state as state_lib
from zaya_jax.aegis.supervisor import incidents
from zaya_jax.config import fields

START = state_lib.start(
  ('a', 'b'), spares=('s',), policy=state_lib.Policy(node_counts=(1,))
)


@pytest.fixture(autouse=True)
def clock():
  event.time_s = 1e9


def event(kind, **more):
  event.time_s += 60.0
  return events.Event(time_s=event.time_s, kind=kind, **more)


def killed(rank=1):
  return event(
    'exit',
    rank=rank,
    detail='',
    progress=tuple(
      events.Progress(
        rank=i,
        node='ab'[i],
        phase='step',
        entered=7,
        done=6,
        exit_code=-9 if i == rank else 75,
      )
      for i in range(2)
    ),
  )


@pytest.fixture
def log(tmp_path):
  """A file of one supervisor, and the state that it ended with."""
  path = tmp_path / 'incidents.jsonl'
  with_state = incidents.Incidents(path, START, time_s=event.time_s)
  for seen in (
    event('running'),
    event('sealed', step=5, seals=(2, 5)),
    event('sealed', step=5, seals=(2, 5)),
    event('refused_step', step=6, source='rank'),
    event('save_failed', source='trainer', detail='a line of log.txt'),
    killed(),
    event('not_finite', step=9, good_step=6, source='rank'),
    event('ecc', node='b', source='kern', action='replace_node', detail='x'),
    event('spam', node='b', source='kern', action='ignore'),
    event('slow_rank', node='a', rank=0),
  ):
    with_state.decide(seen)
  with_state.close()
  return path, with_state.state


def test_line_has_what_was_seen_and_what_was_done(log):
  rows = [json.loads(line) for line in log[0].read_text().splitlines() if line]
  assert [row['kind'] for row in rows] == [
    'supervise',
    'running',
    'sealed',
    'save_failed',
    'exit',
    'not_finite',
    'ecc',
    'slow_rank',
  ]  # Neither what is old nor what training has written.
  assert all({'time', 'kind', 'step', 'seen', 'done'} <= {*r} for r in rows[1:])
  assert rows[6]['done'] == {
    'kind': 'replace_node',
    'node': 'b',
    'condemned': ['b'],
    'reason': (
      'ecc: x; 1 of 2 condemned this hour, 1 of 1 in quarantine; '
      '1 of 10 incidents this hour, 0 of 3 without a seal'
    ),
  }
  assert rows[4]['progress'][1]['exit_code'] == -9


def test_torn_line_is_passed_over(log):
  path, state = log
  path.write_bytes(path.read_bytes() + b'{"time": 3, "ki')
  assert incidents.last_state(path) == state
  later = state.but(generation=state.generation + 7)
  more = incidents.Incidents(path, later, time_s=event.time_s)
  more.decide(event('running'))
  more.close()
  assert incidents.last_state(path) == more.state
  assert more.state.running


def test_lines_of_other_programs_are_passed_over(log):
  path, state = log
  path.write_text(path.read_text() + '{"kind": "note"}\n[1]\n7\n\xff\n')
  path.write_text(path.read_text() + '[' * 100_000 + '\n')
  assert incidents.last_state(path) == state


def test_training_tells_in_the_same_file():
  row = {
    'time': 7.0,
    'kind': 'corrupt_replica',
    'step': 9,
    'seen': 'differs',
    'rank': 3,
    'good_step': 5,
    'source': 'trainer',
  }
  seen = incidents.told(json.dumps(row), ('a', 'b'), 2)
  assert (seen.node, seen.rank, seen.good_step) == ('b', 3, 5)
  assert seen.source == 'rank'  # No text of a log has this source.
  assert (
    incidents.told(json.dumps(row | {'rank': None}), ('a',), 1).node is None
  )
  for change in (
    {'kind': 'agent_lost'},
    {'source': 'kern'},
    {'done': {}},
    {'rank': 9},
    {'rank': 'x'},
    {'rank': -1},
    {'time': None},
    {'step': 'x'},
    {'good_step': 0.5},
  ):
    assert incidents.told(json.dumps(row | change), ('a', 'b'), 2) is None
  for line in ('', '[]', '7', '{', json.dumps({'kind': 'refused_step'})):
    assert incidents.told(line, ('a', 'b'), 2) is None


def test_lines_of_a_generation_before_do_not_count():
  row = {
    'time': 7.0,
    'kind': 'save_failed',
    'step': 9,
    'seen': 'full',
    'source': 'trainer',
  }
  assert incidents.told(json.dumps(row), ('a',), 1, 3).kind == 'save_failed'
  for generation, counts in ((2, False), (3, True)):
    line = json.dumps(row | {'generation': generation})
    assert bool(incidents.told(line, ('a',), 1, 3)) == counts


def test_odd_line_keeps_no_run_from_going_on(log, capsys):
  path, state = log
  odd = ('{"done": 5}', '{"state": []}', '[' * 9999, '7', '"\\ud800"', '\0')
  with path.open('a') as file:
    file.write('\n'.join(['', *odd, '']))
  assert incidents.last_state(path) == state
  assert '2 lines of' in capsys.readouterr().err


def test_line_of_another_version_is_no_decision_to_repeat(log):
  path, _ = log
  path.write_text(path.read_text().replace('"good_step"', '"better_step"'))
  why = r'line 6 of .* is not of this version'
  with pytest.raises(fields.UsageError, match=why):
    list(incidents.read(path))


def test_file_without_a_supervisor(tmp_path):
  path = tmp_path / 'incidents.jsonl'
  assert incidents.last_state(path) is None


def test_line_is_on_disk_before_anything_is_done(tmp_path, monkeypatch):
  path = tmp_path / 'incidents.jsonl'
  synced = []
  monkeypatch.setattr(
    incidents.os, 'fsync', lambda file: synced.append(path.read_text())
  )
  log = incidents.Incidents(path, START, time_s=0.0)
  log.decide(event('running'))
  assert [text.count('\n') for text in synced] == [1, 2]
  log.close()


def test_full_disk_is_told_and_stops_no_decision(capfd):
  log = incidents.Incidents(pathlib.Path('/dev/full'), START, time_s=0.0)
  assert log.decide(killed()).kind == 'restart'
  log.close()
  told = capfd.readouterr().err.splitlines()
  assert len(told) == 2 and 'No space left on device' in told[1]
  assert log.failure == '/dev/full cannot be written: No space left on device'


def test_quarantine_of_older_supervisors_is_kept_and_gets_an_end(tmp_path):
  path = tmp_path / 'incidents.jsonl'
  incidents.Incidents(path, START, time_s=5.0).close()
  row = json.loads(path.read_text())
  row['state']['quarantine'] = ['b']
  path.write_text(json.dumps(row) + '\n')
  (held,) = incidents.last_state(path).quarantine
  assert (held.node, held.since_s, held.until_s) == ('b', 5.0, 86_405.0)
