# SPDX-License-Identifier: Apache-2.0
"""An agent at the other end of a pipe, with ranks that only wait."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from zaya_jax import config as config_lib
from zaya_jax.aegis.agent import agent, protocol
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


class Talk:
  """An agent, and the supervisor's side of its pipes."""

  def __init__(self):
    self._popen = subprocess.Popen(
      [sys.executable, '-m', agent.__name__],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      start_new_session=True,
    )
    self.pid, self.ranks = self._popen.pid, []

  def send(self, do, **order):
    self._popen.stdin.write(protocol.encode({'do': do, **order}))
    self._popen.stdin.flush()

  def await_report(self, kind):
    """Reads until a report of a kind; EOFError if the agent ends before."""
    while line := self._popen.stdout.readline():
      report = json.loads(line)
      self.ranks = report['ranks']
      if report['kind'] == kind:
        return report
    raise EOFError

  def hang_up(self):
    self._popen.stdin.close()

  def close(self):
    self._popen.kill()
    self._popen.wait()
    self._popen.stdout.close()
    self._popen.stdin.close()


@pytest.fixture
def start():
  """Starts an agent, with two ranks where asked."""
  talks = []

  def run(ranks=2, **changes):
    talks.append(Talk())
    made = talks[-1]
    made.send('setup', **SETUP, aegis=AEGIS | changes)
    if ranks:
      places = [
        supervised.Place(
          rank=i, generation=1, run_dir='/nowhere', environment={}
        )
        for i in range(ranks)
      ]
      made.send('start', places=[dataclasses.asdict(p) for p in places])
      made.await_report('started')
    return made

  yield run
  for made in talks:
    made.close()


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
  made.hang_up()
  assert ended(there)


def test_ranks_end_with_their_agent(start):
  made = start()
  there = pids(made)
  while {one['phase'] for one in made.ranks} != {'init'}:
    made.await_report('status')
  os.kill(made.pid, signal.SIGKILL)
  assert ended(there)
  with pytest.raises(EOFError):
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
  os.waitid(os.P_PID, dead.popen.pid, os.WEXITED | os.WNOWAIT)
  made._command = RANK
  place = supervised.Place(
    rank=0, generation=1, run_dir='/nowhere', environment={}
  )
  made._on_start([dataclasses.asdict(place)])
  assert made._ranks[0].popen.pid != dead.popen.pid


def test_order_that_comes_in_pieces_is_followed_once(inside, monkeypatch):
  (made, write), followed = inside, []
  monkeypatch.setattr(
    made, '_on_signal', lambda number: followed.append(number)
  )
  for piece in (b'{"do": "signal", "num', b'ber": 15}\n{"do"'):
    os.write(write, piece)
    assert made._listen()
  assert followed == [15]


def test_agent_says_its_version_first(start):
  made = start(ranks=0)
  assert made.await_report('hello')['version'] == protocol.VERSION


def test_ranks_end_when_the_supervisor_is_silent(start):
  made = start()
  there, sent = pids(made), made.await_report('status')['sent']
  made.send('ack', sent=sent, for_s=1.0)
  assert ended(there)


def test_ranks_go_on_while_the_supervisor_answers(start):
  made = start()
  for _ in range(5):
    made.send('ack', sent=made.await_report('status')['sent'], for_s=1.5)
  assert [rank['exit_code'] for rank in made.ranks] == [None, None]


def test_pipe_that_nobody_reads_stops_no_agent(start):
  """Its ranks end in time, though it cannot report any more."""
  made = start()
  there, sent = pids(made), made.await_report('status')['sent']
  made.send('ack', sent=sent, for_s=3.0)
  for _ in range(2000):  # More reports than the pipe holds.
    made.send('kill')
  assert ended(there)
