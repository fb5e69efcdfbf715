# SPDX-License-Identifier: Apache-2.0
"""Saving in the background, keeping, failing and being killed."""

import os
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import hashes
from zaya_jax.checkpoint import errors
from zaya_jax.checkpoint.writing import manager

# Saves 16 MB at step 1, then starts to save as many at step 2.
SAVE_TWICE = """
import os, resource, signal, sys, time
import jax.numpy as jnp
import numpy as np
from zaya_jax import config
from zaya_jax.checkpoint import errors
from zaya_jax.checkpoint.writing import manager

def save(step):
  w = np.random.default_rng(step).random(size, np.float32)
  state = {'params': {'w': jnp.asarray(w)}}
  m.save(step, state, data_index=step, meta={})

size, run_dir, argument = 1 << 22, sys.argv[1], sys.argv[2]
m = manager.Manager(run_dir, config.CheckpointConfig())
save(1)
m.wait()
"""
THEN_DIE = """
size = 1 << 26
save(2)
time.sleep(float(argument))
os.kill(os.getpid(), signal.SIGKILL)
"""
# A file may not grow beyond 1 MB: to a program this is a full disk.
THEN_FILL = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
save(2)
if argument == 'room again':
  m._finish()
  unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
  resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
  save(3)
try:
  m.close()
except errors.CheckpointError as error:
  print(error)
  sys.exit(error.exit_code)
"""


def folder(tmp_path):
  return sorted(os.listdir(tmp_path / 'run' / 'checkpoints'))


def test_new_run_has_no_checkpoint(make_manager):
  with make_manager() as checkpoints:
    assert checkpoints.latest_step() is None


def test_newest_best_and_every_kth_are_kept_together(
  make_manager, make_state, tmp_path
):
  bpb = {1: 5.0, 2: None, 3: 1.0, 4: float('nan'), 5: 3.0, 6: 2.0, 7: None}
  with make_manager(keep=2, keep_every=4) as checkpoints:
    for step in range(1, 6):
      meta = {'metrics': {'val/bpb': bpb[step]} if bpb[step] else {}}
      checkpoints.save(step, make_state(), data_index=step, meta=meta)
  with make_manager(keep=2, keep_every=4) as checkpoints:  # Metrics survive.
    for step in (6, 7):
      meta = {'metrics': {'val/bpb': bpb[step]} if bpb[step] else {}}
      checkpoints.save(step, make_state(), data_index=step, meta=meta)
    checkpoints.wait()
    assert checkpoints.latest_step() == 7
  assert folder(tmp_path) == ['3', '4', '6', '7']


def test_arrays_may_be_donated_right_after_save(make_manager, abstract):
  w = np.random.default_rng(0).random(1 << 23, np.float32)
  state = {'params': {'w': jnp.asarray(w)}}
  expected, wanted = hashes.state_hash(state), abstract(state)
  forget = jax.jit(
    lambda tree: jax.tree.map(jnp.negative, tree), donate_argnums=0
  )
  with make_manager() as checkpoints:
    checkpoints.save(1, state, data_index=0, meta={})
    for _ in range(5):
      state = forget(state)
    checkpoints.wait()
    restored, _, _ = checkpoints.restore(1, wanted)
  assert hashes.state_hash(restored) == expected


def test_step_on_disk_is_not_saved_again(make_manager, make_state, abstract):
  with make_manager() as checkpoints:
    checkpoints.save(3, make_state(1), data_index=1, meta={})
    checkpoints.save(3, make_state(2), data_index=2, meta={})
    checkpoints.wait()
    _, data_index, _ = checkpoints.restore(3, abstract(make_state()))
  assert data_index == 1


def test_empty_directory_never_counts_and_blocks_no_save(
  saved, make_manager, make_state, tmp_path
):
  (saved.parent / '9999999').mkdir()
  with make_manager() as checkpoints:
    assert checkpoints.latest_step() == 4
    checkpoints.save(5, make_state(), data_index=5, meta={})
    checkpoints.wait()
    assert checkpoints.latest_step() == 5
  assert folder(tmp_path) == ['4', '5', 'bad']


def test_full_disk_is_foreseen_and_training_goes_on(
  saved, make_manager, make_state, monkeypatch, caplog
):
  full = types.SimpleNamespace(free=10)
  with make_manager() as checkpoints:
    with monkeypatch.context() as patch:
      patch.setattr(manager.shutil, 'disk_usage', lambda _: full)
      checkpoints.save(5, make_state(), data_index=5, meta={})
      assert 'Checkpoint 5 was not written' in caplog.text
      assert '10 are free' in caplog.text
      with pytest.raises(errors.CheckpointError) as caught:
        checkpoints.wait()
    assert caught.value.exit_code == 3
    assert checkpoints.latest_step() == 4
    checkpoints.save(6, make_state(), data_index=6, meta={})
  assert len(caplog.records) == 1


def test_error_in_flight_is_not_hidden_by_failed_save(
  make_manager, make_state, monkeypatch
):
  full = types.SimpleNamespace(free=10)
  monkeypatch.setattr(manager.shutil, 'disk_usage', lambda _: full)
  with pytest.raises(ZeroDivisionError):
    with make_manager() as checkpoints:
      checkpoints.save(5, make_state(), data_index=5, meta={})
      raise ZeroDivisionError


@pytest.mark.parametrize('delay', [0.0, 0.05, 0.2])
def test_killed_save_leaves_the_one_before(
  delay, make_manager, make_state, tmp_path, run_python, abstract
):
  killed = run_python(SAVE_TWICE + THEN_DIE, tmp_path / 'run', delay)
  assert killed.returncode == -9, killed.stderr
  assert folder(tmp_path)[0] == '1' and len(folder(tmp_path)) == 2
  wanted = abstract({'params': {'w': jnp.zeros((1 << 22,))}})
  with make_manager() as checkpoints:
    assert checkpoints.latest_step() == 1
    restored, data_index, _ = checkpoints.restore(1, wanted)
    checkpoints.save(2, make_state(), data_index=2, meta={})
  expected = np.random.default_rng(1).random(1 << 22, np.float32)
  np.testing.assert_array_equal(restored['params']['w'], expected)
  assert data_index == 1
  assert folder(tmp_path) == ['1', '2']


def test_disk_that_fills_while_saving_is_an_error_at_the_end(
  tmp_path, run_python, make_manager
):
  done = run_python(SAVE_TWICE + THEN_FILL, tmp_path / 'run', 'stays full')
  assert done.returncode == 3
  assert done.stdout.startswith('Checkpoint 2 was not written')
  assert 'File too large' in done.stdout and done.stdout.count('\n') == 1
  assert 'Traceback' not in done.stderr and done.stderr.count('\n') == 1
  # A thread of Orbax may still write while the half of step 2 is removed.
  with make_manager() as checkpoints:
    assert checkpoints.latest_step() == 1
  assert folder(tmp_path) == ['1']


def test_run_outlives_disk_that_was_full(tmp_path, run_python):
  done = run_python(SAVE_TWICE + THEN_FILL, tmp_path / 'run', 'room again')
  assert done.returncode == 0, done.stderr
  assert done.stderr.count('Checkpoint 2 was not written') == 1
  assert folder(tmp_path) == ['1', '3']


def test_of_processes_who_fails_says_why_and_who_waited_only_that(
  make_manager, monkeypatch
):
  ended = []
  waited = TimeoutError('async_write_complete')
  waited.__cause__ = jax.errors.JaxRuntimeError('DEADLINE_EXCEEDED')
  with make_manager(timeout_s=7) as checkpoints, monkeypatch.context() as two:
    two.setattr(manager.processes, 'processes', lambda: 2)
    two.setattr(manager.session, 'fail', ended.append)
    checkpoints._give_up(6, waited)
    checkpoints._give_up(6, OSError('File too large'))
  assert [error.exit_code for error in ended] == [75, 3]
  assert '--checkpoint.timeout_s=7' in str(ended[0])
  assert 'OSError: File too large' in str(ended[1])


def test_normal_run_prints_nothing(tmp_path, run_python):
  done = run_python(SAVE_TWICE + 'm.close()', tmp_path / 'run', '')
  assert (done.returncode, done.stdout, done.stderr) == (0, '', '')
