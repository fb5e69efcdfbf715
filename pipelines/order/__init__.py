# SPDX-License-Identifier: Apache-2.0
"""The order of training: which window of which source is which row.

A row is one sequence of a batch. Rows are numbered through the whole run from
0, so one integer is the state of the data. Which window a row is, is a function
of the sources' sizes, the seed and the stretches up to the row: not of batch
sizes, processes, or of what follows. Nothing in memory grows with the data.
"""

import bisect
import dataclasses
import hashlib
import itertools
import threading
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from pipelines.order import blocks as blocks_lib
from pipelines.order import quotas, stream

# Of the order: what a checkpoint compares. A change of it loses and repeats
# windows of the runs that go on.
VERSION = 2

Extent = blocks_lib.Extent


@dataclasses.dataclass(frozen=True)
class Stretch:
  """Consecutive rows that are read in one way.

  Attributes:
    rows: how many; None: without end, the last stretch only.
    seq_len: tokens of each.
    weights: of the sources, before normalization; 0: not read.
  """

  rows: int | None
  seq_len: int
  weights: tuple[Fraction, ...]


class Place(NamedTuple):
  """Where the window of a row is.

  Attributes:
    source: its number.
    epoch: how often the source was read before.
    record: where the window begins, counted over the shards of the split.
    offset: tokens of that record before the window.
    tokens: of the window; fewer than its length at the end of the source.
  """

  source: int
  epoch: int
  record: int
  offset: int
  tokens: int


class Order:
  """The rows of a run.

  A stretch goes on in each source where the one before stopped. At the same
  length it is as if they were one; at another length see `stream`. Stretches
  that follow each other with the same weights have one pattern of sources.
  """

  def __init__(
    self,
    extents: Sequence[Extent],
    stretches: Sequence[Stretch],
    seed: int,
    *,
    groups_per_block: int = 0,
  ):
    """Says what is read.

    Args:
      extents: of the sources.
      stretches: from row 0 on; at least one.
      seed: of the order.
      groups_per_block: for tests; 0: as every run has it.
    """
    self.extents, self.stretches = tuple(extents), tuple(stretches)
    self._seed = seed
    self._blocks = [blocks_lib.Blocks(e, groups_per_block) for e in extents]
    _check(self._blocks, self.stretches)
    rows = [stretch.rows for stretch in self.stretches]
    self._ends = list(itertools.accumulate(r for r in rows if r is not None))
    self._starts = [0, *self._ends][: len(self.stretches)]
    self._pattern_starts = self._starts[:1]  # Rows at which patterns began.
    for i in range(1, len(self.stretches)):
      same = self.stretches[i].weights == self.stretches[i - 1].weights
      self._pattern_starts.append(
        self._pattern_starts[-1] if same else self._starts[i]
      )
    self._streams: list[list[stream.Stream]] = [[] for _ in extents]
    self._lock = threading.Lock()  # Threads that read ahead grow the lists.

  @property
  def rows(self) -> int | None:
    """Rows of all stretches; None: they have no end."""
    endless = self.stretches[-1].rows is None
    return None if endless else self._ends[-1]

  def stretch(self, row: int) -> int:
    """The number of the stretch that has a row."""
    if row < 0 or (self.rows is not None and row >= self.rows):
      raise IndexError(f'Row {row} is none of the {self.rows} of the order.')
    return bisect.bisect_right(self._ends, row)

  def first(self, i: int) -> int:
    """The first row of stretch number `i`; of one behind the last, the end."""
    return [0, *self._ends][i]

  def places(self, rows: Sequence[int]) -> list[Place]:
    """Where the windows of these rows are."""
    columns = self._columns(np.asarray(rows, np.int64))
    return [Place(*place) for place in zip(*columns.tolist(), strict=True)]

  def counts(self, start: int, stop: int) -> list[int]:
    """How many of the rows from `start` to before `stop` each source has."""
    result = np.zeros(len(self.extents), np.int64)
    while start < stop:
      i = self.stretch(start)
      end = min(stop, self._ends[i]) if i < len(self._ends) else stop
      result += self._counted(i, end) - self._counted(i, start)
      start = end
    return result.tolist()

  def epochs(self, row: int) -> list[float]:
    """How often each source was read by the rows before this one."""
    i = self.stretch(max(row - 1, 0))
    return [
      self._stream(i, source).epochs(count)
      for source, count in enumerate(self.counts(self._starts[i], row))
    ]

  def left_out(self, i: int) -> list[Place]:
    """Tokens that stretch number `i` leaves to the next epoch, for good.

    They are in no whole window of those that were left when its length of
    windows came.
    """
    if self.stretches[i].rows is None:
      weights = self.stretches[i].weights
      counts: list[int | None] = [None if w else 0 for w in weights]
    else:
      counts = [*self.counts(self._starts[i], self._ends[i])]
    return [
      Place(source, *place)
      for source, count in enumerate(counts)
      if count != 0
      for place in zip(
        *(x.tolist() for x in self._stream(i, source).left_out(count)),
        strict=True,
      )
    ]

  def fingerprint(self, row: int, count: int = 64) -> str:
    """A hash of the places of the next rows and their sources' sizes."""
    end = row + count if self.rows is None else min(row + count, self.rows)
    columns = self._columns(np.arange(row, end))
    read = [self.extents[source] for source in np.unique(columns[0]).tolist()]
    sizes = [(extent.tokens, extent.record_tokens) for extent in read]
    content = np.array(sizes, '<i8').tobytes() + columns.astype('<i8').tobytes()
    return hashlib.sha256(content).hexdigest()[:32]

  def _columns(self, rows: np.ndarray) -> np.ndarray:
    """The fields of `Place` of rows, int64 [5, n]."""
    result = np.empty((5, len(rows)), np.int64)
    if not len(rows):
      return result
    self.stretch(int(rows.min())), self.stretch(int(rows.max()))
    stretches = np.searchsorted(self._ends, rows, side='right')
    for i in np.unique(stretches).tolist():
      [at] = np.nonzero(stretches == i)
      sources, nth = quotas.of(self.stretches[i].weights).at(
        rows[at] - self._pattern_starts[i]
      )
      nth -= self._counted(i, self._starts[i])[sources]
      result[0, at] = sources
      for source in np.unique(sources).tolist():
        [here] = np.nonzero(sources == source)
        found = self._stream(i, source).windows(nth[here])
        result[1:, at[here]] = found
    return result

  def _counted(self, i: int, row: int) -> np.ndarray:
    """Rows of each source before `row`, since the pattern of `i` began."""
    rows = row - self._pattern_starts[i]
    return np.array(quotas.of(self.stretches[i].weights).counts(rows))

  def _stream(self, i: int, source: int) -> stream.Stream:
    """The windows of a source from the start of a stretch."""
    known = self._streams[source]
    with self._lock:
      for j in range(len(known), i + 1):
        start = stream.Point()
        if j:
          rows = self._starts[j - 1], self._ends[j - 1]
          start = known[-1].after(self.counts(*rows)[source])
        key, seq_len = (self._seed, source), self.stretches[j].seq_len
        known.append(stream.Stream(self._blocks[source], key, start, seq_len))
    return known[i]


def rows(batch_size: int, shard_index: int, shard_count: int) -> range:
  """The rows of a global batch that one process reads: neighbours."""
  size = batch_size // shard_count
  return range(shard_index * size, (shard_index + 1) * size)


def _check(
  blocks: Sequence[blocks_lib.Blocks], stretches: Sequence[Stretch]
) -> None:
  """Refuses what callers should have refused in words of their users."""
  if not stretches or any(s.rows is None for s in stretches[:-1]):
    raise ValueError('Only the last of at least one stretch may be endless.')
  for stretch in stretches:
    if stretch.rows is not None and stretch.rows < 0:
      raise ValueError(f'A stretch of {stretch.rows} rows is none.')
    for one, weight in zip(blocks, stretch.weights, strict=True):
      if not weight:
        continue
      if not one.extent.fits(stretch.seq_len):
        raise ValueError(f'{one.extent} has no windows of {stretch.seq_len}.')
      if not one.per_epoch(stretch.seq_len):
        raise ValueError(f'{one.extent} has no tokens to predict.')
