# SPDX-License-Identifier: Apache-2.0
"""One process per run directory."""

import os
import socket

import pytest

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
