# SPDX-License-Identifier: Apache-2.0
"""What a supervisor hears of training, and tells a scheduler and systemd."""

import json
import re
import socket
import tempfile

import pytest

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
    made.append(site.Site(config, lambda: STATE, said.append))
    return made[-1], said

  yield make
  for one in made:
    one.close()


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
  (event,) = looking.poll(1.0)
  assert (event.kind, event.node, event.good_step) == (
    'corrupt_replica',
    'b',
    5,
  )
  assert not looking.poll(2.0)


def test_lines_of_training_are_read_and_name_no_node(make, tmp_path):
  looking, _ = make()
  with (tmp_path / 'log.txt').open('w') as log:
    log.write('zaya_jax: warning: Checkpoint 40 was not written to /x: full\n')
    log.write('3,1,2,-;amdgpu 0000:05:00.0: amdgpu: GPU reset begin!\n')
  (event,) = looking.poll(1.0)
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


def test_command_that_fails_is_told(make):
  looking, said = make(drain='false {node}', drain_act=True)
  looking.act(events.Action(kind='replace_node', condemned=('b',)))
  looking.close()
  assert said == ['false ended with 1: ']


def test_systemd_hears_that_it_lives(make, monkeypatch):
  looking, _ = make()
  looking.poll(10.0)  # Nobody has asked.
  with (
    # The path of a socket has 107 bytes at most: that of a test may be longer.
    tempfile.TemporaryDirectory(dir='/tmp') as folder,
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as there,
  ):
    there.bind(f'{folder}/notify')
    there.settimeout(10)
    monkeypatch.setenv('NOTIFY_SOCKET', f'{folder}/notify')
    looking.poll(11.0)
    looking.poll(20.0)
    assert there.recv(100) == b'WATCHDOG=1'
    there.setblocking(False)
    with pytest.raises(BlockingIOError):
      there.recv(100)


@pytest.mark.parametrize(
  'aegis, why',
  [
    (dict(drain='drain {host}'), '--aegis.drain'),
    (dict(logs=('dmesg',)), '--aegis.logs=dmesg'),
    (dict(rules=('/nowhere.toml',)), '/nowhere.toml'),
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


def test_row_of_training_is_json(tmp_path):
  run_files.incident(str(tmp_path), kind='refused_step', step=1, seen='"\n')
  (line,) = (tmp_path / 'incidents.jsonl').read_text().splitlines()
  assert json.loads(line)['seen'] == '"\n'
