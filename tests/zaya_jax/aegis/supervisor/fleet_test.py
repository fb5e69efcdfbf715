# SPDX-License-Identifier: Apache-2.0
"""Which ranks start on which node, and nodes that are lost on the way."""

import json
import os
import selectors
import signal
import sys

import pytest

from tests.support import fake_agent
from zaya_jax import config as config_lib
from zaya_jax.aegis.supervisor import fleet
from zaya_jax.runtime import supervised

PLACE = supervised.Place(
  rank=-1, generation=3, run_dir='/run', environment={'JAX_NUM_PROCESSES': '4'}
)


def killed(*ranks, stuck=()):
  """The answer to an order to kill."""
  ranks = [{'rank': rank, 'entered': 7} for rank in ranks]
  return [{'kind': 'killed', 'generation': 3, 'ranks': ranks, 'stuck': stuck}]


@pytest.fixture
def agents(tmp_path):
  """Two nodes of two ranks, whose agents answer when they are to kill."""
  for node, answer in {'a': killed(0, 1), 'b': killed(2, 3)}.items():
    (tmp_path / f'{node}.json').write_text(json.dumps({'kill': answer}))
  agent = f'{sys.executable} -m {fake_agent.__name__} {tmp_path} {{node}}'
  config = config_lib.Config(
    run_dir=str(tmp_path),
    aegis=config_lib.AegisConfig(
      nodes=('a', 'b'), ranks_per_node=2, agent=agent
    ),
  )
  with selectors.DefaultSelector() as selector:
    made = fleet.Fleet(config, ['train'], selector)
    made.selector = selector
    yield made
    made.close()


def orders(tmp_path, node):
  lines = (tmp_path / f'{node}.orders').read_text().splitlines()
  return [json.loads(line) for line in lines]


def test_ranks_are_numbered_by_the_order_of_nodes(agents, tmp_path):
  agents.connect('a', spare=True)
  agents.begin(('b', 'a'), PLACE)
  agents.kill()  # Its answer says that all orders have arrived.
  setup, start, kill = orders(tmp_path, 'b')
  assert (setup['do'], start['do'], kill['do']) == ('setup', 'start', 'kill')
  assert setup['command'] == ['train']
  assert setup['aegis']['ranks_per_node'] == 2
  assert (setup['node'], setup['spare']) == ('b', False)
  assert orders(tmp_path, 'a')[0]['spare'] is True
  for node, numbers in (('b', (0, 1)), ('a', (2, 3))):
    places = orders(tmp_path, node)[1]['places']
    assert [place['rank'] for place in places] == list(numbers)
    for place in places:
      assert (place['generation'], place['run_dir']) == (3, '/run')
      assert place['environment'] == {
        'JAX_NUM_PROCESSES': '4',
        'JAX_PROCESS_ID': str(place['rank']),
      }


def test_killed_ranks_tell_how_far_they_were(agents):
  agents.begin(('a', 'b'), PLACE)
  assert [(r['node'], r['rank'], r['entered']) for r in agents.kill()] == [
    ('a', 0, 7),
    ('a', 1, 7),
    ('b', 2, 7),
    ('b', 3, 7),
  ]
  assert agents.kill() == []  # There are none any more.
  agents.begin(('a', 'b'), PLACE)
  assert agents.ranks() == {'a': [], 'b': []}  # The new ones told nothing yet.


def test_node_whose_agent_has_ended_is_gone(agents):
  agents.begin(('a', 'b'), PLACE)
  os.kill(agents._links['a'].pid, signal.SIGKILL)
  agents.selector.select(30)
  assert list(agents.reports(('a',))) == []
  assert agents.gone == ['a']
  assert [r['node'] for r in agents.kill()] == ['b', 'b']
  agents.ask_to_stop()  # Nobody is left who could be asked.


def test_node_whose_ranks_cannot_be_killed_is_gone(agents, tmp_path):
  answer = killed(0, 1, stuck=[77])
  (tmp_path / 'a.json').write_text(json.dumps({'kill': answer}))
  agents.begin(('a', 'b'), PLACE)
  assert {r['node'] for r in agents.kill()} == {'a', 'b'}
  assert agents.gone == ['a']
  agents.begin(('a', 'b'), PLACE)  # With an agent of its own again.
  assert set(agents.ranks()) == {'a', 'b'}


def test_ranks_are_asked_to_stop_by_sigterm(agents, tmp_path):
  agents.begin(('a',), PLACE)
  agents.ask_to_stop()
  agents.kill()
  assert orders(tmp_path, 'a')[2] == {'do': 'signal', 'number': signal.SIGTERM}


def test_node_whose_agent_is_silent_is_gone(agents, monkeypatch):
  agents.begin(('a', 'b'), PLACE)
  silent = property(lambda there: there is agents._links.get('a'))
  monkeypatch.setattr(fleet.link.Link, 'is_silent', silent)
  assert list(agents.reports(())) == []
  assert agents.gone == ['a']
