# SPDX-License-Identifier: Apache-2.0
"""What people are told of a run, as flags say."""

import types

import prometheus_client
import pytest

from tests.support import receiver
from zaya_jax import config as config_lib
from zaya_jax.aegis.decide import events
from zaya_jax.aegis.decide import state as state_lib
from zaya_jax.aegis.notify import board, metrics

EVENT = events.Event(time_s=1.0, kind='pcie_lost', detail='slot 1')
ACTION = events.Action(kind='replace_node', node='b')


def make(**aegis):
  config = config_lib.Config(
    run_dir='/runs/x', aegis=config_lib.AegisConfig(**aegis)
  )
  return board.Board(config, lambda: state_lib.start(('a', 'b')), print)


def test_without_flags_nobody_is_told():
  there = make()
  assert there.registry is None
  there.seen(EVENT, ACTION)
  there.finished(3)
  there.close()


def test_incidents_of_shipped_rules_are_counted():
  there = make(port=9464)
  there.seen(EVENT, ACTION)
  there.finished(3)
  text = prometheus_client.generate_latest(there.registry).decode()
  counter = 'zaya_jax_incidents_total{action="replace_node",kind='
  assert f'{counter}"pcie_lost"}} 1.0\n' in text
  assert f'{counter}"nic_down"}} 0.0\n' in text
  assert 'zaya_jax_step 3.0\n' in text


def test_supervisor_that_does_nothing_is_told(monkeypatch):
  clock = [100.0]
  monkeypatch.setattr(
    metrics, 'time', types.SimpleNamespace(monotonic=lambda: clock[0])
  )
  there = make(port=9464)
  clock[0] += 119.0
  assert there.stuck() == ''
  clock[0] += 2.0
  assert there.stuck() == 'the supervisor itself has done nothing for 121 s'
  there.finished(0)
  assert there.stuck() == make().stuck() == ''


def test_incidents_are_posted(monkeypatch):
  hook = receiver.Receiver()
  monkeypatch.setenv('HOOK', hook.url)
  there = make(notify='env:HOOK')
  there.seen(EVENT, ACTION)
  assert hook.next()['text'] == 'zaya_jax x: slot 1 -&gt; replace node'
  there.close()
  hook.close()


def test_wrong_address_is_refused():
  with pytest.raises(config_lib.UsageError, match='--aegis.notify'):
    make(notify='slack')
