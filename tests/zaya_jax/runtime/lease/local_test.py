# SPDX-License-Identifier: Apache-2.0
"""A lease of file locks: one owner, whatever is deleted, killed or copied."""

import errno
import fcntl
import json
import math
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import time

import pytest

from zaya_jax.runtime import durable, lease, run_files
from zaya_jax.runtime.lease import local, locks

HOLD = """
import sys, time
from zaya_jax.runtime import lease, run_files
run_dir = sys.argv[1]
store = lease.open('local', run_id=run_files.run_id(run_dir), run_dir=run_dir)
try:
  token = store.acquire(lease.owner_name(), 20)
except lease.LeaseError as error:
  print(type(error).__name__, error)
  sys.exit(error.exit_code)
print(token.epoch, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_STATE_HOME', str(tmp_path / 'state'))
  monkeypatch.delenv('ZAYA_LEASE_ACCEPT', raising=False)
  return tmp_path / 'state' / 'zaya_jax'


@pytest.fixture
def run_dir(tmp_path):
  (tmp_path / 'run').mkdir()
  return tmp_path / 'run'


@pytest.fixture
def hold(run_dir):
  """Starts processes that hold a run until their input ends."""
  started = []

  def start(folder=run_dir):
    process = subprocess.Popen(
      [sys.executable, '-c', HOLD, str(folder)],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    )
    started.append(process)
    return process, process.stdout.readline()

  yield start
  for process in started:
    process.kill()
    process.communicate()


def opened(run_dir) -> lease.Store:
  return lease.open('local', run_id=run_files.run_id(run_dir), run_dir=run_dir)


def test_owner_is_one_and_its_epoch_grows(run_dir):
  first, second = opened(run_dir), opened(run_dir)
  assert first.holder() is None
  token = first.acquire('a', 20)
  assert token == lease.Token('a', 1)
  assert first.holder() == second.holder() == token
  with pytest.raises(lease.HeldError, match='in use by a; wait') as caught:
    second.acquire('b', 20)
  assert caught.value.holder == token and caught.value.exit_code == 2
  first.release(token)
  assert second.holder() is None
  assert second.acquire('b', 20) == lease.Token('b', 2)
  second.close()
  assert opened(run_dir).acquire('a', 20).epoch == 3


def test_lease_falls_with_its_process_and_the_epoch_stays(run_dir, hold):
  process, epoch = hold()
  assert epoch == '1\n'
  _, told = hold()
  assert told.startswith(f'HeldError {run_dir} is in use by ')
  assert f'pid {process.pid} ' in told
  process.kill()
  process.wait()
  assert opened(run_dir).acquire('b', 20).epoch == 2


def test_lease_never_expires_while_its_process_is_paused(run_dir, hold):
  process, _ = hold()
  os.kill(process.pid, signal.SIGSTOP)
  try:
    with pytest.raises(lease.HeldError):
      opened(run_dir).acquire('b', 0.0)
  finally:
    os.kill(process.pid, signal.SIGCONT)


def test_renewal_counts_from_before_and_never_runs_out(run_dir):
  store = opened(run_dir)
  token = store.acquire('a', 20)
  store._now = lambda: time.monotonic() + 1e6  # Long after the deadline.
  assert math.isclose(
    store.renew(token), time.monotonic() + 1e6 + 20, abs_tol=1
  )
  for other in (lease.Token('a', 2), lease.Token('b', 1)):
    with pytest.raises(lease.LostError, match='does not own run'):
      store.renew(other)


@pytest.mark.parametrize(
  'delete',
  [
    lambda run_dir, state: shutil.rmtree(run_dir / 'aegis'),
    lambda run_dir, state: (run_dir / '.lock').unlink(missing_ok=True),
    lambda run_dir, state: shutil.rmtree(state),
    lambda run_dir, state: (run_dir / 'run_id').unlink(),
  ],
  ids=['aegis', '.lock', 'state', 'run_id'],
)
def test_deleting_files_lets_nobody_in(run_dir, state, hold, delete):
  hold()
  delete(run_dir, state)
  _, told = hold()
  assert told.startswith('HeldError')


@pytest.mark.parametrize('what', ['folder', 'nothing'])
def test_folder_is_what_keeps_the_second_one_out(
  run_dir, state, monkeypatch, what
):
  opened(run_dir).acquire('a', 20)
  shutil.rmtree(state)
  identity = (run_dir / 'run_id').read_text()
  (run_dir / 'run_id').unlink()
  (run_dir / 'run_id').write_text(identity)
  if what == 'nothing':
    other_machine(monkeypatch, state)
    opened(run_dir).acquire('b', 20)
    return
  with pytest.raises(lease.HeldError):
    opened(run_dir).acquire('b', 20)


def other_machine(monkeypatch, state):
  """What follows has a state directory and folder locks of its own."""
  flock = fcntl.flock

  def flock_files(handle, how):
    if not stat.S_ISDIR(os.fstat(handle).st_mode):
      flock(handle, how)

  monkeypatch.setattr(fcntl, 'flock', flock_files)
  monkeypatch.setenv('XDG_STATE_HOME', str(state / 'other'))


def test_owner_on_another_machine_keeps_the_run(run_dir, state, monkeypatch):
  owner = opened(run_dir)
  token = owner.acquire('a', 20)
  other_machine(monkeypatch, state)
  there = opened(run_dir)
  with pytest.raises(lease.HeldError):
    there.acquire('b', 20)
  assert there.holder() == token
  there.write('high_water', {'step': 300}, token)  # As its ranks do.
  assert owner.read('high_water') == {'step': 300}
  owner.write('high_water', {'step': 400}, token)
  assert there.read('high_water') == {'step': 400}
  owner.release(token)
  assert there.acquire('b', 20).epoch == 2


def test_copy_with_the_same_id_waits_for_the_run(tmp_path, run_dir, hold):
  hold()
  shutil.copytree(run_dir, tmp_path / 'copy')
  _, told = hold(tmp_path / 'copy')
  assert told.startswith('HeldError')
  (tmp_path / 'copy' / 'run_id').unlink()
  assert hold(tmp_path / 'copy')[1] in ('1\n', '2\n')


@pytest.mark.parametrize('moved', ['run_dir', 'lock'])
def test_owner_of_something_moved_has_lost(tmp_path, run_dir, state, moved):
  store = opened(run_dir)
  token = store.acquire('a', 20)
  store.renew(token)
  if moved == 'run_dir':
    run_dir.rename(tmp_path / 'moved')
  else:
    shutil.rmtree(state)
  with pytest.raises(lease.LostError, match='moved or deleted'):
    store.renew(token)


def test_facts_are_written_by_the_owner_alone(run_dir):
  store, rank = opened(run_dir), opened(run_dir)
  old = store.acquire('a', 20)
  rank.write('generation', {'number': 1}, old)
  assert store.read('generation') == {'number': 1}
  store.release(old)
  with pytest.raises(lease.LostError):  # Nobody owns it.
    rank.write('generation', {'number': 9}, old)
  new = store.acquire('a', 20)
  with pytest.raises(lease.LostError, match='epoch 2. owns it'):
    rank.write('generation', {'number': 9}, old)
  assert rank.read('generation') == {'number': 1}
  store.write('generation', {'number': 2}, new)
  assert rank.read('generation') == {'number': 2}
  assert rank.read('high_water') is None


def test_writer_that_pauses_before_its_end_takes_nothing_back(
  run_dir, monkeypatch
):
  owner, rank = opened(run_dir), opened(run_dir)
  token = owner.acquire('a', 20)
  write = rank._write

  def write_then_pause(*fact):
    write(*fact)
    owner.release(token)
    owner.write('generation', {'number': 2}, owner.acquire('b', 20))

  monkeypatch.setattr(rank, '_write', write_then_pause)
  rank.write('generation', {'number': 1}, token)
  assert owner.read('generation') == {'number': 2}


def test_write_that_does_not_ask_for_the_owner_is_caught(run_dir, monkeypatch):
  store = opened(run_dir)
  old = store.acquire('a', 20)
  store.release(old)
  store.acquire('b', 20)
  monkeypatch.setattr(local.Local, '_holder', lambda self: old)
  store.write('generation', {'number': 9}, old)
  assert store.read('generation') == {'number': 9}


@pytest.mark.parametrize('lost', ['state', 'run'])
def test_either_copy_of_the_facts_is_enough(run_dir, state, lost):
  store = opened(run_dir)
  token = store.acquire('a', 20)
  store.write('high_water', {'step': 300}, token)
  store.release(token)
  shutil.rmtree(state if lost == 'state' else run_dir / 'aegis')
  store = opened(run_dir)
  assert store.read('high_water') == {'step': 300}
  assert store.acquire('b', 20).epoch == 2


def test_newer_copy_counts_and_a_garbled_one_does_not(run_dir, state):
  store = opened(run_dir)
  token = store.acquire('a', 20)
  store.write('high_water', {'step': 300}, token)
  mine = state / 'runs' / run_files.run_id(run_dir) / 'high_water.json'
  shared = run_dir / 'aegis' / 'lease' / 'high_water.json'
  older = shared.read_bytes()
  store.write('high_water', {'step': 400}, token)
  shared.write_bytes(older)
  assert store.read('high_water') == {'step': 400}
  mine.write_bytes(b'')
  assert store.read('high_water') == {'step': 300}
  for garbage in (b'', b'[]', b'{"version": "x", "value": {}}', b'\xff'):
    shared.write_bytes(garbage)
    with pytest.raises(lease.StoreError, match='holds no fact') as caught:
      store.read('high_water')
    assert caught.value.exit_code == 3


def test_first_generation_is_above_that_of_an_old_run(run_dir):
  (run_dir / 'aegis').mkdir()
  (run_dir / 'aegis' / 'generation').write_text('7')
  (run_dir / '.lock').write_text('host pid 1')
  store = opened(run_dir)
  assert store.read('generation') == {'number': 7}
  token = store.acquire('a', 20)
  store.write('generation', {'number': 8, 'start_step': 0}, token)
  assert store.read('generation') == {'number': 8, 'start_step': 0}


def test_old_generation_that_is_no_number_is_one_sentence(run_dir):
  (run_dir / 'aegis').mkdir()
  (run_dir / 'aegis' / 'generation').write_text('')
  with pytest.raises(lease.StoreError, match='holds no number') as caught:
    opened(run_dir).read('generation')
  assert '\n' not in str(caught.value)


def test_power_lost_between_two_copies_lets_no_epoch_come_back(
  run_dir, monkeypatch
):
  opened(run_dir).acquire('a', 20)
  replace, calls = durable.replace, []

  def cut(path, content):
    calls.append(path)
    if len(calls) == 2:
      raise OSError(errno.EIO, 'Input/output error', str(path))
    replace(path, content)

  other = run_dir.parent / 'other'
  other.mkdir()
  first = opened(other)
  first.close()
  monkeypatch.setattr(durable, 'replace', cut)
  with pytest.raises(lease.StoreError, match='Input/output error'):
    first.acquire('a', 20)
  monkeypatch.setattr(durable, 'replace', replace)
  assert opened(other).acquire('b', 20).epoch == 2


@pytest.mark.parametrize('code', [errno.ENOSYS, errno.ENOLCK])
def test_file_system_without_locks_is_one_sentence(run_dir, monkeypatch, code):
  def refuse(*_):
    raise OSError(code, os.strerror(code))

  monkeypatch.setattr(fcntl, 'flock', refuse)
  with pytest.raises(lease.StoreError, match='cannot be locked') as caught:
    opened(run_dir).acquire('a', 20)
  assert '\n' not in str(caught.value) and caught.value.exit_code == 2
  assert opened(run_dir).read('generation') is None  # Readers need none.


@pytest.mark.parametrize('code', [errno.EBADF, errno.EINVAL, errno.ENOLCK])
def test_file_system_without_locks_of_folders_is_enough(
  run_dir, monkeypatch, code
):
  flock = fcntl.flock

  def flock_files(handle, how):
    if stat.S_ISDIR(os.fstat(handle).st_mode):
      raise OSError(code, os.strerror(code))
    flock(handle, how)

  monkeypatch.setattr(fcntl, 'flock', flock_files)
  store = opened(run_dir)
  token = store.acquire('a', 20)
  store.write('generation', {'number': 1}, token)
  with pytest.raises(lease.HeldError):
    opened(run_dir).acquire('b', 20)
  identity = (run_dir / 'run_id').read_text()
  (run_dir / 'run_id').unlink()
  (run_dir / 'run_id').write_text(identity)
  with pytest.raises(lease.LostError):
    store.renew(token)


def test_process_that_is_stopped_inside_holds_nobody_for_long(
  run_dir, monkeypatch
):
  store = opened(run_dir)
  token = store.acquire('a', 20)
  monkeypatch.setattr(local, '_MUTEX_S', 0.0)
  with store._alone():
    with pytest.raises(lease.StoreError, match='was locked for 0 s'):
      opened(run_dir).write('generation', {'number': 1}, token)
    store.renew(token)


def test_full_disk_is_one_sentence_and_holds_nothing(run_dir, monkeypatch):
  def full(path, content):
    raise OSError(errno.ENOSPC, 'No space left on device', str(path))

  store = opened(run_dir)
  with monkeypatch.context() as patch:
    patch.setattr(durable, 'replace', full)
    with pytest.raises(lease.StoreError, match='No space left') as caught:
      store.acquire('a', 20)
  assert caught.value.exit_code == 75
  assert opened(run_dir).acquire('b', 20).epoch == 1


def test_home_that_cannot_be_written_is_one_sentence(
  run_dir, tmp_path, monkeypatch
):
  (tmp_path / 'file').write_text('')
  monkeypatch.setenv('XDG_STATE_HOME', str(tmp_path / 'file'))
  store = opened(run_dir)
  assert store.read('generation') is None  # Readers need none.
  for ask in (
    lambda: store.acquire('a', 20),
    lambda: store.update_site('quarantine', lambda old: {}),
  ):
    with pytest.raises(lease.StoreError, match='set XDG_STATE_HOME') as caught:
      ask()
    assert '\n' not in str(caught.value) and caught.value.exit_code == 2
  locks.take_folder(run_dir).close()


def test_user_without_a_home_is_one_sentence(run_dir, monkeypatch):
  monkeypatch.delenv('XDG_STATE_HOME')
  monkeypatch.delenv('HOME', raising=False)

  def nobody(self):
    raise RuntimeError('Could not determine home directory.')

  monkeypatch.setattr(pathlib.Path, 'expanduser', nobody)
  with pytest.raises(lease.StoreError, match='set XDG_STATE_HOME') as caught:
    opened(run_dir)
  assert caught.value.exit_code == 2


def test_quarantine_is_shared_by_all_runs_and_loses_no_update(tmp_path, state):
  stores = []
  for name in ('x', 'y'):
    (tmp_path / name).mkdir()
    stores.append(opened(tmp_path / name))
  assert stores[0].read_site('quarantine') is None
  stores[0].update_site('quarantine', lambda old: {**(old or {}), 'n0': 0})
  value = stores[1].update_site('quarantine', lambda old: {**old, 'n1': 1})
  assert value == stores[0].read_site('quarantine') == {'n0': 0, 'n1': 1}
  on_disk = json.loads((state / 'site' / 'quarantine.json').read_text())
  assert on_disk['value'] == value


def test_address_of_no_home_is_refused(run_dir):
  with pytest.raises(lease.StoreError, match='is none of local,') as caught:
    lease.open('redis://x', run_id='0' * 32, run_dir=run_dir)
  assert caught.value.exit_code == 2
