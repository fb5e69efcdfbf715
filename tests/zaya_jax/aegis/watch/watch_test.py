# SPDX-License-Identifier: Apache-2.0
"""Logs and counters that an agent watches, whatever is written there."""

import os
import tracemalloc

import pytest

from zaya_jax.aegis.watch import rules, tail, watch
from zaya_jax.config import fields

ECC = (
  '3,1,2,-;amdgpu 0000:05:00.0: amdgpu: 1 new uncorrectable hardware errors '
  'detected in umc block\n'
)


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
  line = b'x' * 2**20  # One line of 24 MiB, then binary, then short lines.
  for _ in range(24):
    append(log, line)
  append(
    log, b'\n' + os.urandom(2**20) + b'\n' + b'spam\n' * 10**6 + ECC.encode()
  )
  tracemalloc.start()
  lines, longest = [], 0
  for _ in range(40):
    lines = reader.read() or lines
    longest = max([longest, *map(len, lines)])
  peak = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert lines[-1] == ECC.strip()
  assert longest <= 4096
  assert peak < 64 * 2**20
  reader.close()


def test_flood_is_left_out_and_counted(log):
  reader = tail.Tail(str(log))
  with log.open('ab') as file:  # Sparse: 1 GiB of zeros.
    file.truncate(2**30)
  append(log, '\n' + ECC)
  lines = reader.read() + reader.read()
  assert lines[-1] == ECC.strip()
  assert reader.dropped > 2**29
  reader.close()


def test_watch_sees_a_line_and_what_was_not_cleared(log):
  looking = watch.Watch('n7', rules.load(), logs=[('kern', str(log))])
  append(log, 'junk\n' + ECC + '3,1,3,-;ionic 0000:81:00.0 eth1: Link down\n')
  assert [e.kind for e in looking.poll(10.0)] == ['gpu_memory_uncorrectable']
  assert not looking.poll(39.0)
  assert [e.kind for e in looking.poll(41.0)] == ['nic_down']
  looking.close()


def test_what_cannot_be_read_is_told_once(tmp_path):
  looking = watch.Watch(
    'n7',
    rules.load(),
    logs=[('kern', '/proc/self/mem/{node}'), ('kern', str(tmp_path / 'none'))],
    metrics_url='http://127.0.0.1:9/metrics',
  )
  told = []
  while len(told) < 2:
    told += looking.poll(0.0)
  assert [(e.kind, e.action) for e in told] == [('cannot_watch', 'warn')] * 2
  assert not looking.poll(0.0)
  looking.close()


@pytest.mark.parametrize(
  'log', ['kern', 'kern:', 'trainer:/x', '/dev/kmsg', '']
)
def test_wrong_log_is_refused(log):
  assert watch.parse(['kern:/dev/kmsg', 'journal:/a:b'])[1][1] == '/a:b'
  with pytest.raises(fields.UsageError, match=f'--aegis.logs={log}'):
    watch.parse([log])
