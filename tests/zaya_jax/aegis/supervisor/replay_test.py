# SPDX-License-Identifier: Apache-2.0
"""Decisions are made again, from the file alone."""

import pytest

from tests.support import stories
from zaya_jax.aegis.decide import state as state_lib
from zaya_jax.aegis.supervisor import incidents, replay
from zaya_jax.config import fields

STORY = (
  'running',
  ('sealed', {'step': 5, 'seals': (2, 5)}),
  'killed 1',
  ('not_finite', {'step': 9, 'good_step': 6}),
  'ecc b',
  'slow_rank a',
)


@pytest.fixture
def path(tmp_path):
  """A file of one supervisor."""
  state = state_lib.start(
    stories.NODES, spares=('s',), policy=state_lib.Policy(node_counts=(2,))
  )
  path = tmp_path / 'incidents.jsonl'
  log = incidents.Incidents(path, state, time_s=1e9)
  for number, told in enumerate(STORY):
    log.decide(stories.event(told, number))
  log.close()
  # The next state depends on all of it.
  assert (log.state.nodes, log.state.generation) == (('a', 's', 'c', 'd'), 3)
  assert log.state.policy.node_counts == (2,) and log.state.slow
  assert incidents.last_state(path) == log.state
  return path


def test_every_decision_is_made_again(path, capsys):
  assert replay.replay(path) == []
  assert replay.run(str(path)) == 0
  assert 'are the same' in capsys.readouterr().err


def test_another_decision_is_noticed(path, capsys):
  path.write_text(path.read_text().replace('"rollback"', '"restart"'))
  (sentence,) = replay.replay(path)
  assert sentence.startswith('line 5, not_finite: was ')
  assert replay.run(str(path)) == 1
  told = capsys.readouterr()
  assert told.out == f'{sentence}\n' and '1 decisions' in told.err


def test_several_supervisors_may_follow_each_other(path):
  path.write_text(path.read_text() * 2)
  assert replay.replay(path) == []


def test_file_without_a_supervisor_is_refused(path):
  text = path.read_text()
  for wrong, why in (
    ('', 'no line of a supervisor'),
    (text.partition('\n')[2], 'does not begin with the state'),
  ):
    path.write_text(wrong)
    with pytest.raises(fields.UsageError, match=why):
      replay.replay(path)
  path.unlink()
  with pytest.raises(fields.UsageError, match='is no file'):
    replay.replay(path)
