# SPDX-License-Identifier: Apache-2.0
"""An agent at the other end of a pipe, with ranks that only wait."""

import dataclasses
import os
import signal
import sys
import time

import pytest

from zaya_jax import config as config_lib
from zaya_jax.aegis.agent import agent
from zaya_jax.aegis.supervisor import link
from zaya_jax.runtime import beats, supervised

WAIT = """
import time
from zaya_jax.runtime import supervised
supervised.wait()
time.sleep(600)
"""
RANK = [sys.executable, '-c', WAIT]
SETUP = {'command': RANK, 'directory': '.', 'node': 'a', 'spare': False}
AEGIS = {'ranks_per_node': 2, 'standby': False, 'phase_limit_s': 600.0}


@pytest.fixture
def start():
  """Starts an agent, with two ranks where asked."""
  links = []

  def run(ranks=2, **changes):
    made = link.Link('a', '')
    links.append(made)
    made.send('setup', **SETUP, aegis=AEGIS | changes)
    if ranks:
      places = [
        supervised.Place(
          rank=i, generation=1, run_dir='/nowhere', environment={}
        )
        for i in range(ranks)
      ]
      made.generation = 1
      made.send('start', places=[dataclasses.asdict(p) for p in places])
      made.await_report('started')
    return made

  yield run
  for made in links:
    made.close(kill=True)


def ended(pids):
  """Waits until none of the processes is there."""
  until = time.monotonic() + 20
  while any(os.path.exists(f'/proc/{pid}') for pid in pids):
    assert time.monotonic() < until, 'they live'
    time.sleep(0.01)
  return True


def pids(made):
  return [one['pid'] for one in made.ranks]


def test_ranks_are_killed_and_how_far_they_were_is_told(start):
  made = start()
  there = pids(made)
  os.kill(there[1], signal.SIGSTOP)
  while made.await_report('status')['ranks'][1]['process'] != 'T':
    pass
  made.send('kill')
  report = made.await_report('killed')
  assert {r['phase'] for r in report['ranks']} <= {'import', 'init'}
  assert [r['process'] for r in report['ranks']][1] == 'T'
  assert not report['stuck']
  assert ended(there)


def test_an_end_is_told_at_once(start):
  made = start()
  os.kill(pids(made)[1], signal.SIGKILL)
  report = made.await_report('ended')
  assert [r['exit_code'] for r in report['ranks']] == [None, -9]


def test_ranks_end_with_the_supervisor(start):
  made = start()
  there = pids(made)
  made.close()
  assert ended(there)


def test_ranks_end_with_their_agent(start):
  made = start()
  there = pids(made)
  while {one['phase'] for one in made.ranks} != {'init'}:
    made.await_report('status')
  os.kill(made.pid, signal.SIGKILL)
  assert ended(there)
  with pytest.raises(link.LostError):
    made.await_report('never')


def test_no_progress_in_a_phase_is_a_hang(start):
  report = start(phase_limit_s=1.0).await_report('hang')
  assert report['limit_s'] == 1.0
  assert report['phase'] in ('import', 'init')


@pytest.mark.parametrize(
  'phase, p99, setting, limit',
  [
    ('step', 0.1, 0.0, 5.0),  # Short steps: the least that is sensible.
    ('step', 3.0, 0.0, 15.0),
    ('data', 3.0, 0.0, 15.0),
    ('step', 3.0, 7.0, 7.0),
    ('step', None, 7.0, 600.0),  # The first steps may do anything.
    ('compile', 0.1, 0.0, 600.0),
  ],
)
def test_the_limit_of_a_step_is_learned(
  monkeypatch, phase, p99, setting, limit
):
  monkeypatch.setattr(beats.Slot, 'step_p99_s', lambda slot: p99)
  slot = beats.Slot()
  slot.enter(phase, 9)
  aegis = config_lib.AegisConfig(**AEGIS, step_limit_s=setting)
  assert agent.limit_s(slot, aegis) == limit
  slot.close()


def test_ranks_that_start_when_their_agent_ends_end_too(start):
  made = start()
  there = pids(made)
  os.kill(made.pid, signal.SIGKILL)
  assert ended(there)


@pytest.fixture
def inside(monkeypatch):
  """An agent in this process, and where its orders are written."""
  orders, write = os.pipe()
  with open(os.devnull, 'wb') as nowhere:
    monkeypatch.setattr(agent, '_INPUT', orders)
    monkeypatch.setattr(agent, '_OUTPUT', nowhere.fileno())
    made = agent.Agent()
    yield made, write
    made._kill(made._ranks)
  made._selector.close()
  os.close(orders)
  os.close(write)


def test_ready_process_that_has_ended_gets_no_place(inside):
  made, _ = inside
  made._aegis = config_lib.AegisConfig(ranks_per_node=1)
  made._command = ['true']
  made._prepare()
  (dead,) = made._standby
  dead.popen.wait()
  made._command = RANK
  place = supervised.Place(
    rank=0, generation=1, run_dir='/nowhere', environment={}
  )
  made._on_start([dataclasses.asdict(place)])
  assert made._ranks[0].popen.pid != dead.popen.pid
  dead.popen.stdin.close()
  dead.close()


def test_order_that_comes_in_pieces_is_followed_once(inside, monkeypatch):
  (made, write), followed = inside, []
  monkeypatch.setattr(
    made, '_on_signal', lambda number: followed.append(number)
  )
  for piece in (b'{"do": "signal", "num', b'ber": 15}\n{"do"'):
    os.write(write, piece)
    assert made._listen()
  assert followed == [15]


@pytest.mark.parametrize('age_s, suspect', [(0.5, False), (1.5, True)])
def test_starvation_is_measured_where_there_is_no_progress(
  monkeypatch, age_s, suspect
):
  monkeypatch.setattr(beats.Slot, 'age_s', age_s)
  monkeypatch.setattr(
    agent.starvation.Starvation, 'look', lambda _, is_suspect: is_suspect
  )
  process = agent.Process(['true'])
  process.look()
  assert process.describe()['starved'] == suspect
  process.popen.wait()
  process.popen.stdin.close()
  process.close()
