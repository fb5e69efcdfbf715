# SPDX-License-Identifier: Apache-2.0
"""Agents behind poor networks: late and lost packets, cables pulled out."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.cluster import box as box_lib
from tests.cluster import ssh_test, trial

NODES = ssh_test.NODES
# Ranks speak over the same cable; they wait for it as long as for a slow step.
PATIENT = '--aegis.step_limit_s=30'
start = ssh_test.start


@pytest.fixture
def far(site, ssh):
  """A value of --aegis.agent: 200 ms there and 200 back, 5% are lost."""
  wires = []
  for number, node in enumerate(site.box.nodes.values(), start=1):
    words = [sys.executable, '-m', 'tests.cluster.wire', str(node.inside)]
    wires.append(
      site.box.start(
        [*words, node.name, str(number), '0.05', '0.2'],
        stdout=subprocess.PIPE,
        text=True,
      )
    )
  for wire in wires:
    assert 'connected' in wire.stdout.readline()
  yield ssh.agent.replace('{node}', '{node}-far')
  for wire in wires:
    os.kill(box_lib.last_process(wire.pid), signal.SIGKILL)
    wire.communicate()


def test_poor_network_loses_nobody(start, expected, record, far):
  run = start('poor_network', f'--aegis.agent={far}')
  row = record(trial.finish(run, expected))
  trial.assert_whole(row)
  assert row['incidents'] == []


def cut(run, node, seconds):
  """Takes a cable out for some seconds; returns when, since 1970."""
  run.await_step(20)
  since = time.time()
  node.cut()
  time.sleep(seconds)
  node.mend()
  return since


def test_cable_out_for_5_s_condemns_nobody(start, expected, record, site):
  run = start('cut_5s', PATIENT)
  since = cut(run, site.box.nodes['n2'], 5)
  row = record(trial.finish(run, expected, since))
  trial.assert_whole(row)
  assert 'agent_lost' not in row['incidents']


def test_node_cut_off_has_no_rank_when_another_takes_its_place(
  start, expected, record, site
):
  run = start('cut_40s', PATIENT)
  node = site.box.nodes['n2']
  run.await_step(20)
  since = time.time()
  node.cut()
  try:
    trial.await_(lambda: run.rows('agent_lost'), 'the loss of the agent', 60)
    # The second line of `starts`: places are told only then.
    trial.await_(lambda: run.said('generation 2 '), 'the next generation', 60)
    zombies = len(node.processes(f'{run.run_dir}/aegis'))
    time.sleep(max(0, since + 40 - time.time()))
  finally:
    node.mend()
  row = trial.finish(run, expected, since)
  record(row | {'zombies': zombies})
  trial.assert_whole(row)
  assert row['incidents'] == ['agent_lost']
  assert zombies == 0


def test_switch_off_for_20_s_condemns_nobody(start, expected, record, site):
  run = start('switch_off_20s', PATIENT)
  run.await_step(20)
  since = time.time()
  site.box.run('ip link set br0 down')
  time.sleep(20)
  site.box.run('ip link set br0 up')
  row = trial.finish(run, expected, since)
  record(row)
  trial.assert_whole(row)
  actions = {r['done']['kind'] for r in run.rows() if 'done' in r}
  assert 'replace_node' not in actions
