# SPDX-License-Identifier: Apache-2.0
"""Digests of the steps of a run once more, from its shards.

Rows are read in the order of their records, many steps together, so that a
record is read about once.
"""

import os
from collections.abc import Iterator, Sequence

import numpy as np

from pipelines import sources, store
from pipelines.shards import manifest
from zaya_jax.data.ledger import chain, digest, story, terms

_CHUNK_ROWS = 65_536  # That are read together; of each 60 bytes stay.
_BATCH_TOKENS = 2**17  # That are hashed together: they fit into a cache.


class Shards:
  """The shards of a run; use it in a `with` block.

  Attributes:
    manifests: of the sources.
  """

  def __init__(
    self, run_dir: str, reads: terms.Reads, folders: Sequence[str] = ()
  ):
    """Opens them; no content is read.

    Args:
      run_dir: the run directory.
      reads: what the run read.
      folders: of the sources, where they are not where they were.

    Raises:
      LedgerError: if a folder is not the one that the run read.
      DataError: if a folder cannot be read.
    """
    self._order = reads.order
    places = folders or [
      place if store.is_url(place) else os.path.join(run_dir, place)
      for place in (source.directory for source in reads.sources)
    ]
    if len(places) != len(reads.sources):
      raise chain.LedgerError(
        f'--data.dir names {len(places)} folders, and the run read '
        f'{len(reads.sources)}; name as many, or none.'
      )
    self.directories = places
    self.manifests = [manifest.load(place) for place in places]
    for place, found, source in zip(
      places, self.manifests, reads.sources, strict=True
    ):
      if found.sha256 != source.manifest:
        raise chain.LedgerError(
          f'{place} is not what the run read: its {manifest.FILE_NAME} has '
          f'hash {found.sha256[:12]}, and the ledger {source.manifest[:12]}; '
          'put back what was there, or name it with --data.dir.'
        )
    self._sources: dict[tuple[int, int], sources.WindowSource] = {}

  def __enter__(self) -> 'Shards':
    return self

  def __exit__(self, *unused) -> None:
    for source in self._sources.values():
      source.close()

  def verify(self) -> None:
    """Compares all shards with their hashes.

    Raises:
      DataError: naming the first that differs.
    """
    for place in self.directories:
      manifest.verify(place)

  def hashes(
    self, rows: np.ndarray, seq_len: int, seen: 'Seen | None' = None
  ) -> tuple[np.ndarray, np.ndarray]:
    """Hashes and numbers of rows, as of `digest.of_windows`.

    Args:
      rows: of the run, [n], all of one length.
      seq_len: of them.
      seen: is told of each window.
    """
    places = np.array(self._order.places(rows.tolist()), np.int64)
    found, numbers = (
      np.empty((len(rows), 2), np.uint32),
      np.empty((len(rows), 2), int),
    )
    if seen:
      seen.add(rows, places, seq_len)
    order = np.lexsort((places[:, 3], places[:, 2], places[:, 0]))
    size = max(1, _BATCH_TOKENS // seq_len)
    ids = self.manifests[0]
    for start in range(0, len(rows), size):
      part = order[start : start + size]
      windows = np.stack(
        [
          self._source(source, seq_len).read(record, offset)
          for source, _, record, offset, _ in places[part].tolist()
        ]
      )
      found[part], numbers[part] = digest.of_windows(
        windows, bos_id=ids.bos_id, pad_id=ids.pad_id
      )
    return found, numbers

  def _source(self, number: int, seq_len: int) -> sources.WindowSource:
    key = number, seq_len
    if key not in self._sources:
      place, data = self.directories[number], self.manifests[number]
      made = sources.WindowSource(place, 'train', seq_len, data)
      self._sources[key] = made
    return self._sources[key]


class Seen:
  """Which tokens of each epoch were given out; none may be twice.

  Args:
    reads: what the run read.
  """

  def __init__(self, reads: terms.Reads):
    self._reads = reads
    lengths = [s.seq_len for s in reads.order.stretches]
    self._unit = int(np.gcd.reduce(lengths))
    self._bits: dict[tuple[int, int], np.ndarray] = {}

  def add(self, rows: np.ndarray, places: np.ndarray, seq_len: int) -> None:
    """Takes rows, in their order, and the fields of their places [n, 5].

    Raises:
      LedgerError: naming a row whose window was given out before.
    """
    for source, epoch in np.unique(places[:, :2], axis=0).tolist():
      at = (places[:, 0] == source) & (places[:, 1] == epoch)
      extent = self._reads.order.extents[source]
      starts = places[at, 2] * extent.record_tokens + places[at, 3]
      units = starts[:, None] // self._unit + np.arange(seq_len // self._unit)
      if self._again(source, epoch, extent, units.reshape(-1)):
        name, first = self._reads.sources[source].name, int(rows[at][0])
        raise chain.LedgerError(
          f'Rows from {first:,} on repeat a window of {name} within epoch '
          f'{epoch}.'
        )

  def _again(self, source, epoch, extent, units) -> bool:
    done = [e for s, e in self._bits if s == source and e < epoch - 1]
    for old in done:  # Of the one before, the last block may come late.
      del self._bits[source, old]
    size = extent.tokens // self._unit + 1
    # The last window of a source may have fewer tokens than its length.
    units = units[units < size]
    bits = self._bits.setdefault(
      (source, epoch), np.zeros(size // 8 + 1, np.uint8)
    )
    masks = (1 << (units & 7)).astype(np.uint8)
    if len(np.unique(units)) < len(units) or (bits[units >> 3] & masks).any():
      return True
    np.bitwise_or.at(bits, units >> 3, masks)
    return False


def check(
  shards: Shards,
  line: story.Line,
  steps: Sequence[int] = (),
  seen: Seen | None = None,
) -> int:
  """Compares digests of a line with the shards.

  Args:
    shards: of the run.
    line: of steps that were given rows.
    steps: some of them, from 1; none: all.
    seen: is told of each window, of all steps.

  Returns:
    The places of tokens that were read.

  Raises:
    LedgerError: naming the first step whose rows are not those of the shards.
  """
  totals, places = np.zeros(2, int), 0
  for numbers, rows in _chunks(line, steps):
    found, counts = shards.hashes(rows, line.seq_len, seen)
    totals += counts.sum(axis=0)
    places += len(rows) * line.seq_len
    sums = found.reshape(len(numbers), -1, 2).sum(axis=1, dtype=np.uint64)
    for number, (one, two) in zip(numbers, sums.tolist(), strict=True):
      written = line.each[number - line.steps[0] - 1]
      if digest.to_hex(one, two) != written:
        raise chain.LedgerError(
          f'Line {line.number:,}: step {number:,} was given other tokens '
          f'(digest {written}) than the shards have in its place '
          f'({digest.to_hex(one, two)}).'
        )
  if not steps and totals.tolist() != [line.tokens, line.counted]:
    raise chain.LedgerError(
      f'Line {line.number:,} has {line.tokens:,} tokens, {line.counted:,} '
      f'counted, and the shards {totals[0]:,} and {totals[1]:,} in their place.'
    )
  return places


def see(line: story.Line, seen: Seen) -> None:
  """Tells `seen` of the windows of a line that nobody was given."""
  start, stop = line.rows
  for first in range(start, stop, _CHUNK_ROWS):
    rows = np.arange(first, min(first + _CHUNK_ROWS, stop))
    places = np.array(line.reads.order.places(rows.tolist()), np.int64)
    seen.add(rows, places, line.seq_len)


def _chunks(line, steps) -> Iterator[tuple[list[int], np.ndarray]]:
  """Steps that are read together, and their rows, one step after another."""
  steps = list(steps) or list(range(line.steps[0] + 1, line.steps[1] + 1))
  size = max(1, _CHUNK_ROWS // line.batch_size)
  for start in range(0, len(steps), size):
    part = steps[start : start + size]
    first = line.rows[0] + line.batch_size * (
      np.array(part) - line.steps[0] - 1
    )
    yield part, (first[:, None] + np.arange(line.batch_size)).reshape(-1)
