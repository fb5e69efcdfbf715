# SPDX-License-Identifier: Apache-2.0
"""What a supervisor hears of training, and tells a scheduler and systemd."""

import json
import os
import re
import socket
import urllib.request

import pytest

from tests.support import fake_rank, receiver
from zaya_jax import config as config_lib
from zaya_jax.aegis.decide import events
from zaya_jax.aegis.decide import state as state_lib
from zaya_jax.aegis.supervisor import site
from zaya_jax.runtime import run_files

STATE = state_lib.start(('a', 'b'), spares=('c',))


@pytest.fixture
def make(tmp_path):
  """A function: settings of --aegis.* -> a site, and what it says."""
  made = []

  def make(**aegis):
    config = config_lib.Config(
      run_dir=str(tmp_path),
      aegis=config_lib.AegisConfig(ranks_per_node=2, **aegis),
    )
    said = []
    made.append(site.Site(config, lambda: STATE, str, said.append))
    return made[-1], said

  yield make
  for one in made:
    one.close()


def look(looking, is_urgent=True):
  return looking.look(STATE.nodes, 1, 1.0, is_urgent)


def found(looking):
  return look(looking).found


def test_what_training_finds_becomes_an_event_of_its_node(make, tmp_path):
  looking, _ = make()
  run_files.incident(
    str(tmp_path),
    kind='corrupt_replica',
    step=9,
    seen='device 3 differs',
    rank=3,
    good_step=5,
    source='trainer',
  )
  (event,) = found(looking)
  assert (event.kind, event.node, event.good_step) == (
    'corrupt_replica',
    'b',
    5,
  )
  assert not found(looking)


def test_lines_of_training_are_read_and_name_no_node(make, tmp_path):
  looking, _ = make()
  with (tmp_path / 'log.txt').open('w') as log:
    log.write('zaya_jax: warning: Checkpoint 40 was not written to /x: full\n')
    log.write('3,1,2,-;amdgpu 0000:05:00.0: amdgpu: GPU reset begin!\n')
  (event,) = found(looking)
  assert (event.kind, event.node, event.source) == (
    'save_failed',
    None,
    'trainer',
  )


@pytest.mark.parametrize(
  'action, drained',
  [
    (events.Action(kind='replace_node', node='b', condemned=('b',)), 'b'),
    (events.Action(kind='stop', condemned=('b',), exit_code=75), 'b'),
    (events.Action(kind='replace_node', node='b'), None),  # It is not there.
    (events.Action(kind='stop', exit_code=75), None),
    (events.Action(kind='restart', node='b'), None),
    (events.Action(kind='warn', node='b'), None),
  ],
)
def test_scheduler_is_told_of_condemned_nodes_only(
  make, tmp_path, action, drained
):
  out = tmp_path / 'drained'
  looking, said = make(drain=f'cp /dev/null {out}-{{node}}', drain_act=True)
  looking.act(action)
  looking.close()  # Waits for the command.
  assert out.with_name('drained-b').exists() == (drained == 'b')
  assert bool(said) == bool(drained)


def test_nobody_is_drained_unless_it_may(make, tmp_path):
  looking, said = make(drain=f'touch {tmp_path}/drained')
  looking.act(events.Action(kind='replace_node', condemned=('b',)))
  looking.close()
  assert not said and not (tmp_path / 'drained').exists()


def test_node_is_rebooted_once_it_is_drained(make, tmp_path):
  drained, rebooted = tmp_path / 'drained', tmp_path / 'rebooted'
  commands = {'drain': f'touch {drained}', 'reboot': f'cp {drained} {rebooted}'}
  looking, said = make(**commands, drain_act=True)
  looking.act(events.Action(kind='replace_node', condemned=('b',)))
  looking.close()
  assert rebooted.exists() and len(said) == 2
  rebooted.unlink()
  looking, said = make(**commands | {'drain': 'false'}, drain_act=True)
  looking.act(events.Action(kind='replace_node', condemned=('b',)))
  looking.close()
  assert not rebooted.exists() and said == ['false ended with 1: ']


def test_command_that_fails_is_told(make):
  looking, said = make(drain='false {node}', drain_act=True)
  looking.act(events.Action(kind='replace_node', condemned=('b',)))
  looking.close()
  assert said == ['false ended with 1: ']


def test_seals_are_told_when_they_change(make, tmp_path):
  looking, _ = make()
  assert look(looking).sealed is None
  fake_rank.save(tmp_path, 5, 1)
  assert look(looking).sealed == (5,)
  assert look(looking).sealed is None
  fake_rank.save(tmp_path, 10, 1)
  assert looking.newest(5) == 5  # Those after it are set aside.
  assert look(looking).sealed is None


def test_run_directory_is_asked_less_than_once_a_second(
  make, tmp_path, monkeypatch
):
  looking, _ = make()
  (tmp_path / 'checkpoints').mkdir()
  now, asked = [0.0], []
  monkeypatch.setattr(site.time, 'monotonic', lambda: now[0])
  true = os.stat

  def stat(path, **more):
    if str(path).startswith(str(tmp_path)):
      asked.append(path)
    return true(path, **more)

  monkeypatch.setattr(os, 'stat', stat)
  for _ in range(1000):
    now[0] += 0.1
    looking.look(STATE.nodes, 1, now[0], False)
  assert 0 < len(asked) < 100


@pytest.mark.parametrize(
  'aegis, why',
  [
    (dict(drain='drain {host}'), '--aegis.drain'),
    (dict(reboot='ssh {host}'), '--aegis.reboot'),
    (dict(logs=('dmesg',)), '--aegis.logs=dmesg'),
    (dict(rules=('/nowhere.toml',)), '/nowhere.toml'),
    (dict(notify='slack'), '--aegis.notify'),
    (dict(telemetry=('dmesg',)), '--aegis.telemetry=dmesg'),
    (dict(port=1), None),
  ],
)
def test_wrong_settings_are_refused(make, aegis, why):
  if why is None:
    with socket.create_server(('127.0.0.1', 0)) as taken:
      port = taken.getsockname()[1]
      with pytest.raises(config_lib.UsageError, match=f'--aegis.port={port}'):
        make(port=port)
    return
  with pytest.raises(config_lib.UsageError, match=re.escape(why)):
    make(**aegis)


def free_port():
  with socket.create_server(('127.0.0.1', 0)) as taken:
    return taken.getsockname()[1]


def test_notice_is_an_event_unless_the_run_ends_already(make, tmp_path):
  path = tmp_path / 'preempt'
  looking, _ = make(preempt_file=str(path))
  path.touch()
  (event,) = looking.notices(1.0)
  assert event.kind == 'stop_requested'
  ending, _ = make(preempt_file=f'{path}2')
  ending._state = lambda: STATE.but(draining='')
  path.with_name('preempt2').touch()
  assert ending.notices(2.0) == []


def test_decisions_and_steps_reach_the_port(make):
  port = free_port()
  looking, said = make(port=port)
  looking.start()
  looking.seen(
    events.Event(time_s=1.0, kind='nic_down', node='b'),
    events.Action(kind='replace_node', node='b'),
  )
  looking.finished(7)
  url = f'http://127.0.0.1:{port}/metrics'
  with urllib.request.urlopen(url, timeout=10) as answer:
    text = answer.read().decode()
  assert 'zaya_jax_step 7.0\n' in text
  counter = 'zaya_jax_incidents_total{action="replace_node",kind='
  assert f'{counter}"nic_down"}} 1.0\n' in text
  assert f'{counter}"pcie_lost"}} 0.0\n' in text  # Of another shipped rule.
  assert not said


def test_open_port_is_told(make):
  _, said = make(port=free_port(), bind='0.0.0.0')
  assert len(said) == 1 and '--aegis.bind=0.0.0.0' in said[0]


def test_address_of_another_machine_is_refused(make):
  with pytest.raises(config_lib.UsageError, match='--aegis.bind=192.0.2.1'):
    make(port=free_port(), bind='192.0.2.1')


def test_without_a_port_nothing_is_told_outside(make):
  looking, _ = make()
  looking.seen(
    events.Event(time_s=1.0, kind='exit'), events.Action(kind='warn')
  )
  looking.finished(1)


def test_decisions_are_posted_where_the_environment_says(make, monkeypatch):
  there = receiver.Receiver()
  monkeypatch.setenv('HOOK', there.url)
  looking, _ = make(notify='env:HOOK')
  looking.seen(
    events.Event(time_s=1.0, kind='exit', node='b', detail='rank 3 is gone'),
    events.Action(kind='restart', node='b'),
  )
  assert 'rank 3 is gone -&gt; restart' in there.next()['text']
  assert 'HOOK' not in os.environ
  looking.close()
  there.close()


def test_row_of_training_is_json(tmp_path):
  run_files.incident(str(tmp_path), kind='refused_step', step=1, seen='"\n')
  (line,) = (tmp_path / 'incidents.jsonl').read_text().splitlines()
  assert json.loads(line)['seen'] == '"\n'
