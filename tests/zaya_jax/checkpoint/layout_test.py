# SPDX-License-Identifier: Apache-2.0
"""Which directories count as checkpoints."""

import json
import os

import pytest

from zaya_jax.checkpoint import errors, layout


def make(folder, step, *, committed=True, items=('state', 'meta')):
  for item in items:
    (folder / str(step) / item).mkdir(parents=True)
  record = {'commit_timestamp_nsecs': 1_700_000_000 * 10**9 if committed else 0}
  record = record if committed else {'commit_timestamp_nsecs': None}
  (folder / str(step) / '_CHECKPOINT_METADATA').write_text(json.dumps(record))


def test_only_complete_checkpoints_count(tmp_path):
  make(tmp_path, 9)
  make(tmp_path, 10)
  make(tmp_path, 11, committed=False)
  make(tmp_path, 12, items=('meta',))
  (tmp_path / '13').mkdir()
  (tmp_path / '14.orbax-checkpoint-tmp').mkdir()
  (tmp_path / 'notes').mkdir()
  assert layout.steps(str(tmp_path)) == [9, 10]
  assert layout.incomplete(str(tmp_path)) == [
    '11', '12', '13', '14.orbax-checkpoint-tmp',
  ]  # fmt: skip
  assert layout.commit_time(str(tmp_path / '9')) == 1_700_000_000


def test_incomplete_checkpoints_are_set_aside_not_deleted(tmp_path, caplog):
  make(tmp_path, 9)
  make(tmp_path, 10, committed=False)
  layout.set_aside(str(tmp_path))
  assert sorted(os.listdir(tmp_path)) == ['9', 'bad']
  [moved] = (tmp_path / 'bad').iterdir()
  assert moved.name.startswith('10-') and (moved / 'state').is_dir()
  assert 'is incomplete; it was moved to' in caplog.text


def test_run_directory_folder_and_checkpoint_mean_a_checkpoint(tmp_path):
  folder = tmp_path / 'checkpoints'
  make(folder, 9)
  make(folder, 10)
  assert layout.resolve(str(tmp_path)) == str(folder / '10')
  assert layout.resolve(str(folder)) == str(folder / '10')
  assert layout.resolve(str(folder / '9')) == str(folder / '9')


def test_source_without_checkpoint_is_refused(tmp_path):
  (tmp_path / 'checkpoints' / '7').mkdir(parents=True)
  with pytest.raises(errors.CheckpointError, match='no complete') as caught:
    layout.resolve(str(tmp_path))
  assert caught.value.exit_code == 2
