# SPDX-License-Identifier: Apache-2.0
"""metrics.jsonl after kills and resumes: no line lost, none twice."""

import json
import os

import pytest

from zaya_jax.metrics import journal


def _write(path, steps, *, last_step=0):
  file = journal.Journal(path, last_step=last_step)
  for step in steps:
    file.write({'step': step, 'train/loss': 1.0 / step})
  file.close()
  return file


def _steps(path):
  return [json.loads(line)['step'] for line in path.read_text().splitlines()]


def test_resume_drops_the_steps_it_computes_again(tmp_path):
  path = tmp_path / 'metrics.jsonl'
  _write(path, [1, 10, 20, 30])
  resumed = _write(path, [30, 40], last_step=20)
  assert [row['step'] for row in resumed.history] == [1, 10, 20]
  assert _steps(path) == [1, 10, 20, 30, 40]


def test_new_run_starts_an_empty_file(tmp_path):
  path = tmp_path / 'metrics.jsonl'
  _write(path, [1, 10])
  _write(path, [1])
  assert _steps(path) == [1]


@pytest.mark.parametrize(
  'torn', [b'{"step": 30, "train/lo', b'{"step"', b'7', b'\xff\x00', b'{}\n']
)
def test_torn_line_goes(tmp_path, torn):
  path = tmp_path / 'metrics.jsonl'
  _write(path, [10, 20])
  with path.open('ab') as file:
    file.write(torn)
  _write(path, [30], last_step=20)
  assert _steps(path) == [10, 20, 30]


def test_whole_line_without_its_end_stays(tmp_path):
  path = tmp_path / 'metrics.jsonl'
  path.write_bytes(b'{"step": 10}\n{"step": 20}')
  _write(path, [30], last_step=20)
  assert _steps(path) == [10, 20, 30]


def test_untouched_history_is_not_written_again(tmp_path):
  path = tmp_path / 'metrics.jsonl'
  _write(path, [10, 20])
  inode = os.stat(path).st_ino
  _write(path, [30], last_step=20)
  assert os.stat(path).st_ino == inode


def test_nan_is_null(tmp_path):
  path = tmp_path / 'metrics.jsonl'
  file = journal.Journal(path, last_step=0)
  file.write({'step': 1, 'train/loss': float('nan'), 'x': float('inf')})
  file.close()
  assert path.read_text() == '{"step": 1, "train/loss": null, "x": null}\n'


def test_line_is_on_disk_before_the_file_closes(tmp_path):
  path = tmp_path / 'metrics.jsonl'
  file = journal.Journal(path, last_step=0)
  file.write({'step': 1})
  assert _steps(path) == [1]
  file.close()
