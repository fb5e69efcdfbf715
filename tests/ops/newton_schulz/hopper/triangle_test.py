# SPDX-License-Identifier: Apache-2.0
"""What pairs of programs compute of a symmetric matrix."""

import collections

import numpy as np
import pytest

from ops.newton_schulz.hopper import triangle

SQUARES = range(1, 19)


def _blocks(pairs):
  """How often each block is computed, mirrored ones counted as the same."""
  return collections.Counter(
    (min(row, column), max(row, column))
    for row, *columns in pairs.reshape(-1, 3).tolist()
    for column in columns
  )


def _is_triangle(pairs, squares):
  wanted = {(i, j) for j in range(2 * squares) for i in range(j + 1)}
  found = _blocks(pairs)
  return set(found) == wanted and all(
    count == 1 or i == j for (i, j), count in found.items()
  )


@pytest.mark.parametrize('squares', SQUARES)
def test_each_block_beside_the_diagonal_is_computed_once(squares):
  assert _is_triangle(triangle.pairs(squares), squares)


@pytest.mark.parametrize('squares', SQUARES)
def test_a_pair_shares_its_first_columns(squares):
  _, first, _ = triangle.pairs(squares).transpose(2, 1, 0)
  np.testing.assert_array_equal(*first)


@pytest.mark.parametrize('squares', [4, 8, 16])
def test_squares_in_fours_have_nothing_twice(squares):
  blocks = 2 * squares
  assert len(triangle.pairs(squares)) * 4 == blocks * (blocks + 1) // 2


@pytest.mark.parametrize('squares', SQUARES)
def test_blocks_on_the_diagonal_are_second(squares):
  row, _, second = triangle.pairs(squares).reshape(-1, 3).T
  assert sorted(row[row == second]) == [*range(2 * squares)]


def test_another_first_column_misses_blocks(monkeypatch):
  monkeypatch.setattr(triangle, '_FIRST', (2, 4, 0, 1))
  assert not _is_triangle(triangle.pairs.__wrapped__(4), 4)
