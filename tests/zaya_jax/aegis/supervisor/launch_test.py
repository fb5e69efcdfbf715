# SPDX-License-Identifier: Apache-2.0
"""What must be so before a generation begins."""

import asyncio
import dataclasses
import time
import types

import pytest

from zaya_jax import config as config_lib
from zaya_jax.aegis.decide import state as state_lib
from zaya_jax.aegis.supervisor import launch
from zaya_jax.runtime import fence, lease


class Nodes:
  """Agents of all nodes are ready, but for those that are away."""

  def __init__(self):
    self.away, self.safe_at, self.connected = set(), 0.0, []

  def connect(self, node, *, spare):
    self.connected.append(node)

  def is_ready(self, node):
    return node not in self.away


class Exams:
  """Nodes pass, but for those that are bad."""

  def __init__(self):
    self.bad, self.asked = {}, []

  def verdict(self, node):
    self.asked.append(node)
    return self.bad.get(node, '')

  def forget(self, node):
    pass


@pytest.fixture
def made(tmp_path):
  """A launch, and what it asks."""
  (tmp_path / 'aegis').mkdir()
  aegis = config_lib.AegisConfig(nodes=('a', 'b', 'c'), spares=1, health='x')
  config = config_lib.Config(run_dir=str(tmp_path), aegis=aegis)
  held = types.SimpleNamespace(
    token=lease.Token('me', 3), address='local', lost='', facts=[]
  )
  held.write = lambda key, fact: held.facts.append(fact)
  site = types.SimpleNamespace(newest=lambda most: most or 40)
  seen = []
  nodes, exams = Nodes(), Exams()
  found = launch.Launch(
    config,
    nodes,
    exams,
    held,
    site,
    lambda kind, **facts: seen.append((kind, facts)),
  )
  return types.SimpleNamespace(
    launch=found, nodes=nodes, exams=exams, held=held, seen=seen, site=site
  )


def state(generation=1, nodes='ab'):
  return state_lib.start(tuple(nodes)).but(generation=generation)


def ready(made, wanted):
  """Turns until a generation may begin."""

  async def main():
    while isinstance(found := made.launch.turn(wanted), launch.Wait):
      await asyncio.sleep(0.001)
    return found

  return asyncio.run(main())


def test_generation_has_its_own_port_and_examines_who_is_new(made):
  ports = {
    ready(made, state(i, nodes)).place.environment['JAX_COORDINATOR_ADDRESS']
    for i, nodes in enumerate(('ab', 'ac', 'ab'))
  }
  assert len(ports) == 3
  # Who comes back has been away for a reason.
  assert made.exams.asked == ['a', 'b', 'c', 'b']


def test_older_generations_are_fenced_off_before_ranks_start(made, tmp_path):
  found = ready(made, state(7))
  assert made.held.facts == [
    {'number': 7, 'start_step': 40, 'owner': 'me', 'epoch': 3}
  ]
  assert fence.newest(str(tmp_path)) == 7
  place = found.place
  assert (place.generation, place.owner, place.epoch) == (7, 'me', 3)
  assert (place.lease, found.step) == ('local', 40)


@pytest.mark.parametrize(
  'agent, began, ended, waits',
  [
    ('ssh {node}', None, None, False),
    ('ssh {node}', {'number': 3}, {'number': 3}, False),
    ('ssh {node}', {'number': 3}, {'number': 2}, True),
    ('ssh {node}', {'number': 3}, None, True),
    ('', {'number': 3}, None, False),
  ],
)
def test_ranks_of_a_supervisor_that_was_killed_are_waited_for(
  agent, began, ended, waits
):
  config = config_lib.Config(aegis=config_lib.AegisConfig(agent=agent))
  facts = {'generation': began, 'ended': ended}
  held = types.SimpleNamespace(store=types.SimpleNamespace(read=facts.get))
  before = time.monotonic()
  found = launch.safe_at(config, held)
  assert found >= before + config.aegis.lease_s if waits else found == 0.0


def test_end_of_all_ranks_is_remembered_if_it_is_known():
  facts = {'generation': {'number': 3}}
  held = types.SimpleNamespace(
    store=types.SimpleNamespace(read=facts.get),
    lost='',
    write=facts.__setitem__,
  )
  nodes = Nodes()
  nodes.safe_at = time.monotonic() + 20
  launch.leave(held, nodes)
  assert 'ended' not in facts
  nodes.safe_at = 0.0
  launch.leave(held, nodes)
  assert facts['ended'] == {'number': 3}


def wait(made):
  found = asyncio.run(turn(made))
  assert isinstance(found, launch.Wait)
  return found


async def turn(made):
  return made.launch.turn(state())


def test_waits_have_a_reason_and_an_end(made):
  now = time.monotonic()
  made.launch.again(30.0, None)
  assert now + 30 <= wait(made).until <= time.monotonic() + 30
  made.launch.again(0.0, None)
  made.nodes.away = {'b'}
  first = wait(made)
  assert 'agent of b' in first.why and now + 110 < first.until < now + 130
  assert wait(made) == first  # Its end does not move.
  made.nodes.away, made.nodes.safe_at = set(), now + 20
  assert wait(made) == launch.Wait(
    'ranks of a node that was lost may still run', now + 20
  )


def test_all_unhealthy_nodes_are_one_event(made):
  made.exams.bad = {'a': 'no GPU', 'b': 'no disk'}
  wait(made)
  ((kind, facts),) = made.seen
  assert kind == 'unhealthy' and facts['nodes'] == ('a', 'b')
  assert made.held.facts == []


def test_older_step_is_restored_once(made):
  made.launch.again(0.0, 30)
  made.launch.again(0.0, 20)
  assert ready(made, state(2)).step == 20
  assert ready(made, state(3)).step == 40


@pytest.mark.parametrize('error', [OSError('full'), lease.StoreError('away')])
def test_run_directory_that_fails_is_told_and_tried_again(made, error):
  def fail(key, fact):
    made.held.write = lambda key, fact: None
    raise error

  made.held.write = fail
  ready(made, state())
  assert [kind for kind, _ in made.seen] == ['storage']


def test_owner_that_was_replaced_begins_nothing(made):
  def fail(key, fact):
    raise lease.LostError('another owns it')

  made.held.write = fail

  async def main():
    while not made.held.lost:
      assert isinstance(made.launch.turn(state()), launch.Wait)
      await asyncio.sleep(0.001)

  asyncio.run(main())
  assert made.held.lost == 'another owns it'


def test_ranks_take_the_key_file_from_their_supervisor(tmp_path, monkeypatch):
  make = config_lib.CheckpointConfig
  plain = config_lib.Config(run_dir=str(tmp_path))
  named = dataclasses.replace(plain, checkpoint=make(seal_key_file='a/key'))
  assert launch._seal_key(plain) == {}
  monkeypatch.chdir(tmp_path)
  expected = {'ZAYA_SEAL_KEY_FILE': f'{tmp_path}/a/key'}
  assert launch._seal_key(named) == expected
  monkeypatch.setenv('ZAYA_SEAL_KEY_FILE', '/etc/key')
  for config in (plain, named):
    assert launch._seal_key(config) == {'ZAYA_SEAL_KEY_FILE': '/etc/key'}
