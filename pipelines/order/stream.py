# SPDX-License-Identifier: Apache-2.0
"""The windows of one source in the order in which they are given out.

Epoch by epoch: its groups in an order of their own, cut into blocks, and the
windows of each block shuffled. A change of the window's length within a block
leaves tokens of it that were not given out yet. They come first, as windows of
the new length in the order of that length; what is in no whole window stays
away until the next epoch.
"""

import functools
import math
from typing import NamedTuple

import numpy as np

from pipelines.order import blocks as blocks_lib
from pipelines.order import shuffle


class Point(NamedTuple):
  """Where a source stands.

  Attributes:
    epoch: complete ones.
    block: of the epoch, the one that was opened last.
    given: what was given out of it, as (seq_len, windows), in order; no
      neighbours have the same length.
  """

  epoch: int = 0
  block: int = 0
  given: tuple[tuple[int, int], ...] = ()


class Windows(NamedTuple):
  """Windows of one source, each an int64 [n].

  Attributes:
    epochs: complete ones before each window.
    records: where it begins, of the whole split.
    offsets: tokens of that record before it.
    tokens: of it; fewer than its length at the end of the source.
  """

  epochs: np.ndarray
  records: np.ndarray
  offsets: np.ndarray
  tokens: np.ndarray


class Stream:
  """The windows of one source from a point on, at one length.

  Args:
    blocks: of the source.
    key: of the order: the seed and the number of the source.
    start: where the source stands.
    seq_len: of the windows.
  """

  def __init__(
    self,
    blocks: blocks_lib.Blocks,
    key: tuple[int, int],
    start: Point,
    seq_len: int,
  ):
    self._blocks, self._key, self._start = blocks, key, start
    self._seq_len = seq_len
    self._per_epoch = blocks.per_epoch(seq_len)
    # Of one length so far: no list is needed to go on.
    self._plain = all(length == seq_len for length, _ in start.given)
    first = blocks.before(start.block, seq_len)
    if self._plain:
      first += sum(count for _, count in start.given)
    else:
      first += blocks.windows(start.block, seq_len)
    self._first = first  # Window of the epoch, behind `_rest`.

  @functools.cached_property
  def _rest(self) -> np.ndarray:
    """What is left of the open block: its windows by number, uint32 [n]."""
    if self._plain:
      return np.zeros(0, np.uint32)
    return self._left(self._seq_len, self._given()).astype(np.uint32)

  def windows(self, nth: np.ndarray) -> Windows:
    """Windows of the stream, by how many of it come before; int64 [n]."""
    rest = len(self._rest)
    in_rest = nth < rest
    places = self._first + np.maximum(nth - rest, 0)
    epochs, places = np.divmod(places, self._per_epoch)
    epochs += self._start.epoch
    blocks = self._blocks.find(places, self._seq_len)
    epochs[in_rest], blocks[in_rest] = self._start.epoch, self._start.block
    places -= self._blocks.before(blocks, self._seq_len)
    numbers = np.empty_like(places)
    numbers[in_rest] = self._rest[nth[in_rest]]
    new = ~in_rest
    numbers[new] = shuffle.permute(
      places[new],
      self._blocks.windows(blocks[new], self._seq_len),
      self._keys(epochs[new], blocks[new], self._seq_len),
    )
    return self._tokens(epochs, blocks, numbers * self._seq_len)

  def after(self, count: int) -> Point:
    """Where the source stands after so many windows of the stream."""
    start = self._start
    if not count:
      return start
    rest = len(self._rest)
    if count <= rest:
      *before, (length, given) = start.given
      if length == self._seq_len:
        return start._replace(given=(*before, (length, given + count)))
      return start._replace(given=(*start.given, (self._seq_len, count)))
    place = self._first + count - rest
    epochs, place = divmod(place, self._per_epoch)
    block = int(self._blocks.find(np.array([place]), self._seq_len)[0])
    place -= self._blocks.before(block, self._seq_len)
    given = ((self._seq_len, place),) if place else ()
    return Point(start.epoch + epochs, block, given)

  def left_out(self, count: int | None) -> Windows:
    """Tokens that so many windows (None: endless) leave behind for good.

    Neighbours of a group are joined, so there may be more tokens than a record
    has.
    """
    rest = self._rest
    if self._plain or (count is not None and count <= len(rest)):
      return self._tokens(*(np.zeros(0, np.int64) for _ in range(3)))
    used = self._given()
    _mark(used, rest, self._seq_len)
    block = self._start.block
    ends = self._blocks.trained(block)
    starts = np.arange(0, ends, used.unit)
    free = ~used.mask[: len(starts)]
    group = self._blocks.group_tokens
    opens = free & (~np.append(False, free[:-1]) | (starts % group == 0))
    runs = np.flatnonzero(opens)
    numbers = np.cumsum(opens)[free] - 1  # Of the run of each free unit.
    units = np.bincount(numbers, minlength=len(runs))
    begins = starts[runs]
    found = self._tokens(
      np.full(len(runs), self._start.epoch), np.full(len(runs), block), begins
    )
    sizes = np.minimum(begins + units * used.unit, ends) - begins
    return found._replace(tokens=sizes)

  def epochs(self, count: int) -> float:
    """How often the source was read after so many windows of the stream."""
    epoch, block, given = self.after(count)
    if not self._blocks.extent.tokens:
      return 0.0
    if len(given) == 1:
      [(length, windows)] = given
      place = self._blocks.before(block, length) + windows
      return epoch + place / self._blocks.per_epoch(length)
    tokens = self._blocks.first(block) * self._blocks.group_tokens
    tokens += sum(length * windows for length, windows in given)
    return epoch + tokens / self._blocks.extent.tokens

  def _tokens(
    self, epochs: np.ndarray, blocks: np.ndarray, starts: np.ndarray
  ) -> Windows:
    """Windows that begin at these tokens of blocks."""
    extent, group = self._blocks.extent, self._blocks.group_tokens
    slots, offsets = np.divmod(starts, group)
    firsts = self._blocks.first(blocks)
    full = slots < self._blocks.first(blocks + 1) - firsts
    groups = np.full_like(slots, self._blocks.groups)  # The tail is the last.
    groups[full] = shuffle.permute(
      (firsts + slots)[full],
      self._blocks.groups,
      self._keys(epochs[full]),
    )
    tokens = groups * group + offsets
    records, offsets = np.divmod(tokens, extent.record_tokens)
    sizes = np.minimum(self._seq_len, extent.tokens - tokens)
    return Windows(epochs, records, offsets, sizes)

  def _keys(self, epochs: np.ndarray, *of) -> np.ndarray:
    """Keys of permutations that numbers tell apart, uint64 [ROUNDS, n]."""
    if not len(epochs):
      return np.zeros((shuffle.ROUNDS, 0), np.uint64)
    which = np.stack(np.broadcast_arrays(epochs, *of))
    if (which[:, :1] == which).all():  # As nearly always.
      return shuffle.key(*self._key, *which[:, 0].tolist())[:, None]
    different, at = np.unique(which, axis=1, return_inverse=True)
    keys = [shuffle.key(*self._key, *one) for one in different.T.tolist()]
    return np.stack(keys, axis=1)[:, at.reshape(-1)]

  def _given(self) -> '_Used':
    """What was given out of the open block: its history once more."""
    given = self._start.given
    unit = math.gcd(self._seq_len, *(length for length, _ in given))
    tokens = self._blocks.tokens(self._start.block)
    # Whole windows of any length.
    longest = math.lcm(self._seq_len, *(length for length, _ in given))
    size = -(-tokens // longest) * longest // unit
    used = _Used(np.zeros(size, bool), unit)
    for length, count in given:
      _mark(used, self._left(length, used, count), length)
    return used

  def _left(
    self, seq_len: int, used: '_Used', most: int | None = None
  ) -> np.ndarray:
    """The first windows of the open block none of whose tokens are used."""
    epoch, block, _ = self._start
    size = self._blocks.windows(block, seq_len)
    per_window = seq_len // used.unit
    units = used.mask[: size * per_window].reshape(size, per_window)
    taken = np.asarray(units.any(axis=1))
    keys = self._keys(np.array([epoch]), block, seq_len)
    found, there = [np.zeros(0, np.int64)], 0
    for start in range(0, size, _PIECE):
      if most is not None and there >= most:
        break
      places = np.arange(start, min(start + _PIECE, size))
      numbers = shuffle.permute(places, size, keys)
      numbers = numbers[~taken[numbers]]
      found.append(numbers)
      there += len(numbers)
    return np.concatenate(found)[:most]


_PIECE = 2**18  # Windows looked at together.


class _Used(NamedTuple):
  """Which tokens of a block were given out: bool [n], `unit` tokens each."""

  mask: np.ndarray
  unit: int


def _mark(used: _Used, windows: np.ndarray, seq_len: int) -> None:
  """Marks the tokens of windows of a block."""
  per_window = seq_len // used.unit
  whole = len(used.mask) // per_window * per_window
  used.mask[:whole].reshape(-1, per_window)[windows] = True
