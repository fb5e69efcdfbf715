# SPDX-License-Identifier: Apache-2.0
"""Open shards: a bounded number of files, shared by all that read.

The library that reads them compares a hash of each record that it reads, and
raises an error when it differs.
"""

import collections
import pathlib
import resource
import threading
import weakref
from collections.abc import Callable
from typing import TextIO

from array_record.python import array_record_module

MOST_OPEN = 256

# One read opens a small shard, two open a large one, and one gets a record.
_OPTIONS = (
  'readahead_buffer_size:0,max_parallelism:0,footer_prefetch_bytes:65536'
)
_BUFFER_BYTES = 32_768

# Makes a copy, which stays until the stamp that comes with it is closed; calls
# what it is given where there is no room: `pipelines.shards.copies.take`.
Take = Callable[[Callable[[], None]], tuple[pathlib.Path, TextIO]]


class _Shard:
  """A shard that is open. It is closed by the last thread that reads it."""

  def __init__(self, path: str, stamp: TextIO | None):
    self.stamp = stamp
    if stamp:
      weakref.finalize(self, stamp.close)
    self.files = 2 if stamp else 1
    self.reader = array_record_module.ArrayRecordReader(
      path, options=_OPTIONS, file_reader_buffer_size=_BUFFER_BYTES
    )


class Readers:
  """Records of shards, by path; threads may share it.

  Args:
    most: files that are kept open, those of the shards read last. A few more
      are open while threads read them.
  """

  def __init__(self, most: int):
    self._most = most
    self._open: collections.OrderedDict[str, _Shard] = collections.OrderedDict()
    self._lock = threading.Lock()

  def read(self, path: str, position: int, take: Take | None = None) -> bytes:
    """One record.

    Args:
      path: of the shard.
      position: of the record in it.
      take: of a shard that is a copy, makes and keeps it.

    Raises:
      RuntimeError, IndexError: if it cannot be read, or is not what was
        written.
    """
    try:
      return self._read(path, position, take)
    except (RuntimeError, IndexError):
      # The file may have been put back, or moved, since it was opened.
      with self._lock:
        self._open.pop(path, None)
      return self._read(path, position, take)

  def forget(self, folder: str) -> None:
    """Closes the shards of a folder, but for those that are being read."""
    self._close(lambda path, shard: path.startswith(folder))

  def let_go(self) -> None:
    """Closes the shards that are copies, but for those that are being read."""
    self._close(lambda path, shard: shard.stamp is not None)

  def _close(self, chosen: Callable[[str, _Shard], bool]) -> None:
    with self._lock:
      gone = [path for path, shard in self._open.items() if chosen(path, shard)]
      shards = [self._open.pop(path) for path in gone]
    del shards  # Closed here, where nobody waits for it.

  def _read(self, path: str, position: int, take: Take | None) -> bytes:
    shard = self._shard(path, take)  # It stays as long as it has a name.
    [content] = shard.reader.read([position])
    return content

  def _shard(self, path: str, take: Take | None) -> _Shard:
    with self._lock:
      if found := self._open.get(path):
        self._open.move_to_end(path)
        return found
    # Others read on meanwhile.
    _, stamp = take(self.let_go) if take else (path, None)
    shard = _Shard(path, stamp)
    with self._lock:
      shard = self._open.setdefault(path, shard)
      self._open.move_to_end(path)
      gone = []
      files = sum(other.files for other in self._open.values())
      while files > self._most and len(self._open) > 1:
        _, least = self._open.popitem(last=False)
        files -= least.files
        gone.append(least)
    del gone  # Closed here, where nobody waits for it.
    return shard


def most_open() -> int:
  """Files to keep open: half of what may be, for there are others."""
  limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
  if limit == resource.RLIM_INFINITY:
    return MOST_OPEN
  return max(1, min(MOST_OPEN, limit // 2))


SHARED = Readers(most_open())
