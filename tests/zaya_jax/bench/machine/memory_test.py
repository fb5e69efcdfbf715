# SPDX-License-Identifier: Apache-2.0
"""Bandwidth of the memory: bytes that count, and wrong values."""

import pytest

from zaya_jax import config as config_lib
from zaya_jax.bench.machine import memory
from zaya_jax.bench.sweep import frame as frame_lib

SIZE = 2**12


@pytest.mark.parametrize(
  'case, arrays', [('copy', 2), ('scale', 2), ('add', 3), ('triad', 3)]
)
def test_bytes_are_those_of_babelstream(case, arrays):
  assert memory.work(case, SIZE) == arrays * SIZE
  found = memory.measure(case, SIZE, None, repeats=1)
  assert found.seconds > 0


def test_wrong_values_are_noticed(monkeypatch):
  def broken(a, b, s):
    found = a + s * b
    return found.at[3].add(0.01) if found.ndim else found

  monkeypatch.setitem(memory._KERNELS, 'triad', (3, broken, 0.4))
  with pytest.raises(frame_lib.WrongError, match='triad of 4,096 bytes'):
    memory.measure('triad', SIZE, None, repeats=1)


def test_sizes_between_powers_of_two_are_whole_vectors(monkeypatch):
  sizes = []

  def measured(case, size, expected_s, repeats):
    sizes.append(size)
    seconds = 1e-5 + size / 4e12
    return frame_lib.clock.Timed(
      low=seconds, seconds=seconds, high=seconds, samples=1, calls=1
    )

  monkeypatch.setattr(memory, 'measure', measured)
  frame = frame_lib.Frame(minutes=10, repeats=1, cases=('copy',))
  bench = config_lib.BenchConfig(max_bytes=2**30)
  memory.run(frame, config_lib.Config(mode='bench', bench=bench))
  odd = [size for size in sizes if size & (size - 1)]
  assert odd and all(size % 2**12 == 0 for size in sizes)


def test_each_kernel_is_a_curve(monkeypatch):
  monkeypatch.setattr(
    memory,
    'measure',
    lambda case, size, expected_s, repeats: frame_lib.clock.Timed(
      low=1.0, seconds=1.0, high=1.0, samples=1, calls=1
    ),
  )
  frame = frame_lib.Frame(minutes=10, repeats=1, cases=('add',))
  bench = config_lib.BenchConfig(max_bytes=2**22)
  memory.run(frame, config_lib.Config(mode='bench', bench=bench))
  points = {(p.case, p.size): p.work for p in frame.points}
  assert points['add', 2**20] == 3 * 2**20
  assert points['add', 2**22] == 3 * 2**22
  assert {case for case, _ in points} == {'add'}
