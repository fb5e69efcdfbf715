# SPDX-License-Identifier: Apache-2.0
"""Copies between host and device."""

import numpy as np
import pytest

from zaya_jax import config as config_lib
from zaya_jax.bench.machine import transfer
from zaya_jax.bench.sweep import frame as frame_lib


@pytest.mark.parametrize('case', transfer.CASES)
def test_what_is_sent_arrives_each_time(case):
  sent = np.arange(100, dtype=np.uint8)
  copy = transfer._copy(case, sent)
  for _ in range(2):
    np.testing.assert_array_equal(np.asarray(copy()), sent)


@pytest.mark.parametrize('case', transfer.CASES)
def test_copies_are_timed(case):
  assert transfer.measure(case, 4096, None, repeats=1).seconds > 0


def test_changed_byte_is_noticed(monkeypatch):
  def copy(case, sent):
    changed = sent.copy()
    changed[-1] ^= 1
    return lambda: changed

  monkeypatch.setattr(transfer, '_copy', copy)
  with pytest.raises(frame_lib.WrongError, match='4,096 bytes to host'):
    transfer.measure('to host', 4096, None, repeats=1)


def test_run_measures_each_direction():
  frame = frame_lib.Frame(minutes=10, repeats=1)
  bench = config_lib.BenchConfig(max_bytes=2**12)
  transfer.run(frame, config_lib.Config(mode='bench', bench=bench))
  assert {p.case for p in frame.points} == set(transfer.CASES)
  assert all(p.work == p.size == 2**12 for p in frame.points)
