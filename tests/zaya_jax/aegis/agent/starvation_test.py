# SPDX-License-Identifier: Apache-2.0
"""Who waits for a processor, and who for something else."""

import os
import subprocess
import sys
import time

import pytest

from zaya_jax.aegis.agent import starvation

BUSY = 'import os; os.sched_setaffinity(0, {%d})\nwhile True: pass'
IDLE = 'import time; time.sleep(600)'


@pytest.fixture
def start():
  started = []

  def run(program):
    started.append(subprocess.Popen([sys.executable, '-c', program]))
    return started[-1].pid

  yield run
  for process in started:
    process.kill()
    process.wait()


def found(pid):
  """What looks within a second say."""
  measured, says = starvation.Starvation(pid), []
  for _ in range(12):
    says.append(measured.look())
    time.sleep(0.1)
  return says


def test_four_on_one_processor_are_starved(start):
  one = min(os.sched_getaffinity(0))
  pids = [start(BUSY % one) for _ in range(4)]
  time.sleep(0.5)
  assert any(found(pids[0]))


def test_who_sleeps_is_not(start):
  pid = start(IDLE)
  time.sleep(1.0)
  assert not any(found(pid))


def test_nobody_waits_where_there_is_no_process():
  assert starvation.waited_s(2**30) == 0.0


def test_nothing_is_measured_while_there_is_progress(start, monkeypatch):
  measured = starvation.Starvation(0)
  clock = iter([0.0, 1.0, 2.0, 3.0, 3.1])
  waited = iter([5.0, 6.0, 9.0])
  monkeypatch.setattr(starvation.time, 'monotonic', lambda: next(clock))
  monkeypatch.setattr(starvation, 'waited_s', lambda pid: next(waited))
  assert not measured.look()
  assert measured.look()  # A second of waiting in one second.
  assert not measured.look(is_suspect=False)
  assert not measured.look()  # A window begins anew
  assert not measured.look()  # and is not whole yet.
