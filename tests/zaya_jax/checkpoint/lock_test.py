# SPDX-License-Identifier: Apache-2.0
"""One process per run directory."""

import errno
import fcntl
import os
import socket
import stat

import pytest

from tests.support import disk
from zaya_jax.checkpoint import errors, lock

SCRIPT = """
import sys
from zaya_jax.checkpoint import errors, lock
try:
  with lock.RunLock(sys.argv[1]):
    print('entered')
except errors.CheckpointError as error:
  print(error)
  sys.exit(error.exit_code)
"""


def test_second_process_is_refused_in_one_sentence(tmp_path, run_python):
  with lock.RunLock(str(tmp_path / 'run')):
    second = run_python(SCRIPT, tmp_path / 'run')
  assert second.returncode == 2
  assert f'pid {os.getpid()};' in second.stdout
  assert second.stdout.count('\n') == 1
  assert os.listdir(tmp_path / 'run') == ['.lock']


def test_lock_falls_with_its_holder(tmp_path, run_python):
  killed = SCRIPT.replace("print('entered')", 'import os; os.abort()')
  assert run_python(killed, tmp_path).returncode == -6
  assert run_python(SCRIPT, tmp_path).stdout == 'entered\n'
  with lock.RunLock(str(tmp_path)):
    with pytest.raises(errors.CheckpointError):
      lock.RunLock(str(tmp_path)).__enter__()


def test_run_directory_that_is_a_file_is_refused(tmp_path):
  (tmp_path / 'run').write_text('')
  with pytest.raises(errors.CheckpointError, match='File exists') as caught:
    lock.RunLock(str(tmp_path / 'run')).__enter__()
  assert caught.value.exit_code == 2


def test_lock_names_its_holder_and_nobody_before(tmp_path):
  (tmp_path / '.lock').write_text('a-host-with-a-longer-name pid 4194304' * 3)
  with lock.RunLock(str(tmp_path)):
    told = (tmp_path / '.lock').read_text()
  assert told == f'{socket.gethostname()} pid {os.getpid()}'


def test_deleting_the_lock_lets_nobody_in(tmp_path, run_python):
  with lock.RunLock(str(tmp_path)):
    (tmp_path / '.lock').unlink()
    second = run_python(SCRIPT, tmp_path)
  assert second.returncode == 2
  assert 'is in use by a process;' in second.stdout
  assert run_python(SCRIPT, tmp_path).stdout == 'entered\n'


def test_directory_that_cannot_be_locked_is_held_by_its_file(
  tmp_path, monkeypatch
):
  flock = fcntl.flock

  def files_only(file, how):
    if stat.S_ISDIR(os.fstat(file).st_mode):
      raise OSError(errno.EBADF, 'Bad file descriptor')  # As NFS does.
    flock(file, how)

  monkeypatch.setattr(fcntl, 'flock', files_only)
  with lock.RunLock(str(tmp_path)):
    with pytest.raises(errors.CheckpointError, match=f'pid {os.getpid()};'):
      lock.RunLock(str(tmp_path)).__enter__()


@pytest.mark.parametrize('number', [errno.ENOSYS, errno.ENOLCK])
def test_filesystem_without_locks_is_told(
  tmp_path, monkeypatch, caplog, number
):
  def none(*_):
    raise OSError(number, os.strerror(number))

  monkeypatch.setattr(fcntl, 'flock', none)
  with pytest.raises(errors.CheckpointError, match='without locks') as caught:
    with lock.RunLock(str(tmp_path)):
      pass
  assert caught.value.exit_code == 2
  with lock.RunLock(str(tmp_path), needed=False):
    assert (tmp_path / '.lock').read_text().endswith(f'pid {os.getpid()}')
  assert 'nothing keeps a second process from training' in caplog.text


def test_full_disk_keeps_nobody_out(tmp_path):
  with disk.full(0), lock.RunLock(str(tmp_path)):
    with pytest.raises(errors.CheckpointError, match='in use by a process'):
      lock.RunLock(str(tmp_path)).__enter__()


def test_shared_locks_are_beside_each_other_and_keep_training_out(tmp_path):
  first = lock.RunLock(str(tmp_path), shared=True)
  with first, lock.RunLock(str(tmp_path), shared=True):
    with pytest.raises(errors.CheckpointError, match='in use'):
      lock.RunLock(str(tmp_path)).__enter__()
  with lock.RunLock(str(tmp_path)):
    with pytest.raises(errors.CheckpointError, match='in use'):
      lock.RunLock(str(tmp_path), shared=True).__enter__()
