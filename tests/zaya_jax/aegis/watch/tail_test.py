# SPDX-License-Identifier: Apache-2.0
"""New lines of logs, whatever is written there."""

import os
import tracemalloc

import pytest

from zaya_jax.aegis.watch import tail


@pytest.fixture
def log(tmp_path):
  path = tmp_path / 'kmsg'
  path.write_text('the past\n')
  return path


def append(path, data):
  with path.open('ab') as file:
    file.write(data if isinstance(data, bytes) else data.encode())


def test_only_new_whole_lines_are_read(log):
  reader = tail.Tail(str(log))
  assert reader.read() == []
  append(log, 'one\ntwo\nthr')
  assert reader.read() == ['one', 'two']
  assert reader.read() == []
  append(log, 'ee\n')
  assert reader.read() == ['three']
  reader.close()


def test_file_may_come_later_and_is_then_read_whole(tmp_path):
  path = tmp_path / 'later'
  reader = tail.Tail(str(path))
  assert reader.read() == []
  path.write_text('one\n')
  assert reader.read() == ['one']
  reader.close()


@pytest.mark.parametrize('how', ['renamed', 'emptied'])
def test_rotation_loses_nothing(log, how):
  reader = tail.Tail(str(log))
  append(log, 'last\nno newline')
  assert reader.read() == ['last']
  if how == 'renamed':
    os.rename(log, log.with_name('kmsg.1'))
  log.write_text('first\n')
  lines = [line for _ in range(3) for line in reader.read()]
  assert lines == ['no newline', 'first']
  reader.close()


def test_junk_takes_bounded_memory_and_hides_nothing_after_it(log):
  reader = tail.Tail(str(log))
  for _ in range(16):  # One line of 16 MiB, then binary, then short lines.
    append(log, b'x' * 2**20)
  append(log, b'\n' + os.urandom(2**20) + b'\n' + b'spam\n' * 250_000)
  append(log, 'last\n')
  tracemalloc.start()
  lines, longest = [], 0
  for _ in range(24):
    lines = reader.read() or lines
    longest = max([longest, *map(len, lines)])
  peak = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert lines[-1] == 'last'
  assert longest <= 4096
  assert peak < 32 * 2**20
  reader.close()


def test_flood_is_left_out_and_counted(log):
  reader = tail.Tail(str(log))
  with log.open('ab') as file:  # Sparse: 1 GiB of zeros.
    file.truncate(2**30)
  append(log, '\nlast\n')
  lines = reader.read() + reader.read()
  assert lines[-1] == 'last'
  assert reader.dropped > 2**29
  reader.close()


def test_log_that_cannot_be_read_is_a_word_and_may_be_read_later(log):
  reader = tail.Tail(str(log))
  log.unlink()
  log.mkdir()  # Nobody can read this, not even root.
  append(log.with_name('other'), 'x\n')
  for _ in range(3):
    assert reader.read() == []
  assert 'kmsg: Is a directory' in reader.failure
  log.rmdir()
  log.write_text('new\n')
  assert reader.read() == ['new'] and reader.failure == ''
  reader.close()
