# SPDX-License-Identifier: Apache-2.0
"""Memory that measurements may use."""

import types

import jax

from zaya_jax.bench.sweep import room


def test_virtual_devices_share_the_memory_of_the_host():
  whole = room.os.sysconf('SC_PHYS_PAGES') * room.os.sysconf('SC_PAGE_SIZE')
  assert 0 < room.free() <= whole / 16


def test_device_with_the_least_counts(monkeypatch):
  stats = [
    {'bytes_limit': 80, 'bytes_in_use': 10},
    {'bytes_limit': 80, 'bytes_in_use': 50},
  ]
  devices = [types.SimpleNamespace(memory_stats=lambda s=s: s) for s in stats]
  monkeypatch.setattr(jax, 'local_devices', lambda: devices)
  assert room.free() == 30
