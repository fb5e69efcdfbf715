# SPDX-License-Identifier: Apache-2.0
"""Saves that failed: warned of, counted, and told to other processes."""

import json
import time

import jax
import pytest

from zaya_jax import config as config_lib
from zaya_jax.checkpoint import errors
from zaya_jax.checkpoint.reading import ownership
from zaya_jax.checkpoint.writing import failures
from zaya_jax.runtime import processes, session, supervised


@pytest.fixture
def failed():
  """Of at most three in a row."""
  config = config_lib.CheckpointConfig(max_failed_saves=3, timeout_s=7)
  return failures.Failures('/runs/a/checkpoints', config)


def test_failure_is_one_sentence_with_what_to_do(failed, caplog):
  failed.add(6, 'the disk is full')
  assert caplog.messages == [
    'Checkpoint 6 was not written to /runs/a/checkpoints: the disk is full; '
    'the older ones are intact; make room there or repair the disk before the '
    'next save.'
  ]
  assert failed.newest.endswith('repair the disk, and repeat the command.')


def test_three_in_a_row_are_an_error_and_a_success_between_counts_anew(failed):
  for step in (1, 2):
    failed.add(step, 'why')
  failed.reset()
  for step in (3, 4):
    failed.add(step, 'why')
  with pytest.raises(errors.CheckpointError, match='Checkpoint 5 ') as caught:
    failed.add(5, 'why')
  assert '--checkpoint.max_failed_saves=3' in str(caught.value)
  assert str(caught.value).endswith(', and repeat the command.')
  assert caught.value.exit_code == 3


def test_saves_that_wait_for_the_lease_store_do_not_count(failed, caplog):
  away = f'{ownership._UNCONFIRMED} (etcd://e1:2379 does not answer)'
  for step in range(1, 9):
    failed.add(step, away)
  assert 'ends with 75 and can be repeated' in caplog.messages[-1]
  for step in (9, 10):
    failed.add(step, 'why')
  with pytest.raises(errors.CheckpointError) as caught:
    failed.check()
  assert caught.value.exit_code == 3
  failed.add(11, away, last=True)
  with pytest.raises(errors.CheckpointError, match='etcd') as caught:
    failed.check()
  assert caught.value.exit_code == 75
  with pytest.raises(errors.CheckpointError, match='max_failed_saves=3'):
    failed.add(12, 'why')


def test_others_let_process_0_speak_first(failed, monkeypatch):
  slept = []
  monkeypatch.setattr(time, 'sleep', slept.append)
  for process, expected in ((0, []), (1, [1.0])):
    monkeypatch.setattr(processes, 'process', lambda process=process: process)
    for step in (1, 2, 3):
      try:
        failed.add(step, 'why')
      except errors.CheckpointError:
        assert step == 3
    failed.reset()
    assert slept == expected


def test_who_fails_says_why_and_who_waited_only_that(failed, monkeypatch):
  ended = []
  monkeypatch.setattr(session, 'fail', ended.append)
  waited = TimeoutError('async_write_complete')
  waited.__cause__ = jax.errors.JaxRuntimeError('DEADLINE_EXCEEDED')
  failed.give_up(6, waited)
  failed.give_up(6, OSError('File too large'))
  assert [error.exit_code for error in ended] == [75, 3]
  assert '--checkpoint.timeout_s=7' in str(ended[0])
  assert 'OSError: File too large' in str(ended[1])


@pytest.mark.parametrize('rank', [0, 1])
def test_supervisor_hears_of_it_once_and_of_which_generation(
  tmp_path, monkeypatch, rank
):
  place = supervised.Place(
    rank=rank, generation=4, run_dir=str(tmp_path), environment={}
  )
  monkeypatch.setattr(supervised, '_place', place)
  monkeypatch.setattr(processes, 'process', lambda: rank)
  failed = failures.Failures(
    str(tmp_path / 'checkpoints'), config_lib.CheckpointConfig()
  )
  failed.add(6, 'the disk is full')
  path = tmp_path / 'incidents.jsonl'
  assert path.exists() == (rank == 0)
  if rank == 0:
    (row,) = map(json.loads, path.read_text().splitlines())
    assert (row['kind'], row['step'], row['generation']) == (
      'save_failed',
      6,
      4,
    )
    assert row['source'] == 'trainer' and 'the disk is full' in row['seen']
