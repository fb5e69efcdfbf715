# SPDX-License-Identifier: Apache-2.0
"""A file is the old one or the new one, whatever happens."""

import os

import pytest

from tests.support import disk
from zaya_jax.runtime import durable


def test_content_is_on_disk_before_the_name_and_the_name_at_the_end(
  tmp_path, monkeypatch
):
  path = tmp_path / 'file'
  path.write_bytes(b'old')
  events = disk.record(monkeypatch)
  durable.replace(path, b'new')
  assert path.read_bytes() == b'new'
  assert events == [
    ('fsync', f'{path}.partial'),
    ('name', str(path)),
    ('fsync', str(tmp_path)),
  ]
  assert os.listdir(tmp_path) == ['file']


@pytest.mark.parametrize('place', ['fsync', 'replace'])
def test_failure_leaves_the_old_file_and_nothing_else(
  tmp_path, monkeypatch, place
):
  path = tmp_path / 'file'
  path.write_bytes(b'old')

  def fail(*_):
    assert (tmp_path / 'file.partial').exists()
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(os, place, fail)
  with pytest.raises(OSError, match='No space left'):
    durable.replace(str(path), b'new')
  assert os.listdir(tmp_path) == ['file'] and path.read_bytes() == b'old'


def test_file_that_cannot_be_made_yet_is_made_later(tmp_path):
  lines = durable.Lines(tmp_path / 'folder' / 'lines')
  lines.sync()
  with pytest.raises(OSError, match='No such file'):
    lines.write(b'first\n')
  (tmp_path / 'folder').mkdir()
  lines.write(b'second\n')
  lines.close()
  assert (tmp_path / 'folder' / 'lines').read_bytes() == b'second\n'
  durable.Lines(tmp_path / 'none').close()


def test_line_is_whole_or_absent(tmp_path):
  path = tmp_path / 'lines'
  path.write_bytes(b'first\n')
  lines = durable.Lines(path)
  with disk.full(10):
    for _ in range(2):
      with pytest.raises(OSError, match='too large'):
        lines.write(b'second\n')
      assert path.read_bytes() == b'first\n'
  lines.write(b'third\n')
  assert path.read_bytes() == b'first\nthird\n'
  lines.close()
