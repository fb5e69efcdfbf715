# SPDX-License-Identifier: Apache-2.0
"""What pairs of programs compute of a symmetric matrix.

The matrix is cut into blocks. Of those beside the diagonal one of two that
mirror each other is wanted, of those on it each. A program computes two blocks
of a row, and a pair two such rows of the same columns, so that it loads these
once. Of a pair at the diagonal the second blocks are on it, each in its row:
only the first have the same columns.

Four squares of four blocks on the diagonal thus become nine pairs of which none
computes what another does, where squares would be ten: 34 pairs of 36 for 2048
rows in blocks of 128.
"""

import functools

import numpy as np

# Of the eight blocks along the sides of four squares: the first column of each
# square on the diagonal, and (rows, columns) of the pairs that are left then.
_FIRST = (2, 4, 0, 0)
_OTHERS = (
  ((0, 6), (1, 3)),
  ((1, 5), (3, 4)),
  ((1, 2), (5, 7)),
  ((2, 7), (3, 6)),
  ((4, 5), (6, 7)),
)


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
  four = len(_FIRST)
  grouped = squares // four * four
  for i in range(squares):
    rows = 2 * i, 2 * i + 1
    first = rows[1]  # In squares left over this block comes twice.
    if i < grouped:
      first = i // four * 2 * four + _FIRST[i % four]
    found.append([(row, first, row) for row in rows])
    for j in range(i + 1, squares):
      if j >= grouped or i // four != j // four:
        add(rows, (2 * j, 2 * j + 1))
  for start in range(0, 2 * grouped, 2 * four):
    for rows, columns in start + np.asarray(_OTHERS):
      add(rows, columns)
  return np.asarray(found, np.int32)
