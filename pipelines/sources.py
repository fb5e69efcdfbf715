# SPDX-License-Identifier: Apache-2.0
"""The shards of one split as a random-access sequence of windows."""

import dataclasses
import functools
import os
import pathlib

import grain
import numpy as np

from pipelines import errors, manifest, order, pack

_CACHE_BYTES = 2**26  # Per source: a small corpus stays in memory whole.


class WindowSource:
  """Windows of a split, int32 [L + 1], read from bundled records.

  A window stays within its record, or is made of whole records: the target
  after its last one is unknown and `NO_TOKEN`. The same holds for the padding
  of the last record, which fills no window of its own. As a sequence it has the
  windows of one length in order.

  Attributes:
    extent: the size of the split.
  """

  def __init__(
    self,
    directory: str | os.PathLike[str],
    split: str,
    seq_len: int,
    data: manifest.Manifest,
  ):
    if split not in data.splits:
      raise errors.DataError(
        f'{directory} has no {split} split; prepare it with '
        f'--data.val_fraction above {data.settings.val_fraction}.'
      )
    tokens = data.splits[split].tokens
    self.extent = order.Extent(tokens, data.record_tokens)
    if not self.extent.fits(seq_len):
      raise errors.DataError(
        f'--data.seq_len={seq_len} does not divide the {data.record_tokens} '
        f'tokens of a record in {directory}; choose a divisor, this number '
        f'doubled any times up to {self.extent.group_tokens}, or prepare '
        'with another --data.record_tokens.'
      )
    self._directory = pathlib.Path(directory)
    self._data = data
    self._split = data.splits[split]
    self._seq_len = seq_len
    self._dtype = np.dtype(data.dtype).newbyteorder('<')
    full_records = self._split.records - 1
    self._last_tokens = self._split.tokens - full_records * data.record_tokens
    self._length = self.extent.windows(seq_len)
    self._records = grain.sources.ArrayRecordDataSource(
      [
        _Instruction(str(self._directory / shard.name), shard.records)
        for shard in self._split.shards
      ]
    )
    record_bytes = data.record_tokens * self._dtype.itemsize
    self._record = functools.lru_cache(max(1, _CACHE_BYTES // record_bytes))(
      self._read
    )

  def __len__(self) -> int:
    return self._length

  def __getitem__(self, index: int) -> np.ndarray:
    first = int(index) * self._seq_len
    return self.read(*divmod(first, self._data.record_tokens), self._seq_len)

  def read(self, record: int, offset: int, seq_len: int) -> np.ndarray:
    """The window that begins at this token of a record, int32 [L + 1]."""
    tokens = self._record(record)
    if seq_len <= self._data.record_tokens:
      return pack.window(tokens, offset // seq_len, seq_len)
    result = np.full(seq_len + 1, pack.NO_TOKEN, np.int32)
    size = self._data.record_tokens
    last = min(record + seq_len // size, self._split.records)
    for i in range(record, last):
      part = self._record(i)
      start = (i - record) * size
      result[start : start + len(part)] = part
    return result

  def close(self) -> None:
    """Closes the files."""
    self._records.__exit__(None, None, None)

  def _read(self, index: int) -> np.ndarray:
    """Returns the tokens of a record, as of a window, without its padding."""
    try:
      content = self._records[index]
    except (RuntimeError, IndexError) as error:
      raise self._damaged(index, f'cannot be read: {error}') from error
    size = self._data.record_tokens
    expected = size * self._dtype.itemsize
    masked = self._split.counted_tokens is not None
    if len(content) not in (expected, expected + size * masked):
      raise self._damaged(index, f'has {len(content)} bytes, not {expected}')
    tokens = np.frombuffer(content, self._dtype, size)
    if tokens.max() >= self._data.vocab_size:
      raise self._damaged(
        index,
        f'has token {tokens.max()}, but the vocabulary has '
        f'{self._data.vocab_size}',
      )
    if len(content) > expected:
      flags = np.frombuffer(content, np.uint8, offset=expected)
      uncounted = flags & pack.COUNTS == 0
      begins = flags & pack.BEGINS != 0
      exception = begins != (tokens == self._data.bos_id)
      tokens = tokens.astype(np.int32)
      tokens |= uncounted * np.int32(pack.UNCOUNTED)
      tokens |= exception * np.int32(pack.EXCEPTION)
      tokens[flags & pack.EMPTY != 0] = pack.NO_TOKEN
    last = index == self._split.records - 1
    return tokens[: self._last_tokens] if last else tokens

  def _damaged(self, index: int, what: str) -> errors.DataError:
    for shard in self._split.shards:
      if index < shard.records:
        break
      index -= shard.records
    return errors.DataError(
      f'{self._directory / shard.name}, record {index}, {what}.',
      errors.UNUSABLE,
    )


@dataclasses.dataclass(frozen=True)
class _Instruction:
  """Tells Grain the size of a shard, so that it opens it only when read."""

  filename: str
  take: int
  skip: int = 0

  @property
  def examples_in_shard(self) -> int:
    return self.take
