# SPDX-License-Identifier: Apache-2.0
"""Whatever is lost at whatever moment, a generation follows, or the end."""

import os
import signal
import time

import pytest

from tests.support import fake_run


@pytest.fixture
def start(tmp_path):
  """A function: settings of --aegis.* -> a run that trains."""
  runs = []

  def start(**aegis):
    runs.append(fake_run.Run(tmp_path / 'run', log=str(len(runs)), **aegis))
    runs[-1].until('trains after')
    return runs[-1]

  yield start
  for run in runs:
    run.close()


@pytest.mark.parametrize(
  'order',
  [
    (('agent', 'c'), ('rank', 'a')),  # c is the spare.
    pytest.param((('rank', 'a'), ('agent', 'c')), marks=pytest.mark.long),
    (('rank', 'a'), ('agent', 'b')),
  ],
)
def test_what_is_lost_in_one_pause_is_followed_by_a_generation(start, order):
  """Long: the first two, the other way round."""
  run = start(nodes=['a', 'b', 'c'], spares=1)
  by_node = run.agents()
  pids = [
    by_node[node] if what == 'agent' else fake_run.children(by_node[node])[0]
    for what, node in order
  ]
  run.pause()
  for pid in pids:
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.7)  # So that an agent reports the end of its rank before.
  run.go_on()
  run.until('generation 2 trains')


@pytest.mark.long
def test_pause_of_the_supervisor_costs_no_node(start):
  run = start(nodes=['a', 'b'])
  run.pause()
  time.sleep(11)  # More than an agent may be silent.
  run.go_on()
  run.until('did not run for')
  before = run.steps(1)
  fake_run.wait(lambda: run.steps(1) > before)
  assert run.steps(1) > before
  assert len(run.incidents('paused')) == 1
  assert not run.incidents('agent_lost')


@pytest.mark.long
def test_agents_that_start_slowly_are_waited_for(start, tmp_path):
  slow = tmp_path / 'slow'
  slow.write_text('#!/bin/sh\nsleep 11\nexec "$@"\n')
  slow.chmod(0o755)
  run = start(nodes=['a'], agent=f'{slow}')
  assert not run.incidents('agent_lost', 'not_started')


def test_command_that_starts_no_agent_ends_the_run_and_is_quoted(tmp_path):
  wrong = tmp_path / 'wrong'
  wrong.write_text('#!/bin/sh\necho Permission denied\nexit 255\n')
  wrong.chmod(0o755)
  run = fake_run.Run(tmp_path / 'run', nodes=list('abcd'), agent=f'{wrong}')
  try:
    assert run.end() == 2
    assert run.said('Permission denied') and run.said('--aegis.agent')
  finally:
    run.close()


def test_health_checks_run_at_once(start):
  begun = time.monotonic()
  start(nodes=list('abcd'), health='sleep 2')
  assert time.monotonic() < begun + 6  # One after the other take eight.


def test_signal_ends_a_wait_at_once(tmp_path):
  run = fake_run.Run(tmp_path / 'run', nodes=['a'], health='sleep 30')
  try:
    fake_run.wait(lambda: (run.run_dir / 'incidents.jsonl').exists())
    time.sleep(1)
    begun = time.monotonic()
    run.process.terminate()
    assert run.end() == 75
    assert time.monotonic() < begun + 5
  finally:
    run.close()


@pytest.mark.long
def test_nodes_lost_together_are_one_event_and_come_back(start):
  run = start(nodes=list('abcd'))
  agents = run.agents()
  for node in 'abc':
    os.kill(agents[node], signal.SIGKILL)
  run.until('generation 2 trains')
  (row,) = run.incidents('agent_lost')
  assert set(row['nodes']) == set('abc') and row['done']['kind'] == 'wait'
  assert {row['node'] for row in run.incidents('returned')} == set('abc')


def test_banner_of_an_agent_is_a_warning_once(start, tmp_path):
  banner = tmp_path / 'banner'
  banner.write_text('#!/bin/sh\necho Authorized users only\nexec "$@"\n')
  banner.chmod(0o755)
  run = start(nodes=['a', 'b'], agent=f'{banner}')
  rows = run.incidents('cannot_watch')
  assert [row['node'] for row in rows] == ['a', 'b']
  assert 'Authorized users only' in rows[0]['seen']


RELAY = f'{fake_run.sys.executable} -m tests.support.fake_relay'


@pytest.mark.long
def test_ranks_behind_a_cut_network_end_before_others_begin(start):
  run = start(nodes=['a', 'b'], spares=1, agent=RELAY, lease_s=4.0)
  os.kill(run.agents()['a'], signal.SIGSTOP)
  time.sleep(6)  # The lease, and time to kill.
  ended = run.steps(1)
  assert not run.said('generation 2')
  run.until('generation 2 trains')
  assert run.steps(1) == ended  # Nobody of generation 1 steps any more.


def test_second_supervisor_is_refused_without_the_lock_file(start, tmp_path):
  run = start()
  os.remove(run.run_dir / '.lock')
  second = fake_run.Run(tmp_path / 'run', log='second')
  try:
    assert second.end() == 2
    assert not run.said('generation 2')
  finally:
    second.process.kill()
