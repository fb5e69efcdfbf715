# SPDX-License-Identifier: Apache-2.0
"""What can be read of a run is, and what cannot be is said."""

import json
import socket
import subprocess

import pytest

from tests.support import run_files
from zaya_jax import config
from zaya_jax.checkpoint import lock
from zaya_jax.report import records


@pytest.fixture
def run(tmp_path):
  return run_files.write(tmp_path / 'run')


def _lacks(folder):
  return ' '.join(records.read(str(folder)).lacks)


def test_whole_run_lacks_nothing(run):
  found = records.read(str(run))
  assert found.lacks == []
  assert (found.step, found.num_steps) == (200, 200)
  assert [step for step, _ in found.samples] == [100, 200]


def test_newest_samples_are_kept(run):
  for step in range(1, 201):
    (run / 'samples' / f'step_{step:06d}.txt').write_text('x')
  steps = [step for step, _ in records.read(str(run)).samples]
  assert steps == list(range(151, 201))


def test_no_folder_is_an_error(tmp_path):
  with pytest.raises(config.UsageError, match='no folder .*--source'):
    records.read(str(tmp_path / 'none'))


def test_empty_folder_says_what_it_lacks(tmp_path):
  found = records.read(str(tmp_path))
  text = ' '.join(found.lacks)
  for name in 'metrics.jsonl', 'experts.jsonl', 'config.json', 'config.flags':
    assert f'no {name}' in text
  assert found.rows == [] and found.step == 0 and found.changed_at is None
  assert 'incidents' not in text  # None is the best that a run can have.


def test_empty_metrics_file_is_said(run):
  (run / 'metrics.jsonl').write_text('')
  assert 'metrics.jsonl is empty' in _lacks(run)


def test_half_written_last_line_is_left_out_and_said(run):
  path = run / 'metrics.jsonl'
  whole = records.read(str(run)).rows
  path.write_text(path.read_text() + '{"step": 210, "train/lo')
  found = records.read(str(run))
  assert found.rows == whole
  assert 'last line of metrics.jsonl is half written' in ' '.join(found.lacks)


def test_other_bad_lines_are_counted(run):
  path = run / 'metrics.jsonl'
  good = records.read(str(run)).rows
  bad = 'nonsense\n[1]\n' + '[' * 100_000 + '\n{"step": "x"}\n{"a": 1}\n'
  path.write_text(bad + path.read_text())
  found = records.read(str(run))
  assert found.rows == good
  assert '3 lines of metrics.jsonl are not JSON' in ' '.join(found.lacks)


@pytest.mark.parametrize('name', ['metrics.jsonl', 'config.json'])
def test_bytes_that_are_no_text_do_not_stop_it(run, name):
  (run / name).write_bytes(b'\xff\xfe\x00{"step": 1}\n\x80')
  assert name in _lacks(run)


def test_folder_in_place_of_a_file_is_said(run):
  (run / 'config.flags').unlink()
  (run / 'config.flags').mkdir()
  assert 'config.flags cannot be read: Is a directory' in _lacks(run)


def test_repeated_steps_keep_their_order(run):
  rows = [{'step': s, 'train/loss': i} for i, s in enumerate([1, 2, 3, 2, 3])]
  run_files.lines(run / 'metrics.jsonl', rows)
  losses = [row['train/loss'] for row in records.read(str(run)).rows]
  assert losses == [0, 1, 3, 2, 4]


def test_long_file_is_read_in_part_but_for_evaluations(run, monkeypatch):
  monkeypatch.setattr(records, '_MAX_ROWS', 10)
  found = records.read(str(run))
  assert sum('train/loss' in row for row in found.rows) <= 10
  assert [r['step'] for r in found.rows if 'val/loss' in r] == [100, 200]
  assert (
    'metrics.jsonl has 25 lines; the page shows every 3th' in found.lacks[0]
  )


def test_last_line_of_a_long_file_is_read(run, monkeypatch):
  monkeypatch.setattr(records, '_MAX_ROWS', 3)
  rows = [{'step': step, 'train/loss': 2.0} for step in range(8)]
  run_files.lines(run / 'metrics.jsonl', rows)
  found = records.read(str(run))
  assert [row['step'] for row in found.rows] == [0, 3, 6, 7]


@pytest.mark.parametrize(
  'value', [True, None, 'x', [1], float('nan'), float('inf'), 10**400]
)
def test_what_is_no_finite_number_is_none(value):
  assert records.number(value) is None


def test_run_whose_lock_is_held_is_running(run):
  assert not records.read(str(run)).running
  with lock.RunLock(str(run)):
    assert records.read(str(run)).running


@pytest.mark.parametrize(
  'content', ['', 'x', 'elsewhere pid 1', f'{socket.gethostname()} pid 0x']
)
def test_lock_of_another_machine_or_of_nobody_is_not_running(run, content):
  (run / '.lock').write_text(content)
  assert not records.read(str(run)).running


def test_process_of_another_user_is_running(run, monkeypatch):
  (run / '.lock').write_text(f'{socket.gethostname()} pid 1')

  def kill(pid, signal):
    raise PermissionError(1, 'Operation not permitted')  # As kill(2) says.

  monkeypatch.setattr(records.os, 'kill', kill)
  assert records.read(str(run)).running


def test_process_that_is_gone_is_not_running(run):
  process = subprocess.Popen(['true'])
  process.wait()
  (run / '.lock').write_text(f'{socket.gethostname()} pid {process.pid}')
  assert not records.read(str(run)).running


def test_config_that_is_no_object_is_ignored(run):
  (run / 'config.json').write_text(json.dumps([1]))
  found = records.read(str(run))
  assert found.config == {} and found.num_steps is None
