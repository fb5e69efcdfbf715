# SPDX-License-Identifier: Apache-2.0
"""Whether the supervisor itself runs."""

import socket
import tempfile

import pytest

from zaya_jax.aegis.supervisor import pulse


@pytest.fixture
def clock(monkeypatch):
  now = [100.0]
  monkeypatch.setattr(pulse.time, 'monotonic', lambda: now[0])
  return now


def test_pause_is_seen_by_the_clock_of_the_loop(clock):
  made = pulse.Pulse()
  clock[0] += 0.1
  assert made.beat() == 0.0
  clock[0] += 14.0
  assert made.beat() == pytest.approx(14.0)
  assert made.beat() == 0.0


def test_systemd_hears_of_progress_now_and_then(clock, monkeypatch):
  made = pulse.Pulse()
  made.tell()  # Nobody has asked.
  with (
    # The path of a socket has 107 bytes at most: that of a test may be longer.
    tempfile.TemporaryDirectory(dir='/tmp') as folder,
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as there,
  ):
    there.bind(f'{folder}/notify')
    there.settimeout(10)
    monkeypatch.setenv('NOTIFY_SOCKET', f'{folder}/notify')
    for _ in range(60):
      clock[0] += 0.1
      made.beat()
      made.tell()
    assert there.recv(100) == b'WATCHDOG=1'
    there.setblocking(False)
    with pytest.raises(BlockingIOError):
      there.recv(100)
