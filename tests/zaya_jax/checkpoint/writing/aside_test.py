# SPDX-License-Identifier: Apache-2.0
"""What is replaced where a new folder is written, and what is in the way."""

import os

import pytest

from zaya_jax.checkpoint import errors
from zaya_jax.checkpoint.writing import aside


@pytest.mark.parametrize('names', [('.lock',), ('.lock', '.aside', 'half')])
def test_what_a_killed_process_left_is_replaced(tmp_path, names):
  (tmp_path / 'out.partial').mkdir()
  for name in names:
    (tmp_path / 'out.partial' / name).touch()
  with aside.folder(str(tmp_path / 'out')) as partial:
    assert 'half' not in os.listdir(partial)
  assert os.listdir(tmp_path) == ['out']
  assert os.listdir(tmp_path / 'out') == []


def test_run_directory_of_that_name_is_not_replaced(tmp_path):
  run = tmp_path / 'out.partial'
  run.mkdir()
  for name in ('.lock', 'log.txt'):  # As training leaves them.
    (run / name).touch()
  with pytest.raises(errors.CheckpointError, match='in the way') as caught:
    with aside.folder(str(tmp_path / 'out')):
      pass
  assert caught.value.exit_code == 2
  assert sorted(os.listdir(run)) == ['.lock', 'log.txt']


@pytest.mark.parametrize('kind', ['link', 'file'])
def test_what_is_no_folder_is_in_the_way(tmp_path, kind):
  partial = tmp_path / 'out.partial'
  (tmp_path / 'mine').mkdir()
  partial.symlink_to(tmp_path / 'mine') if kind == 'link' else partial.touch()
  with pytest.raises(errors.CheckpointError, match='in the way'):
    with aside.folder(str(tmp_path / 'out')):
      pass
  assert os.path.lexists(partial)
