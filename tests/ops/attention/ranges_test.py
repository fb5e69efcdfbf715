# SPDX-License-Identifier: Apache-2.0
"""Which blocks of keys a block of queries looks at: all that it sees."""

import numpy as np
import pytest

from ops.attention import cases, ranges, reference

ROWS = 96
SEGMENTS = {
  'none': None,
  'documents': cases.documents(30, 1, 33, 32),
  'two_rows': np.repeat([[7, 3, 9], [1, 1, 2]], 32, axis=1),
  'returns': np.repeat([[1, 2, 1, 1], [1, 0, 1, 1]], [20, 12, 32, 32], axis=1),
  'come_again': np.arange(ROWS)[None] // 10 % 3,
}


@pytest.mark.parametrize('window', [None, 1, 20, 2**31 - 1])
@pytest.mark.parametrize('name', SEGMENTS)
def test_ranges_leave_out_nothing_visible(name, window):
  segments = SEGMENTS[name]
  given = (None, None) if segments is None else (segments, segments)
  visible = np.asarray(reference.visible_keys(ROWS, ROWS, *given, 0, window))
  pairs = visible.reshape(len(visible), 6, 16, 3, 32)
  both_ways = (pairs, pairs.transpose(0, 3, 4, 1, 2))
  found = ranges.ranges(ROWS, 16, 32, *given, window)
  for ends, pairs in zip(found, both_ways, strict=True):
    some, every = pairs.any((2, 4)), pairs.all((2, 4))
    start, full_start, full_stop, stop = np.moveaxis(np.asarray(ends), -1, 0)
    assert (start <= full_start).all() and (full_start <= full_stop).all()
    assert (full_stop <= stop).all()
    block = np.arange(some.shape[-1])
    inside = (block >= start[..., None]) & (block < stop[..., None])
    assert not (some & ~inside).any()
    full = (block >= full_start[..., None]) & (block < full_stop[..., None])
    assert not (full & ~every).any()
    if name in ('none', 'documents', 'two_rows'):  # And nothing else.
      assert (inside == some).all()
