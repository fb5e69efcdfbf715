# SPDX-License-Identifier: Apache-2.0
"""Folders are whole or not there, whatever goes wrong, in one sentence."""

import errno
import os
import shutil

import pytest

from zaya_jax import config as config_lib
from zaya_jax.checkpoint import errors as checkpoint_errors
from zaya_jax.hub import aside
from zaya_jax.hub.tensors import errors


def write(output: str, needed: int = 0, error: BaseException | None = None):
  with aside.folder(output, needed) as partial:
    with open(os.path.join(partial, 'file'), 'w') as file:
      file.write('x')
    assert not os.path.exists(os.path.join(output, 'file'))
    if error:
      raise error


def test_folder_has_what_was_written_and_nothing_else(tmp_path):
  output = str(tmp_path / 'a' / 'out')
  write(output)
  assert os.listdir(tmp_path / 'a') == ['out']
  assert os.listdir(output) == ['file']


def test_folder_inside_of_the_source_is_refused(tmp_path):
  source = tmp_path / 'source'
  source.mkdir()
  (tmp_path / 'link').symlink_to(source)
  for inside in ('source', 'source/a/b', 'link/a'):
    with pytest.raises(config_lib.UsageError, match='lies inside of --source'):
      aside.check(f'{tmp_path}/{inside}', str(source))
  for outside in ('source-2', 'a'):
    aside.check(f'{tmp_path}/{outside}', str(source))


def test_what_a_killed_process_left_is_replaced(tmp_path):
  partial = tmp_path / 'out.partial'
  (partial / 'folder').mkdir(parents=True)
  (partial / '.lock').write_text('host pid 1')
  (partial / '.aside').touch()
  (partial / 'old').symlink_to(tmp_path)
  write(str(tmp_path / 'out'))
  assert os.listdir(tmp_path) == ['out']
  assert os.listdir(tmp_path / 'out') == ['file']


def test_what_is_not_ours_is_left_alone(tmp_path):
  (tmp_path / 'out.partial').mkdir()
  (tmp_path / 'out.partial' / 'mine').touch()
  with pytest.raises(checkpoint_errors.CheckpointError, match='in the way'):
    write(str(tmp_path / 'out'))
  assert (tmp_path / 'out.partial' / 'mine').exists()
  (tmp_path / 'used').mkdir()
  assert aside.check(f'{tmp_path}/used/') == f'{tmp_path}/used'
  (tmp_path / 'used' / 'mine').touch()
  (tmp_path / 'link').symlink_to('nowhere')
  for name in ('used', 'used/', 'link'):
    with pytest.raises(config_lib.UsageError, match='exists already'):
      aside.check(f'{tmp_path}/{name}')


def test_two_processes_do_not_write_one_folder(tmp_path):
  output = str(tmp_path / 'out')
  with aside.folder(output, 0) as partial:
    with pytest.raises(
      checkpoint_errors.CheckpointError, match='--output=.* is in use'
    ):
      write(output)
    assert os.path.isdir(partial)
  assert os.listdir(tmp_path) == ['out']


@pytest.mark.parametrize(
  'error, expected, message',
  [
    (KeyboardInterrupt('stop'), KeyboardInterrupt, 'stop'),
    (AssertionError('bug'), AssertionError, 'bug'),
    (
      OSError(errno.EFBIG, 'File too large'),
      errors.FolderError,
      'cannot be written: File too large; make room',
    ),
    (
      OSError(errno.ENOSPC, 'No space left', 'from', None, 'to'),
      errors.FolderError,
      'No space left: to;',
    ),
    (
      shutil.Error([('from', 'to', 'No space left: to'), ('a', 'b', 'c')]),
      errors.FolderError,
      'cannot be written: No space left: to;',
    ),
  ],
)
def test_errors_leave_nothing(tmp_path, error, expected, message):
  with pytest.raises(expected, match=message):
    write(str(tmp_path / 'out'), error=error)
  assert not list(tmp_path.iterdir())


def test_place_that_cannot_be_written_is_named(tmp_path):
  (tmp_path / 'file').touch()
  with pytest.raises(
    checkpoint_errors.CheckpointError, match='--output=.*Not a directory'
  ) as raised:
    write(str(tmp_path / 'file' / 'out'))
  assert raised.value.exit_code == 2
  with pytest.raises(errors.FolderError, match='bytes and .* are free'):
    write(str(tmp_path / 'out'), needed=2**62)
  assert os.listdir(tmp_path) == ['file']
