# SPDX-License-Identifier: Apache-2.0
"""Beats: what one process writes, another one reads."""

import subprocess
import sys
import time

import pytest

from zaya_jax.runtime import beats


@pytest.fixture
def slot():
  made = beats.Slot()
  yield made
  made.close()


WRITER = """
import sys
from zaya_jax.runtime import beats

writer = beats.Slot(int(sys.argv[1]))
writer.enter('step', 7)
writer.finish(6)
writer.enter('save', 7)
writer.fail(3, 'full disk ' + 'x' * 5000)
"""


def test_the_reader_sees_what_another_process_writes(slot):
  command = [sys.executable, '-c', WRITER, str(slot.file)]
  subprocess.run(command, check=True, pass_fds=[slot.file])
  assert (slot.phase, slot.entered, slot.done) == ('save', 7, 6)
  assert slot.failure[1] == 'full disk ' + 'x' * 2038
  assert slot.age_s < 60


def test_every_phase_is_known(slot):
  for phase in beats.PHASES:
    slot.enter(phase, 1)
    assert slot.phase == phase
  with pytest.raises(ValueError):
    slot.enter('coffee')


@pytest.fixture
def clock(monkeypatch):
  """A clock in ns that only moves when told."""
  now = [10**9]
  monkeypatch.setattr(time, 'monotonic_ns', lambda: now[0])
  return now


def test_first_steps_teach_nothing(slot, clock):
  for step in range(1, 7):
    slot.enter('step', step)
    clock[0] += 10**9
  assert slot.step_p99_s() is None
  slot.enter('step', 7)
  assert slot.step_p99_s() == 1.0


def test_a_save_is_no_part_of_the_duration_of_a_step(slot, clock):
  for step in range(1, 50):
    slot.enter('data', step)
    slot.enter('step', step)
    clock[0] += 2 * 10**9
    if step % 7 == 0:
      slot.enter('save', step)
      clock[0] += 100 * 10**9
  assert slot.step_p99_s() == 2.0


def test_only_the_last_steps_count(slot, clock):
  for step in range(1, 500):
    slot.enter('step', step)
    clock[0] += (9 if step < 300 else 1) * 10**9
  assert slot.step_p99_s() == 1.0


def test_without_an_agent_nothing_is_written():
  assert not beats.is_watched()
  beats.enter('step', 1)
  beats.finish(1)
  beats.fail(1, 'why')
