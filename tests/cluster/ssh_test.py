# SPDX-License-Identifier: Apache-2.0
"""Agents over a real sshd: connections that end, shells that talk."""

import os
import signal
import time

import pytest

from tests.cluster import trial

NODES = ('--aegis.nodes=n1,n2,n3', '--aegis.spares=1')


@pytest.fixture
def start(site, ssh):
  """A function: name -> a run over ssh, which ends with the test."""
  made = []

  def make(name, *more):
    made.append(trial.Trial(site, name))
    made[-1].start(*NODES, f'--aegis.agent={ssh.agent}', *more)
    return made[-1]

  yield make
  for one in made:
    one.close()


def test_run_over_ssh_equals_that_of_one_machine(start, expected, record):
  row = record(trial.finish(start('ssh'), expected))
  trial.assert_whole(row)
  assert row['incidents'] == []


def test_lost_connection_gives_the_place_to_the_spare(
  start, expected, record, site, ssh
):
  run = start('ssh_connection_killed')
  run.await_step(20)
  since = time.time()
  for pid in ssh.sessions(site.box.nodes['n2']):
    os.kill(pid, signal.SIGKILL)
  row = record(trial.finish(run, expected, since))
  trial.assert_whole(row)
  assert row['incidents'] == ['agent_lost']


def test_banner_of_the_shell_is_no_report(
  start, expected, record, site, folder
):
  (folder / 'bashrc').write_text('echo "Welcome to $(hostname)!"; echo "{}"\n')
  for node in site.box.nodes.values():
    node.run(f'mount --bind {folder}/bashrc /root/.bashrc')
  try:
    row = record(trial.finish(start('ssh_banner'), expected))
  finally:
    for node in site.box.nodes.values():
      node.run('umount /root/.bashrc')
  trial.assert_whole(row)
  assert row['incidents'] == []
