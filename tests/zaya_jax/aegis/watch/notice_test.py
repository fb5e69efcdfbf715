# SPDX-License-Identifier: Apache-2.0
"""Notices that the machines will be taken away."""

import os
import signal

import pytest

from zaya_jax.aegis.decide import decide
from zaya_jax.aegis.decide import state as state_lib
from zaya_jax.aegis.watch import notice

TERM, INT, USR1 = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1


def test_file_becomes_a_save_and_an_end(tmp_path):
  path = tmp_path / 'preempt'
  looking = notice.File(str(path))
  assert looking.poll(1.0) == []
  path.write_text('TERMINATE \x1b[31m\nat 12:00')
  (event,) = looking.poll(2.0)
  assert (event.kind, event.time_s) == ('stop_requested', 2.0)
  assert event.detail == f'the notice {path}: TERMINATE \\x1b[31m\\nat 12:00'
  _, action = decide.decide(state_lib.start(('a',)), event)
  assert (action.kind, action.exit_code) == ('checkpoint_and_drain', 75)
  path.write_text('again')
  assert looking.poll(3.0) == []  # It is told once.


def test_empty_file_counts_too(tmp_path):
  path = tmp_path / 'preempt'
  looking = notice.File(str(path))
  path.touch()
  (event,) = looking.poll(1.0)
  assert event.detail == f'the notice {path}'


def test_file_of_an_earlier_end_ends_no_run(tmp_path):
  path = tmp_path / 'preempt'
  path.touch()
  looking = notice.File(str(path))
  assert looking.poll(1.0) == []
  os.utime(path, ns=(1, 1))  # It is touched again.
  assert len(looking.poll(2.0)) == 1


def test_file_that_is_made_anew_counts(tmp_path):
  path = tmp_path / 'preempt'
  path.touch()
  looking = notice.File(str(path))
  path.unlink()
  assert looking.poll(1.0) == []
  path.touch()
  assert len(looking.poll(2.0)) == 1


def test_no_file_and_a_path_that_cannot_be_read(tmp_path):
  assert notice.File('').poll(1.0) == []
  (tmp_path / 'file').touch()
  assert notice.File(f'{tmp_path}/file/preempt').poll(1.0) == []
  looking = notice.File(f'{tmp_path}/folder')
  (tmp_path / 'folder').mkdir()
  assert len(looking.poll(1.0)) == 1


@pytest.mark.parametrize(
  'numbers, meanings',
  [
    ([TERM], ['stop']),
    ([USR1], ['stop']),
    ([TERM, TERM], ['stop', 'now']),
    ([INT, TERM], ['stop', 'now']),
    # Slurm: the notice, then the end of the time.
    ([USR1, TERM], ['stop', 'wait']),
    ([USR1, TERM, TERM], ['stop', 'wait', 'now']),
    ([USR1, USR1], ['stop', 'wait']),
    ([TERM, USR1], ['stop', 'wait']),
  ],
)
def test_second_signal_insists_and_a_notice_does_not(numbers, meanings):
  requests, is_ending, found = notice.Requests(), False, []
  for number in numbers:
    found.append(requests.weigh(number, is_ending=is_ending))
    is_ending = True
  assert found == meanings


def test_signal_after_the_file_does_not_insist():
  assert notice.Requests().weigh(TERM, is_ending=True) == 'wait'
