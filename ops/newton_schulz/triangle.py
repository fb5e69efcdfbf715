# SPDX-License-Identifier: Apache-2.0
"""What pairs of programs compute of a symmetric matrix.

The matrix is cut into blocks. Of those beside the diagonal one of two that
mirror each other is wanted, of those on it each. A program computes two blocks
of a row, and a pair two such rows of the same columns, so that it loads these
once.

Where the four blocks of a pair make a square on the diagonal, one of them
mirrors another. A block of elsewhere has its place, at the price of a column
that the pair does not share. Of 2048 rows in blocks of 128 that leaves 34 pairs
of 36: none of the 136 blocks of the triangle is computed twice.
"""

import functools
import itertools

import numpy as np

# Squares of 2 x 2 blocks on the diagonal whose second rows b make a ring: each
# has room for the block where the next one's b crosses its own.
_RING = (0, 2, 1, 3)


@functools.cache
def pairs(squares: int) -> np.ndarray:
  """The blocks of each pair of programs.

  Args:
    squares: half of the blocks along a side of the matrix.

  Returns:
    [pairs, 2, 3] int32: of each program the row of its blocks, then the columns
    of both. The first column is the same in a pair.
  """
  found = []
  add = lambda rows, columns: found.append([(row, *columns) for row in rows])
  whole = lambda i: (2 * i, 2 * i + 1)
  group = len(_RING)
  grouped = squares // group * group
  for i in range(squares):
    a, b = whole(i)
    # In the last squares, of no group, the block on the diagonal comes twice.
    other = b
    if i < grouped:
      start, place = i // group * group, _RING.index(i % group)
      other = 2 * (start + _RING[(place + 1) % group]) + 1
    found.append([(a, b, a), (b, b, other)])
  for i, j in itertools.combinations(range(squares), 2):
    if i // group != j // group or j >= grouped or j == i ^ 1:
      add(whole(i), whole(j))
  for i in range(0, grouped, group):
    (a, b), (c, d) = (
      [(2 * k + half, 2 * k + 2 + half) for half in range(2)]
      for k in (i, i + 2)
    )
    add(a, c)
    add(a, d)
    add(b, c)
  return np.asarray(found, np.int32)
