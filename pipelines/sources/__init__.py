# SPDX-License-Identifier: Apache-2.0
"""The shards of one split as a random-access sequence of windows."""

import os

import numpy as np

from pipelines import errors, order, pack, store
from pipelines.shards import copies, manifest
from pipelines.sources import cache as cache_lib
from pipelines.sources import readers

_CACHE_BYTES = 2**24  # Enough to read in order.


class WindowSource:
  """Windows of a split, int32 [L + 1], read from bundled records.

  A window stays within its record, or is made of whole records: the target
  after its last one is unknown and `NO_TOKEN`. The same holds for the padding
  of the last record, which fills no window of its own. As a sequence it has the
  windows of one length in order.

  Attributes:
    directory: of the shards.
    extent: the size of the split.
  """

  def __init__(
    self,
    directory: str | os.PathLike[str],
    split: str,
    seq_len: int,
    data: manifest.Manifest,
    cache: cache_lib.Cache | None = None,
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
    self.directory = str(directory)
    self._is_copied = store.is_url(directory)
    self._folder = os.path.join(copies.folder(directory), '')
    self._data, self._name = data, split
    self._split = data.splits[split]
    self._seq_len = seq_len
    self._dtype = np.dtype(data.dtype).newbyteorder('<')
    full_records = self._split.records - 1
    self._last_tokens = self._split.tokens - full_records * data.record_tokens
    self._length = self.extent.windows(seq_len)
    self._ends = np.cumsum([shard.records for shard in self._split.shards])
    self._cache = cache or cache_lib.Cache(_CACHE_BYTES)

  def __len__(self) -> int:
    return self._length

  def __getitem__(self, index: int) -> np.ndarray:
    first = int(index) * self._seq_len
    return self.read(*divmod(first, self._data.record_tokens))

  def read(self, record: int, offset: int) -> np.ndarray:
    """The window that begins at this token of a record, int32 [L + 1].

    Raises:
      DataError: naming a record that cannot be read, or is damaged.
    """
    size = self._data.record_tokens
    if self._seq_len <= size:
      tokens = self._record(record)
      return pack.window(tokens, offset // self._seq_len, self._seq_len)
    result = np.full(self._seq_len + 1, pack.NO_TOKEN, np.int32)
    last = min(record + self._seq_len // size, self._split.records)
    for i in range(record, last):
      part = self._record(i)
      start = (i - record) * size
      result[start : start + len(part)] = part
    return result

  def close(self) -> None:
    """Closes the files."""
    readers.SHARED.forget(self._folder)

  def _record(self, index: int) -> np.ndarray:
    """The tokens of a record, as of a window, without its padding."""
    key = self._folder, self._name, index
    return self._cache.get(key, lambda: self._read(index))

  def _read(self, index: int) -> np.ndarray:
    shard = int(np.searchsorted(self._ends, index, side='right'))
    file = self._split.shards[shard]
    path = self._folder + file.name
    if self._is_copied:
      copies.local(self.directory, file.name, file.sha256)
    position = index - (int(self._ends[shard - 1]) if shard else 0)
    try:
      content = readers.SHARED.read(path, position)
      tokens = self._decode(content)
    except (RuntimeError, IndexError, _WrongError) as error:
      why = str(error)
      if not isinstance(error, _WrongError):
        why = f'cannot be read: {error}'
      raise errors.DataError(
        f'{path}, record {position}, {why}.', errors.UNUSABLE
      ) from error
    last = index == self._split.records - 1
    return tokens[: self._last_tokens] if last else tokens

  def _decode(self, content: bytes) -> np.ndarray:
    size = self._data.record_tokens
    expected = size * self._dtype.itemsize
    masked = self._split.counted_tokens is not None
    if len(content) not in (expected, expected + size * masked):
      raise _WrongError(f'has {len(content)} bytes, not {expected}')
    tokens = np.frombuffer(content, self._dtype, size)
    if tokens.max() >= self._data.vocab_size:
      raise _WrongError(
        f'has token {tokens.max()}, but the vocabulary has '
        f'{self._data.vocab_size}'
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
    return tokens


class _WrongError(ValueError):
  """What is wrong with a record."""
