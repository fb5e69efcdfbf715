# SPDX-License-Identifier: Apache-2.0
"""How the records of a source are divided into groups and blocks.

A group is adjacent records of about `GROUP_TOKENS` tokens: windows of any
length up to it come from one preparation. A block is groups from anywhere in
the source, which one epoch reads together, shuffled window by window; a source
of up to 200 million tokens is one block. The records behind the last full group
are the tail; the epoch's last block has it.

A window is counted by where it begins: number w of a block, whose groups stand
one behind another in the epoch's order and then the tail, begins at its token
w * seq_len. A window stays within its record, or is made of whole ones.
"""

import dataclasses

import numpy as np

GROUP_TOKENS = 131_072
# A large block mixes better: the mean of what a group's windows share varies
# in a batch of B windows 1 + B / groups times as much as in one that is drawn
# from the whole source. A small one loses less when the length of windows
# changes: a sixteenth of the source at most, unless it is small.
LEAST_GROUPS, MOST_GROUPS, PART_OF_SOURCE = 1_024, 65_536, 16


@dataclasses.dataclass(frozen=True)
class Extent:
  """The size of a source: tokens of its train split, and of a full record."""

  tokens: int
  record_tokens: int

  @property
  def group_tokens(self) -> int:
    """Tokens of a group, the longest window."""
    records = max(1, GROUP_TOKENS // self.record_tokens)
    return self.record_tokens << (records.bit_length() - 1)

  def fits(self, seq_len: int) -> bool:
    """Whether there are windows of this length."""
    if seq_len > self.record_tokens:
      return not (seq_len % self.record_tokens or self.group_tokens % seq_len)
    return self.record_tokens % seq_len == 0

  def windows(self, seq_len: int) -> int:
    """Windows of this length that have something to predict."""
    full, rest = divmod(self.tokens, max(seq_len, self.record_tokens))
    whole = full * max(1, self.record_tokens // seq_len)
    return whole + max(0, -(-(rest - 1) // seq_len))


class Blocks:
  """The blocks of an epoch of one source; all are near-equal.

  Attributes:
    extent: of the source.
    group_tokens: of a group.
    groups: full ones.
    tail_tokens: behind them.
    count: blocks of an epoch, at least 1.
  """

  def __init__(self, extent: Extent, groups_per_block: int = 0):
    """Divides a source.

    Args:
      extent: of the source.
      groups_per_block: about so many; 0: as is best.
    """
    self.extent = extent
    self.group_tokens = extent.group_tokens
    self.groups, self.tail_tokens = divmod(extent.tokens, self.group_tokens)
    groups_per_block = groups_per_block or min(
      max(self.groups // PART_OF_SOURCE, LEAST_GROUPS), MOST_GROUPS
    )
    nearest = (2 * self.groups + groups_per_block) // (2 * groups_per_block)
    self.count = max(1, nearest)

  def first(self, block):
    """The first place of a block in the epoch's order of groups."""
    return block * self.groups // self.count

  def tokens(self, block: int) -> int:
    """Tokens of a block."""
    groups = self.first(block + 1) - self.first(block)
    last = block == self.count - 1
    return groups * self.group_tokens + self.tail_tokens * last

  def trained(self, block: int) -> int:
    """Tokens of a block that any windows can have as inputs.

    The last token of a source may have nothing to predict.
    """
    partial = self.tail_tokens % self.extent.record_tokens
    last = block == self.count - 1 and partial > 0
    return self.tokens(block) - last

  def windows(self, block, seq_len: int):
    """Windows of blocks; `block` is a number or an array of them."""
    groups = self.first(block + 1) - self.first(block)
    last = block == self.count - 1
    return groups * (self.group_tokens // seq_len) + last * self._tail(seq_len)

  def before(self, block, seq_len: int):
    """Windows of the epoch's blocks before these."""
    return self.first(block) * (self.group_tokens // seq_len)

  def per_epoch(self, seq_len: int) -> int:
    """Windows of all blocks."""
    return self.extent.windows(seq_len)

  def find(self, places: np.ndarray, seq_len: int) -> np.ndarray:
    """The blocks that hold these windows of an epoch, counted from 0."""
    if not self.groups:
      return np.zeros_like(places)
    slots = places // (self.group_tokens // seq_len)
    slots = np.minimum(slots, self.groups - 1)  # The tail is in the last block.
    return ((slots + 1) * self.count - 1) // self.groups

  def _tail(self, seq_len: int) -> int:
    tail = Extent(self.tail_tokens, self.extent.record_tokens)
    return tail.windows(seq_len)
