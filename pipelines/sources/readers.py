# SPDX-License-Identifier: Apache-2.0
"""Open shards: a bounded number of them, shared by all that read.

The library that reads them compares a hash of each record that it reads, and
raises an error when it differs.
"""

import collections
import resource
import threading

from array_record.python import array_record_module

MOST_OPEN = 256

# One read opens a small shard, two open a large one, and one gets a record.
_OPTIONS = (
  'readahead_buffer_size:0,max_parallelism:0,footer_prefetch_bytes:65536'
)
_BUFFER_BYTES = 32_768


class Readers:
  """Records of shards, by path; threads may share it.

  Args:
    most: shards that are kept open; those read last. A few more are open while
      threads read them.
  """

  def __init__(self, most: int):
    self._most = most
    self._open: collections.OrderedDict[
      str, array_record_module.ArrayRecordReader
    ] = collections.OrderedDict()
    self._lock = threading.Lock()

  def read(self, path: str, position: int) -> bytes:
    """One record.

    Raises:
      RuntimeError, IndexError: if it cannot be read, or is not what was
        written.
    """
    try:
      [content] = self._reader(path).read([position])
    except (RuntimeError, IndexError):
      # The file may have been put back, or moved, since it was opened.
      with self._lock:
        self._open.pop(path, None)
      [content] = self._reader(path).read([position])
    return content

  def forget(self, folder: str) -> None:
    """Closes the shards of a folder."""
    with self._lock:
      for path in [p for p in self._open if p.startswith(folder)]:
        del self._open[path]

  def _reader(self, path: str) -> array_record_module.ArrayRecordReader:
    with self._lock:
      if reader := self._open.get(path):
        self._open.move_to_end(path)
        return reader
    # Others read on meanwhile. A reader that leaves the table is closed by the
    # last thread that reads with it.
    reader = array_record_module.ArrayRecordReader(
      path, options=_OPTIONS, file_reader_buffer_size=_BUFFER_BYTES
    )
    with self._lock:
      reader = self._open.setdefault(path, reader)
      self._open.move_to_end(path)
      gone = [
        self._open.popitem(last=False)
        for _ in range(len(self._open) - self._most)
      ]
    del gone  # Closed here, where nobody waits for it.
    return reader


def most_open() -> int:
  """Files to keep open: half of what may be, for there are others."""
  limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
  if limit == resource.RLIM_INFINITY:
    return MOST_OPEN
  return max(1, min(MOST_OPEN, limit // 2))


SHARED = Readers(most_open())
