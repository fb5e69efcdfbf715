# SPDX-License-Identifier: Apache-2.0
"""What goes wrong while training saves, resumes and cleans up."""

import json
import os
import shutil
import threading

import pytest

from tests.support import hashes
from zaya_jax.checkpoint import errors, seal
from zaya_jax.checkpoint.reading import reader
from zaya_jax.checkpoint.writing import manager


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


@pytest.mark.parametrize('mesh_size', [1, 2, 8])
def test_fingerprints_are_compared_on_whatever_mesh(
  two, make_state, abstract, mesh_size
):
  wanted = abstract(make_state(0, mesh_size))
  reader.restore(str(two / '5'), wanted)
  facts = seal.read(str(two / '5'))
  del facts['files']
  facts['fingerprint']['step'] = '0' * 16
  seal.write(str(two / '5'), facts)
  with pytest.raises(seal.BrokenError, match='the values of step'):
    reader.restore(str(two / '5'), wanted)


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
  with pytest.raises(errors.CheckpointError, match='max_failed_saves=3') as end:
    for step in range(9, 13):
      save(checkpoints, step, make_state())
  assert end.value.exit_code == 3
  checkpoints._release()
  assert sorted(os.listdir(two)) == ['4', '5', '8']


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


def test_host_memory_is_bounded_by_saving_in_stages(
  make_manager, make_state, abstract
):
  state = make_state(3, shards=4)
  with make_manager(host_memory_gb=1e-7) as checkpoints:
    save(checkpoints, 1, state)
    assert checkpoints.newest_saved() == 1  # Nothing is copied later.
    restored, _, _ = checkpoints.restore(1, abstract(state))
  assert hashes.state_hash(restored) == hashes.state_hash(state)


@pytest.mark.parametrize(
  'name', ['meta/metadata', 'state/_METADATA', '_CHECKPOINT_METADATA']
)
@pytest.mark.parametrize('bomb', ['deep', 'large', 'number'])
def test_json_bomb_in_a_sealed_checkpoint_is_refused_by_name(
  two, make_state, abstract, name, bomb
):
  path, facts = two / '5' / name, seal.read(str(two / '5'))
  del facts['files']
  if bomb == 'large':
    os.truncate(path, 2**31)
    monster = {name: [2**31, '0' * 64]}
  else:
    path.write_text('[' * 10**6 if bomb == 'deep' else '1' * 10**5)
    monster = {}
  seal.write(str(two / '5'), facts, known=monster)
  with pytest.raises(errors.CheckpointError, match=name) as caught:
    reader.restore(str(two / '5'), abstract(make_state()))
  assert caught.value.exit_code == 3


def test_sealed_pickle_is_refused_by_name(two, make_manager):
  (two / '5' / 'state' / 'evil.pkl').write_bytes(b'cos\nsystem\n')
  facts = seal.read(str(two / '5'))
  del facts['files']
  seal.write(str(two / '5'), facts)
  with make_manager() as checkpoints:
    assert checkpoints.latest_step() == 4
  assert os.listdir(two / 'bad') == ['5-name']


def test_seal_says_what_is_needed_without_the_arrays(two):
  said = json.loads((two / '5' / seal.NAME).read_text())['body']
  assert said['step'] == 5 and 'params/blocks/w' in said['fingerprint']
