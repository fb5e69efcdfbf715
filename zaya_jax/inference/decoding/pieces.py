# SPDX-License-Identifier: Apache-2.0
"""In which pieces a prompt is read.

There are a few sizes, so that few programs serve all lengths, and where a piece
ends does not depend on what comes behind it, so that prompts that begin alike
have the same pieces.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# Tokens of a piece; each divides the next.
SIZES = (32, 128, 512)


class Piece(NamedTuple):
  """What comes next of a prompt.

  Attributes:
    slot: where to.
    ids: the prompt, [L] int32; of its last token only the step knows more.
    begin: tokens that were read; 0: the slot begins anew.
  """

  slot: int
  ids: np.ndarray
  begin: int


class Pieces:
  """The pieces of all prompts.

  Args:
    sizes: ascending, each a divisor of the next.
    fine: whether the first ones are small, so that less is read again of
      prompts that begin alike; without, a prompt has the fewest pieces.
  """

  def __init__(self, sizes: Sequence[int] = SIZES, fine: bool = True):
    self.sizes = tuple(sizes)
    self._first = self.sizes[:2][-1] if fine else self.sizes[-1]

  def count(self, piece: Piece) -> int:
    """How many tokens it has."""
    return min(len(piece.ids) - 1 - piece.begin, self.limit(piece.begin))

  def padded(self, piece: Piece) -> int:
    """The smallest size that it fits into."""
    count = self.count(piece)
    return next(size for size in self.sizes if size >= count)

  def limit(self, begin: int) -> int:
    """The most tokens of a piece, whatever comes behind it."""
    return max(size for size in self.sizes if size <= max(begin, self._first))

  def ends(self, ids: np.ndarray) -> list[int]:
    """The token behind each piece of a prompt."""
    found, end = [], 0
    while end < len(ids) - 1:
      end += self.count(Piece(0, ids, end))
      found.append(end)
    return found

  def part(
    self, pieces: Sequence[Piece], rows: int, size: int, nowhere: int
  ) -> dict[str, np.ndarray]:
    """Pieces as `programs.read` takes them.

    Args:
      pieces: of one padded size, `rows` at most.
      rows: of the program.
      size: tokens of a row.
      nowhere: the first slot that there is not, for rows without a piece.
    """
    tokens = np.zeros((rows, size + 1), np.int32)  # With the one that follows.
    counts, fresh = np.zeros(rows, np.int32), np.ones(rows, bool)
    slots = np.arange(nowhere, nowhere + rows, dtype=np.int32)
    for row, piece in enumerate(pieces):
      begin, count = piece.begin, self.count(piece)
      tokens[row, : count + 1] = piece.ids[begin : begin + count + 1]
      counts[row], slots[row], fresh[row] = count, piece.slot, begin == 0
    return {
      'tokens': tokens[:, :size],
      'next': tokens[:, 1:],
      'count': counts,
      'slot': slots,
      'fresh': fresh,
    }
