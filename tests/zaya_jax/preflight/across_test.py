# SPDX-License-Identifier: Apache-2.0
"""--mode=preflight in four processes: who is slow or hangs is named."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from zaya_jax import config as config_lib
from zaya_jax.bench.sweep import limit
from zaya_jax.preflight import across as across_lib
from zaya_jax.preflight.links import measure

COUNT = 4


class Meter:
  """Stands in for `measure.Meter`: says what it is told, and nothing hangs.

  Attributes:
    rates: of links, and of `memory`.
    faults: of links.
    asked: how often links were measured.
  """

  def __init__(self, count=COUNT):
    self.rates, self.faults, self.asked = {}, {}, 0
    self.doing, self.waiting, self._count = [], [], count

  def start(self):
    pass

  def nodes(self):
    found = {p: measure.Found(rate=1.0) for p in range(self._count)}
    slow = {
      p: measure.Found(rate=r) for p, r in self.rates.items() if p in found
    }
    return {'memory': found | slow, 'product': found}

  def links(self, pairs):
    self.asked += 1
    rate = lambda pair: self.rates.get(pair, 1.0)
    at = lambda r: r[min(self.asked, len(r)) - 1] if isinstance(r, list) else r
    return {
      pair: measure.Found(rate=at(rate(pair)), fault=self.faults.get(pair, ''))
      for pair in pairs
    }

  def name(self, who):
    return measure.Meter.name(self, who)

  def unfinished(self):
    return self.waiting

  _names = ['n0', 'n1', 'n2', 'n3']


@pytest.fixture
def across():
  names = list(Meter._names)
  found = across_lib._Across(config_lib.Config(), names, 60.0, time.monotonic())
  found._meter = Meter()
  return found


def faults(checks):
  return {c.name: c.found for c in checks if c.outcome == 'fault'}


def test_equal_links_are_fit_and_measured_once(across):
  checks = across.run([])
  assert {c.outcome for c in checks} == {'fit'}
  assert across._meter.asked == 1
  assert len(across.found['link between nodes']) == 6


def test_slow_link_is_named_after_it_was_slow_each_time(across):
  across._meter.rates = {(1, 2): 0.4}
  named = 'link between nodes of process 1 (n1) and process 2 (n2)'
  assert faults(across.run([])) == {named: '0.40 of the others'}
  assert across._meter.asked == across_lib.PASSES


def test_link_that_is_slow_at_times_is_not(across):
  across._meter.rates = {(1, 2): [0.4, 0.3, 0.95]}
  assert not faults(across.run([])) and across._meter.asked == 3


def test_share_that_counts_is_the_best(across):
  across._meter.rates = {(1, 2): [0.5, 0.2]}
  [found] = faults(across.run([])).values()
  assert found == '0.50 of the others'


def test_slow_node_is_named(across):
  across._meter.rates = {(0, 2): 0.2, (1, 2): 0.1, (2, 3): 0.3, 3: 0.5}
  found = faults(across.run([]))
  assert found == {
    'every link between nodes of process 2 (n2)': '3 links, 0.30 of the others '
    'at best',
    'memory of process 3 (n3)': '0.50 of the others',
  }


def test_wrong_values_are_a_fault_of_the_link(across):
  across._meter.faults = {(0, 3): 'permute gave 7 wrong values'}
  [(name, found)] = faults(across.run([])).items()
  assert 'process 0 (n0) and process 3 (n3)' in name
  assert found == 'permute gave 7 wrong values'


def test_one_link_is_not_checked_and_never_fit(monkeypatch):
  across = across_lib._Across(config_lib.Config(), ['n0', 'n1'], 60.0, 0.0)
  across._meter = Meter(2)
  outcomes = {c.name: c.outcome for c in across.run([])}
  assert outcomes['link between nodes'] == 'not checked'


@pytest.mark.parametrize(
  'missing, waiting, said',
  [
    ((2,), [0, 1, 2], 'process 2 (n2) does not answer'),
    ((), [1, 3], 'the link of process 1 (n1) and process 3 (n3) hangs'),
  ],
)
def test_who_hangs_is_named(
  across, monkeypatch, capsys, missing, waiting, said
):
  told = []
  monkeypatch.setattr(across_lib.session, 'fail', told.append)
  across._meter.doing, across._meter.waiting = [(0, 2), (1, 3)], waiting
  error = limit.HungError('it did not end')
  error.missing = missing
  across._hung(error)
  [told] = told
  assert told.exit_code == 3 and str(told).startswith(said)
  assert f'is not fit: hung {said}' in capsys.readouterr().out


def start(flags, program=('zaya_jax.main',)):
  """Four processes, each one's output in a file beside --output."""
  with socket.socket() as probe:
    probe.bind(('127.0.0.1', 0))
    port = probe.getsockname()[1]
  return [
    subprocess.Popen(
      [sys.executable, '-m', *program, '--mode=preflight', *flags]
      + [f'--distributed.coordinator=127.0.0.1:{port}']
      + [f'--distributed.processes={COUNT}', f'--distributed.process={i}'],
      env={k: v for k, v in os.environ.items() if k != 'XLA_FLAGS'},
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    for i in range(COUNT)
  ]


def end(processes):
  said = [process.communicate(timeout=400)[0] for process in processes]
  return [process.returncode for process in processes], said


@pytest.mark.long  # Many processes.
def test_slow_link_of_four_processes_is_named(tmp_path):
  output = tmp_path / 'found.json'
  program = ('tests.support.slow_link', '1-2')
  codes, said = end(start([f'--output={output}'], program))
  assert codes == COUNT * [3], said[0]
  found = json.loads(output.read_text())
  [fault] = [c for c in found['checks'] if c['outcome'] == 'fault']
  assert fault['name'].startswith('link within a node of process 1 (')
  assert ' and process 2 (' in fault['name']
  assert said[0].strip().splitlines()[-1].endswith('of the others.')


@pytest.mark.long  # Many processes.
def test_slow_process_of_four_is_named(tmp_path):
  output = tmp_path / 'found.json'
  program = ('tests.support.slow_link', '2')
  codes, said = end(start([f'--output={output}'], program))
  assert codes == COUNT * [3], said[0]
  checks = json.loads(output.read_text())['checks']
  faults = [c['name'] for c in checks if c['outcome'] == 'fault']
  named = {name.partition(' of process ')[0] for name in faults}
  # On a busy machine the others wait for a core, as long as this one sleeps.
  assert named <= {'memory', 'product', 'every link within a node'}
  assert len(named) >= 2
  assert all(' of process 2 (' in name for name in faults)


@pytest.mark.long  # Many processes.
def test_clean_runs_under_load_are_fit():
  busy = [
    subprocess.Popen([sys.executable, '-c', 'while True: pass'])
    for _ in range(os.cpu_count())
  ]
  try:
    for _ in range(10):
      codes, said = end(start([]))
      assert codes == COUNT * [0], said[0]
  finally:
    for one in busy:
      one.kill()
      one.wait()


@pytest.mark.long  # It waits for the limit.
def test_stopped_process_is_named_at_the_limit():
  processes = start([])
  first = processes[2]
  os.set_blocking(first.stdout.fileno(), True)
  for line in first.stdout:
    if 'Gloo' in line:  # The first link.
      break
  first.send_signal(signal.SIGSTOP)
  others = [p for p in processes if p is not first]
  try:
    codes, said = end(others)
  finally:
    first.kill()
    first.communicate()
  assert codes == 3 * [3], said[0]
  assert 'is not fit: hung process 2 (' in said[0]
  assert 'does not answer' in said[0].strip().splitlines()[-2]
