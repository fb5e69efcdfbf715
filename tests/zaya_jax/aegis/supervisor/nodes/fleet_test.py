# SPDX-License-Identifier: Apache-2.0
"""Which ranks start on which node, and nodes that are lost on the way."""

import asyncio
import json
import os
import signal
import sys
import time

import pytest

from tests.support import fake_agent
from tests.zaya_jax.aegis.supervisor.nodes import link_test
from zaya_jax import config as config_lib
from zaya_jax.aegis.supervisor.nodes import fleet, link
from zaya_jax.runtime import supervised

PLACE = supervised.Place(
  rank=-1, generation=3, run_dir='/run', environment={'JAX_NUM_PROCESSES': '4'}
)
AGENT = f'{sys.executable} -m {fake_agent.__name__}'


def report(kind, *ranks, **more):
  ranks = [{**link_test.RANK, 'rank': rank, 'entered': 7} for rank in ranks]
  return {'kind': kind, 'generation': 3, 'ranks': ranks, **more}


def killed(*ranks, stuck=()):
  """The answer to an order to kill."""
  return [report('killed', *ranks, stuck=stuck)]


class Agents(fleet.Fleet):
  """Nodes a and b, of two ranks each, in a test."""

  async def until(self, is_so):
    while not is_so():
      self.look()
      await asyncio.sleep(0.005)

  async def start(self, nodes=('a', 'b'), **answers):
    for node in nodes:
      self.connect(node, spare=False)
    await self.until(lambda: all(map(self.is_ready, nodes)))
    self.begin(nodes, PLACE)

  def pid(self, node):
    return self._links[node].pid

  def waiting(self):
    return [loss.node for loss in self.losses]


@pytest.fixture
def agents(tmp_path):
  """Runs a coroutine with agents that answer when they are to kill."""
  for node, answer in {'a': killed(0, 1), 'b': killed(2, 3)}.items():
    (tmp_path / f'{node}.json').write_text(json.dumps({'kill': answer}))

  def run(body, *, remaining_s=1e9, **aegis):
    config = config_lib.Config(
      run_dir=str(tmp_path),
      aegis=config_lib.AegisConfig(
        **{
          'nodes': ('a', 'b'),
          'ranks_per_node': 2,
          'agent': f'{AGENT} {tmp_path} {{node}}',
          **aegis,
        }
      ),
    )

    async def main():
      made = Agents(config, ['train'], lambda: remaining_s, lambda: None)
      try:
        async with asyncio.timeout(60):
          await body(made)
      finally:
        for there in made._links.values():
          there.end()
        await made.close()

    asyncio.run(main())

  return run


def orders(tmp_path, node, *kinds):
  lines = (tmp_path / f'{node}.orders').read_text().splitlines()
  found = [json.loads(line) for line in lines]
  return [x for x in found if x['do'] in (kinds or ('setup', 'start', 'kill'))]


def test_ranks_are_numbered_by_the_order_of_nodes(agents, tmp_path):
  async def body(made):
    made.connect('a', spare=True)
    await made.start(('b', 'a'))
    await made.kill()  # Its answer says that all orders have arrived.
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

  agents(body)


def test_killed_ranks_tell_how_far_they_were(agents):
  async def body(made):
    await made.start()
    assert [
      (r['node'], r['rank'], r['entered']) for r in await made.kill()
    ] == [
      ('a', 0, 7),
      ('a', 1, 7),
      ('b', 2, 7),
      ('b', 3, 7),
    ]
    assert await made.kill() == []  # There are none any more.
    made.begin(('a', 'b'), PLACE)
    assert made.ranks() == {'a': [], 'b': []}  # The new ones told nothing yet.

  agents(body)


def test_node_whose_agent_has_ended_is_lost(agents):
  async def body(made):
    await made.start()
    os.kill(made.pid('a'), signal.SIGKILL)
    await made.until(lambda: made.losses)
    (loss,) = made.losses
    assert (loss.node, loss.kind) == ('a', 'agent_lost')
    assert [r['node'] for r in await made.kill()] == ['b', 'b']
    made.ask_to_stop()  # Nobody is left who could be asked.

  agents(body)


def test_node_whose_ranks_cannot_be_killed_is_lost(agents, tmp_path):
  answer = killed(0, 1, stuck=[77])
  (tmp_path / 'a.json').write_text(json.dumps({'kill': answer}))

  async def body(made):
    await made.start()
    assert {r['node'] for r in await made.kill()} == {'a', 'b'}
    assert made.waiting() == ['a']
    made.losses.clear()
    await made.start()  # With an agent of its own again.
    assert set(made.ranks()) == {'a', 'b'}

  agents(body)


def test_frozen_nodes_are_waited_for_together(agents, monkeypatch):
  monkeypatch.setattr(fleet, '_ANSWER_S', 1.0)

  async def body(made):
    await made.start(tuple('abcd'))
    for node in 'bcd':
      os.kill(made.pid(node), signal.SIGSTOP)
    before = time.monotonic()
    assert {r['node'] for r in await made.kill()} == {'a'}
    assert time.monotonic() < before + 2.0  # One after the other take three.
    assert made.waiting() == ['b', 'c', 'd']

  agents(body, nodes=tuple('abcd'))


def test_ranks_are_asked_to_stop_by_sigterm(agents, tmp_path):
  async def body(made):
    await made.start(('a',))
    made.ask_to_stop()
    await made.kill()
    (order,) = orders(tmp_path, 'a', 'signal')
    assert order == {'do': 'signal', 'number': signal.SIGTERM}

  agents(body)


def test_node_whose_agent_is_silent_is_lost_but_not_after_a_pause(
  agents, monkeypatch
):
  async def body(made):
    await made.start()
    made._links['a'].heard -= link._SILENCE_S + 1
    made.forgive()
    made.look()
    assert not made.losses
    made._links['a'].heard -= link._SILENCE_S + 1
    made.look()
    assert made.waiting() == ['a']

  agents(body)


@pytest.mark.parametrize(
  'first, why',
  [
    ([], 'no word from it within --aegis.start_limit_s=2'),
    (['No route to host\n'], 'it printed: No route to host'),
    ([{**fake_agent.HELLO, 'version': '0.0.1'}], 'its zaya_jax is 0.0.1, '),
  ],
)
def test_agent_that_does_not_start_is_another_loss(
  agents, tmp_path, first, why
):
  (tmp_path / 'b.json').write_text(json.dumps({'nothing': first}))

  async def body(made):
    made.connect('a', spare=False)
    made.connect('b', spare=False)
    await made.until(lambda: made.is_ready('a'))
    await made.until(lambda: made.losses)
    (loss,) = made.losses
    assert (loss.node, loss.kind) == ('b', 'not_started')
    assert why in loss.why

  agents(body, start_limit_s=2.0)


def test_command_that_cannot_start_agents_is_a_loss_of_all(agents):
  async def body(made):
    for node in 'ab':
      made.connect(node, spare=False)
    await made.until(lambda: len(made.losses) == 2)
    assert {loss.kind for loss in made.losses} == {'not_started'}
    assert not made.has_spoken and 'exit code 1' in made.losses[0].why

  agents(body, agent='false')


def test_answers_say_how_long_the_run_is_held(agents, tmp_path):
  async def body(made):
    await made.start(('a',))
    await made.kill()
    assert orders(tmp_path, 'a', 'ack')[0] == {
      'do': 'ack',
      'sent': 0,
      'for_s': 3,
    }

  agents(body, remaining_s=3)


def test_ranks_of_a_lost_node_are_waited_for(agents):
  async def body(made):
    before = time.monotonic()
    await made.start()
    os.kill(made.pid('a'), signal.SIGKILL)
    await made.until(lambda: made.losses)
    assert before + 20 <= made.safe_at <= time.monotonic() + 20
    safe_at = made.safe_at
    await made.kill()  # b says that its ranks are dead.
    made.disconnect('b')
    assert made.safe_at == safe_at

  agents(body)
