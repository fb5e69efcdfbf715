# SPDX-License-Identifier: Apache-2.0
"""Which states are saved, which stay, and what is done when one cannot be."""

import os
import shutil
import threading
import time
import types

import jax.numpy as jnp
import pytest

from tests.support import hashes
from zaya_jax.checkpoint import errors, seal
from zaya_jax.checkpoint.writing import manager, retention


def folder(tmp_path):
  return sorted(os.listdir(tmp_path / 'run' / 'checkpoints'))


def save(checkpoints, step, state, **options):
  return checkpoints.save(step, state, data_index=step, meta={}, **options)


@pytest.fixture
def two(make_manager, make_state, tmp_path):
  """The folder of checkpoints 4 and 5."""
  with make_manager() as checkpoints:
    for step in (4, 5):
      save(checkpoints, step, make_state(step))
  return tmp_path / 'run' / 'checkpoints'


def data_file(directory):
  """The largest file: array data."""
  files = [path for path in directory.rglob('*') if path.is_file()]
  return max(files, key=lambda path: path.stat().st_size)


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


def test_broken_newest_is_set_aside_and_the_one_before_restored(
  two, make_manager, make_state, abstract, caplog
):
  path = data_file(two / '5' / 'state')
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 16
  path.write_bytes(content)
  with make_manager() as checkpoints:
    assert checkpoints.latest_step() == 4
    restored, _, _ = checkpoints.restore(4, abstract(make_state()))
    save(checkpoints, 5, make_state(5))
    checkpoints.wait()
    assert checkpoints.latest_step() == 5
  assert hashes.state_hash(restored) == hashes.state_hash(make_state(4))
  kept = two / 'bad' / '5-hash'
  assert (kept / path.relative_to(two / '5')).read_bytes() == content
  assert 'does not count (hash)' in caplog.text


def test_values_that_are_not_those_saved_are_set_aside_and_resumable(
  two, make_manager, make_state, abstract
):
  facts = seal.read(str(two / '5'))
  del facts['files']
  facts['fingerprint']['params/blocks/w'] = '0' * 16
  seal.write(str(two / '5'), facts)
  with make_manager() as checkpoints:
    assert checkpoints.latest_step() == 5  # Its files are as sealed.
    with pytest.raises(seal.BrokenError, match='params/blocks/w') as caught:
      checkpoints.restore(5, abstract(make_state()))
    assert caught.value.exit_code == 75
    assert checkpoints.latest_step() == 4
  assert os.listdir(two / 'bad') == ['5-fingerprint']


def test_sealed_pickle_is_refused_by_name(two, make_manager):
  (two / '5' / 'state' / 'evil.pkl').write_bytes(b'cos\nsystem\n')
  facts = seal.read(str(two / '5'))
  del facts['files']
  seal.write(str(two / '5'), facts)
  with make_manager() as checkpoints:
    assert checkpoints.latest_step() == 4
  assert os.listdir(two / 'bad') == ['5-name']


def test_fence_that_cannot_be_read_is_a_failed_save(
  saved, make_manager, make_state, monkeypatch, caplog
):
  def stale():
    raise OSError(116, 'Stale file handle')

  with make_manager() as checkpoints:
    with monkeypatch.context() as lost:
      lost.setattr(manager.ownership, 'check_fence', stale)
      assert not save(checkpoints, 5, make_state(), urgent=False)
    assert 'Checkpoint 5 was not written' in caplog.text
    assert 'generation is not known (Stale file handle)' in caplog.text
    assert save(checkpoints, 6, make_state())


def test_full_disk_is_foreseen_and_training_goes_on(
  saved, make_manager, make_state, monkeypatch, caplog
):
  full = types.SimpleNamespace(free=10)
  with make_manager() as checkpoints:
    with monkeypatch.context() as patch:
      patch.setattr(shutil, 'disk_usage', lambda _: full)
      assert not save(checkpoints, 5, make_state(), urgent=False)
      assert 'Checkpoint 5 was not written' in caplog.text
      assert '10 are free' in caplog.text
      assert not save(checkpoints, 6, make_state())
      with pytest.raises(errors.CheckpointError, match='point 6 ') as caught:
        checkpoints.wait()
    assert caught.value.exit_code == 3
    assert checkpoints.latest_step() == 4
    assert save(checkpoints, 7, make_state())
  assert len(caplog.records) == 1  # Of 6 the error tells.


@pytest.mark.parametrize('spare, accepted', [(-1, False), (0, True)])
def test_save_asks_for_a_fifth_more_room_than_the_state_takes(
  make_manager, monkeypatch, spare, accepted
):
  free = types.SimpleNamespace(free=1200 * 4 + spare)
  monkeypatch.setattr(shutil, 'disk_usage', lambda _: free)
  checkpoints = make_manager()
  state = {'params': {'w': jnp.zeros((500, 2))}}
  assert save(checkpoints, 5, state) == accepted
  if accepted:
    checkpoints.close()


def test_error_in_flight_is_not_hidden_by_failed_save(
  make_manager, make_state, monkeypatch
):
  full = types.SimpleNamespace(free=10)
  monkeypatch.setattr(shutil, 'disk_usage', lambda _: full)
  with pytest.raises(ZeroDivisionError):
    with make_manager() as checkpoints:
      checkpoints.save(5, make_state(), data_index=5, meta={})
      raise ZeroDivisionError


def test_dying_disk_is_a_warning_until_too_many_saves_have_failed(
  two, make_manager, make_state, monkeypatch, caplog
):
  def fail(*args, **kwargs):
    raise OSError(30, 'Read-only file system')

  checkpoints = make_manager(max_failed_saves=3)
  with monkeypatch.context() as dying:
    dying.setattr(seal, 'write', fail)
    for step in (6, 7):
      assert save(checkpoints, step, make_state())
      checkpoints._finish()
  assert caplog.text.count('Read-only file system') == 2
  save(checkpoints, 8, make_state())
  checkpoints._finish()  # It is well again: the count begins anew.
  monkeypatch.setattr(seal, 'write', fail)
  for step in (9, 10, 11):
    assert save(checkpoints, step, make_state())
  with pytest.raises(errors.CheckpointError, match='max_failed_saves=3') as end:
    save(checkpoints, 12, make_state())
  assert end.value.exit_code == 3
  checkpoints._saver.close()
  assert sorted(os.listdir(two)) == ['4', '5', '8']


def test_only_what_is_on_disk_is_told_as_saved(
  make_manager, make_state, monkeypatch
):
  write, go_on = seal.write, threading.Event()

  def slow(directory, *args, **kwargs):
    assert go_on.wait(60)
    if directory.endswith('2.unsealed'):
      raise OSError(28, 'No space left on device')
    return write(directory, *args, **kwargs)

  monkeypatch.setattr(seal, 'write', slow)
  with make_manager() as checkpoints:
    assert save(checkpoints, 1, make_state())
    assert checkpoints.sealed() == []
    go_on.set()
    checkpoints.wait()
    [(step, seconds)] = checkpoints.sealed()
    assert step == 1 and 0 < seconds < 60
    assert checkpoints.sealed() == []
    assert save(checkpoints, 2, make_state())
    assert save(checkpoints, 3, make_state())
    checkpoints.wait()
    assert [step for step, _ in checkpoints.sealed()] == [3]


def test_checkpoint_that_cannot_be_pruned_fails_no_save_and_is_tried_again(
  make_manager, make_state, monkeypatch, caplog, tmp_path
):
  rename = os.rename

  def busy(old, new):
    if new.endswith('/1.trash'):
      raise OSError(16, 'Device or resource busy', old)
    rename(old, new)

  with make_manager(max_failed_saves=1, keep=1) as checkpoints:
    with monkeypatch.context() as mounted:
      mounted.setattr(os, 'rename', busy)
      for step in range(1, 6):
        assert save(checkpoints, step, make_state())
        checkpoints.wait()
      checkpoints._saver._thread.submit(int).result()
    assert folder(tmp_path) == ['1', '5']  # The others went all the same.
    assert caplog.text.count('Old checkpoints stay in') == 1
    assert f'resource busy: {tmp_path}/run/checkpoints/1' in caplog.text
    assert save(checkpoints, 6, make_state())
  assert folder(tmp_path) == ['6']


def test_prune_that_goes_wrong_in_any_way_fails_no_save(
  make_manager, make_state, monkeypatch, caplog
):
  def fail(*_):
    raise RuntimeError('not foreseen')

  monkeypatch.setattr(retention, 'prune', fail)
  with make_manager(max_failed_saves=1) as checkpoints:
    for step in (1, 2):
      assert save(checkpoints, step, make_state())
    checkpoints.wait()
    assert checkpoints.latest_step() == 2
  assert caplog.text.count('not foreseen') == 1


def test_slow_prune_keeps_no_save_waiting(
  make_manager, make_state, monkeypatch
):
  go_on = threading.Event()

  def slow(*_):
    assert go_on.wait(60)
    return {}

  monkeypatch.setattr(retention, 'prune', slow)
  with make_manager() as checkpoints:
    assert save(checkpoints, 1, make_state())
    checkpoints.wait()
    assert [step for step, _ in checkpoints.sealed()] == [1]
    go_on.set()


def test_slow_storage_skips_saves_and_the_last_one_is_awaited(
  make_manager, make_state, monkeypatch, caplog
):
  write, go_on = seal.write, threading.Event()

  def slow(*args, **kwargs):
    assert go_on.wait(60)
    return write(*args, **kwargs)

  monkeypatch.setattr(seal, 'write', slow)
  monkeypatch.setattr(manager, '_PATIENCE_S', 0.01)
  with make_manager() as checkpoints:
    assert save(checkpoints, 1, make_state())
    assert not save(checkpoints, 2, make_state(), urgent=False)
    assert 'Step 2 is not saved: the save of step 1 is still' in caplog.text
    go_on.set()
    assert save(checkpoints, 3, make_state())
    go_on.clear()
    threading.Timer(0.2, go_on.set).start()
  assert make_manager().newest_saved() == 3  # The end has waited for it.


def test_folder_that_somebody_removed_is_told_and_made_again(
  make_manager, make_state, tmp_path, caplog
):
  with make_manager() as checkpoints:
    save(checkpoints, 1, make_state())
    checkpoints.wait()
    shutil.rmtree(tmp_path / 'run' / 'checkpoints')
    assert save(checkpoints, 2, make_state())
  assert 'Checkpoint 1 is gone from' in caplog.text
  assert os.listdir(tmp_path / 'run' / 'checkpoints') == ['2']


def test_save_is_awaited_where_the_host_has_no_memory_for_a_copy(
  make_manager, make_state, monkeypatch
):
  write = seal.write

  def slow(*args, **kwargs):
    time.sleep(0.2)
    return write(*args, **kwargs)

  monkeypatch.setattr(seal, 'write', slow)
  with make_manager(host_memory_gb=1) as checkpoints:
    assert save(checkpoints, 1, make_state())
    assert [step for step, _ in checkpoints.sealed()] == [1]
