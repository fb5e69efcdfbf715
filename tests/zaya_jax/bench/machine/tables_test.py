# SPDX-License-Identifier: Apache-2.0
"""What is printed of measurements."""

import pytest

from tests.support import curves
from zaya_jax.bench.machine import file, tables


def test_curve_is_a_line(capsys):
  points = (
    curves.point(2**10, 2e-5, work=2**10),
    curves.point(2**20, 1e-4, work=4e7),
    curves.point(2**21, 2e-4, work=8e7),
    curves.point(512, 1e-3, case='triad', work=1e9),
  )
  section = file.section(
    'GB/s', points=points, notes=('what was not',), missing=('permute x 2',)
  )
  tables.show('collectives', section)
  out = capsys.readouterr().out
  [line] = [line for line in out.splitlines() if 'all-reduce' in line]
  assert line.split() == (
    'all-reduce 8 1 KiB 20 us 2 MiB 200 us 400 GB/s 1 MiB'.split()
  )
  [line] = [line for line in out.splitlines() if 'triad' in line]
  assert line.split() == 'triad 8 1 ms 1 ms to 1 ms 1000 GB/s'.split()
  assert 'what was not' in out and 'permute x 2; with --output' in out


def test_memory_is_as_fast_as_its_largest_array(capsys):
  points = (
    curves.point(2**10, 1.0, 'triad', 1, 1e9),
    curves.point(2**20, 1.0, 'triad', 1, 9e9),
    curves.point(2**21, 1.0, 'triad', 1, 3e9),
  )
  section = file.section('GB/s', points=points)
  assert tables.best('memory', section) == 3e9
  assert tables.best('transfer', section) == 9e9
  tables.show('memory', section)
  out = capsys.readouterr().out
  assert 'at the largest' in out and '3 GB/s' in out and '9 GB/s' not in out


def test_knee_without_an_end_is_marked(capsys):
  points = tuple(curves.point(4**k, 1.0) for k in range(5))
  section = file.section('GB/s', points=points, missing=('all-reduce x 8',))
  tables.show('collectives', section)
  assert '~256 B' in capsys.readouterr().out


@pytest.mark.parametrize(
  'count, text',
  [(1, '1 B'), (1024, '1 KiB'), (1536, '1.5 KiB'), (2**40, '1024 GiB')],
)
def test_size_in_words(count, text):
  assert tables.size(count) == text


@pytest.mark.parametrize(
  'seconds, text', [(1.25e-5, '12.5 us'), (0.0025, '2.5 ms'), (3.0, '3 s')]
)
def test_duration_in_words(seconds, text):
  assert tables.duration(seconds) == text
