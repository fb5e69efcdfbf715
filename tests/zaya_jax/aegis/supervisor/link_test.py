# SPDX-License-Identifier: Apache-2.0
"""Orders to an agent and reports from it, whatever becomes of it."""

import json
import os
import select
import signal
import sys

import pytest

from tests.support import fake_agent
from zaya_jax.aegis.supervisor import link

AGENT = f'{sys.executable} -m {fake_agent.__name__}'
RANK = {'rank': 0, 'exit_code': None}
SEEN = {'kind': 'seen', 'event': {'kind': 'ecc'}}


def report(kind, generation=1):
  return {'kind': kind, 'generation': generation, 'ranks': [RANK]}


@pytest.fixture
def connect(tmp_path):
  """A function: answers of an agent, by order -> the link to it."""
  links = []

  def connect(**answers):
    (tmp_path / 'a.json').write_text(json.dumps(answers))
    links.append(link.Link('a', f'{AGENT} {tmp_path} {{node}}'))
    links[-1].generation = 1
    return links[-1]

  yield connect
  for made in links:
    made.close(kill=True)


def receive(made):
  """What has come, once something has."""
  assert select.select([made.file], [], [], 30)[0]
  return list(made.receive())


def test_orders_arrive_as_they_were_given(connect, tmp_path):
  made = connect(start=[report('started')])
  made.send('setup', ranks=2)
  made.send('start', places=[{'rank': 0}])
  assert made.await_report('started')['ranks'] == [RANK]
  assert made.ranks == [RANK]
  orders = (tmp_path / 'a.orders').read_text().splitlines()
  assert list(map(json.loads, orders)) == [
    {'do': 'setup', 'ranks': 2},
    {'do': 'start', 'places': [{'rank': 0}]},
  ]


def test_reports_on_other_generations_are_dropped(connect):
  late = report('ended', generation=0) | {'ranks': []}
  made = connect(start=[report('started'), late, report('status')])
  made.send('start')
  kinds = []
  while 'status' not in kinds:
    kinds += [found['kind'] for found in receive(made)]
  assert kinds == ['started', 'status']
  assert made.ranks == [RANK]


def test_what_logs_say_waits_until_somebody_listens(connect):
  made = connect(kill=[SEEN, report('status'), report('killed')])
  made.send('kill')
  assert made.await_report('killed')['kind'] == 'killed'
  assert list(made.receive()) == [SEEN]
  assert list(made.receive()) == []


def test_an_agent_that_ends_is_lost(connect):
  made = connect()
  os.kill(made.pid, signal.SIGKILL)
  with pytest.raises(link.LostError, match='a'):
    receive(made)
  with pytest.raises(link.LostError):
    while True:  # Some may still fit into the pipe.
      made.send('kill')


def test_an_agent_that_does_not_answer_is_lost(connect, monkeypatch):
  monkeypatch.setattr(link, '_ANSWER_S', 0.1)
  made = connect()
  made.send('kill')
  with pytest.raises(link.LostError):
    made.await_report('killed')


def test_a_frozen_agent_is_silent(connect, monkeypatch):
  made = connect()
  assert not made.is_silent
  later = link.time.monotonic() + link._SILENCE_S + 1
  monkeypatch.setattr(link.time, 'monotonic', lambda: later)
  assert made.is_silent
