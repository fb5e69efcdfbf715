# SPDX-License-Identifier: Apache-2.0
"""`NAME.documents`: which document each token of a shard came from.

The sidecar of a shard has a row for each document that begins in it, in the
order of their tokens. A row is 24 bytes, little endian: `ROW`.
"""

import bisect
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import pathlib

import numpy as np

from pipelines import errors
from pipelines.shards import copies, manifest

# `start`: token in the stream of the split; `file`: line of `files.jsonl`, from
# 0; `line`: of the row in its file, 0 for a whole file; `hash`: of the text.
ROW = np.dtype(
  [('start', '<u8'), ('file', '<u4'), ('line', '<u4'), ('hash', '<u8')]
)
assert ROW.itemsize == manifest.DOCUMENT_BYTES

_CACHED = 64  # Sidecars in memory: 6 MB each, with 1,000 tokens a document.


@dataclasses.dataclass(frozen=True)
class Document:
  """One document of a split.

  Attributes:
    start: its first token, counted from the start of the split.
    file: name of its file, relative to `--data.input`.
    line: of the row in the file; 0: the document is the whole file, or what
      of a single document is on this side.
    hash: BLAKE2b of its text in UTF-8, 64 bits.
  """

  start: int
  file: str
  line: int
  hash: int

  @property
  def place(self) -> str:
    """FILE:LINE, or FILE."""
    return f'{self.file}:{self.line}' if self.line else self.file


class Documents:
  """The documents of one split of a folder of shards.

  Attributes:
    known: whether there are sidecars; older folders have none.
  """

  def __init__(
    self,
    directory: str | os.PathLike[str],
    data: manifest.Manifest,
    split: str,
  ):
    self._directory = directory
    self._files = data.files
    self._shards = data.splits[split].shards
    self.known = data.files is not None
    records = (shard.records for shard in self._shards)
    self._first_tokens = [
      count * data.record_tokens
      for count in itertools.accumulate(records, initial=0)
    ]
    self.rows = functools.lru_cache(_CACHED)(self._read)

  def between(self, start: int, stop: int) -> list[Document]:
    """The documents that have a token in [start, stop), in order.

    Padding between conversations counts as the end of the one before.

    Raises:
      DataError: exit code 3, if a sidecar is damaged.
    """
    if not self.known or stop <= start:
      return []
    first = bisect.bisect_right(self._first_tokens, start) - 1
    found = self._before(first, start)
    for shard in range(first, len(self._shards)):
      if self._first_tokens[shard] >= stop:
        break
      rows = self.rows(shard)
      found += list(rows[(rows['start'] > start) & (rows['start'] < stop)])
    return [
      Document(
        int(row['start']),
        self.names[row['file']],
        int(row['line']),
        int(row['hash']),
      )
      for row in found
    ]

  def _before(self, shard: int, start: int) -> list[np.void]:
    """The row of the document that token `start` belongs to."""
    for index in range(min(shard, len(self._shards) - 1), -1, -1):
      if self._shards[index].documents:
        rows = self.rows(index)
        place = np.searchsorted(rows['start'], start, side='right')
        if place:
          return [rows[place - 1]]
    return []

  def _read(self, shard: int) -> np.ndarray:
    """The rows of a sidecar, of type `ROW`, checked against its hash."""
    found = self._shards[shard]
    path = manifest.documents_path(self._directory, found)
    return np.frombuffer(_content(path, found.documents_sha256), ROW)

  @functools.cached_property
  def names(self) -> list[str]:
    """All input files, by the number that rows have for them."""
    sha256 = self._files.sha256
    path = copies.local(self._directory, manifest.FILES_NAME, sha256)
    content = _content(path, sha256)
    return [json.loads(line) for line in content.splitlines()]


class TextHash:
  """The `hash` of a document that comes in pieces."""

  def __init__(self):
    self._hash = hashlib.blake2b(digest_size=8)

  def add(self, text: bytes) -> None:
    """Adds the next piece, in UTF-8."""
    self._hash.update(text)

  def __int__(self) -> int:
    return int.from_bytes(self._hash.digest(), 'little')


def _content(path: pathlib.Path, sha256: str) -> bytes:
  try:
    content = path.read_bytes()
  except OSError as error:
    raise errors.DataError(
      f'{path} cannot be read: {error.strerror}.', errors.UNUSABLE
    ) from error
  if hashlib.sha256(content).hexdigest() != sha256:
    raise errors.DataError(
      f'{path} differs from its sha256 in {manifest.FILE_NAME}: damaged or '
      'exchanged; copy it from the original, or prepare the data again.',
      errors.UNUSABLE,
    )
  return content
