# SPDX-License-Identifier: Apache-2.0
"""Event files: what is in them, and that a full disk is heard of."""

import errno

import pytest
from tensorboardX import event_file_writer
from tensorboardX.proto import event_pb2

from zaya_jax.metrics import tensorboard


def read(folder):
  """The events of the only file in `folder`."""
  (path,) = folder.iterdir()
  data, found = path.read_bytes(), []
  while data:
    length = int.from_bytes(data[:8], 'little')
    found.append(event_pb2.Event.FromString(data[12 : 12 + length]))
    data = data[16 + length :]
  return found


def test_points_have_their_step(tmp_path):
  written = tensorboard.Events(tmp_path, last_step=0)
  written.scalars({'train/loss': 2.5, 'val/loss': float('nan')}, 7)
  written.text('sample', 'def f(x):', 8)
  written.close()
  version, point, text = read(tmp_path)
  assert version.file_version == 'brain.Event:2'
  (value,) = point.summary.value
  assert (point.step, value.tag, value.simple_value) == (7, 'train/loss', 2.5)
  assert text.step == 8
  assert text.summary.value[0].tensor.string_val == [b'def f(x):']


def test_resumed_run_takes_back_later_steps(tmp_path):
  tensorboard.Events(tmp_path, last_step=20).close()
  _, start = read(tmp_path)
  assert start.session_log.status == event_pb2.SessionLog.START
  assert start.step == 21


def test_full_disk_is_an_error_of_the_caller(tmp_path, monkeypatch):
  written = tensorboard.Events(tmp_path, last_step=0)

  def full(self, data):
    raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setattr(event_file_writer.RecordWriter, 'write', full)
  for step in range(50):  # More than any queue holds.
    with pytest.raises(OSError, match='No space left'):
      written.scalars({'train/loss': 1.0}, step)
  written.close()
