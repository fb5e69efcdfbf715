# SPDX-License-Identifier: Apache-2.0
"""Reading ahead: in order, many at once, and no further than needed."""

import threading

import numpy as np
import pytest

from pipelines.sources import ahead


def test_pieces_come_in_order():
  found = list(ahead.read(lambda i: np.array(i), 100))
  assert found == list(range(100))
  assert list(ahead.read(lambda i: np.array(i), 0)) == []


def test_all_threads_wait_for_a_slow_store_together():
  """None returns before as many as there are threads have begun."""
  together = threading.Barrier(ahead.THREADS)

  def read(i):
    together.wait(timeout=60)
    return np.array(i)

  count = 4 * ahead.THREADS
  assert list(ahead.read(read, count)) == list(range(count))


def test_what_goes_wrong_is_raised_where_it_is_read():
  def read(i):
    if i == 3:
      raise ValueError('piece 3')
    return np.array(i)

  pieces = ahead.read(read, 9)
  assert [next(pieces) for _ in range(3)] == [0, 1, 2]
  with pytest.raises(ValueError, match='piece 3'):
    next(pieces)


def test_closing_ends_what_is_read_ahead():
  begun = []
  pieces = ahead.read(lambda i: np.array(begun.append(i) or i), 10**9)
  next(pieces)
  pieces.close()
  assert len(begun) < 100


@pytest.mark.parametrize('rows', [range(5), range(8, 40), range(100, 175)])
def test_parts_of_a_batch_are_its_rows(rows):
  parts = ahead.pieces(rows)
  assert [row for part in parts for row in part] == list(rows)
  assert len(parts) <= ahead.THREADS
