# SPDX-License-Identifier: Apache-2.0
"""Training processes as their agent sees them."""

import os
import signal
import sys

import pytest

from zaya_jax.aegis.agent import process
from zaya_jax.runtime import beats


def end_of(made):
  """Waits until it has ended, but leaves its number to it."""
  os.waitid(os.P_PID, made.popen.pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.parametrize('age_s, suspect', [(0.5, False), (1.5, True)])
def test_starvation_is_measured_where_there_is_no_progress(
  monkeypatch, age_s, suspect
):
  monkeypatch.setattr(beats.Slot, 'age_s', age_s)
  monkeypatch.setattr(
    process.starvation.Starvation, 'look', lambda _, is_suspect: is_suspect
  )
  made = process.Process(['true'])
  made.look()
  assert made.describe()['starved'] == suspect
  assert made.wait(30)


@pytest.mark.parametrize(
  'program, code',
  [('exit(7)', 7), ('import os, signal; os.kill(os.getpid(), 11)', -11)],
)
def test_exit_code_is_known_before_the_number_is_free(program, code):
  made = process.Process([sys.executable, '-c', program])
  end_of(made)
  assert made.exit_code == made.describe()['exit_code'] == code
  assert made.popen.returncode is None
  assert made.wait(30) and made.exit_code == code


def test_children_of_a_rank_that_has_ended_are_killed(tmp_path):
  os.mkfifo(tmp_path / 'alive')
  program = f"""
import os, time
if os.fork() == 0:
  file = open({str(tmp_path / 'alive')!r}, 'w')
  time.sleep(600)
"""
  made = process.Process([sys.executable, '-c', program])
  with open(tmp_path / 'alive') as alive:
    end_of(made)
    made.signal(signal.SIGKILL)
    assert alive.read() == ''  # The end: nobody holds it open any more.
  assert made.wait(30)


def test_number_that_is_free_gets_no_signal(monkeypatch):
  made = process.Process(['true'])
  assert made.wait(30)
  monkeypatch.setattr(os, 'killpg', lambda *_: pytest.fail('another process'))
  made.signal(signal.SIGKILL)


def test_process_that_does_not_end_is_told():
  made = process.Process(['sleep', '600'])
  assert not made.wait(0.01)
  made.signal(signal.SIGKILL)
  assert made.wait(30)


def test_long_reason_is_cut():
  made = process.Process(['true'])
  made.slot.fail(1, 'x' * 2000)
  assert len(made.describe()['why']) == process._WHY
  assert made.wait(30)
