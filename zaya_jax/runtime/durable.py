# SPDX-License-Identifier: Apache-2.0
"""Files, and lines of files, that are there whole or not at all.

Files are so after a loss of power, too; lines while the machine runs.
"""

import contextlib
import io
import os
import pathlib


def replace(path: str | os.PathLike[str], content: bytes) -> None:
  """Writes a file by way of PATH.partial; all is on disk when this returns.

  Raises:
    OSError: if it cannot be written; the old file stays, and nothing else.
  """
  path = pathlib.Path(path)
  partial = path.with_name(f'{path.name}.partial')
  try:
    with partial.open('wb') as file:
      file.write(content)
      file.flush()
      os.fsync(file.fileno())
    os.replace(partial, path)
  except OSError:
    with contextlib.suppress(OSError):  # Of a full disk: others want its room.
      partial.unlink()
    raise
  sync(path.parent)


def sync(folder: str | os.PathLike[str]) -> None:
  """Forces the names in a folder to disk."""
  handle = os.open(folder, os.O_RDONLY)
  try:
    os.fsync(handle)
  finally:
    os.close(handle)


class Lines:
  """A file to which lines are appended; it is opened with the first one."""

  def __init__(self, path: str | os.PathLike[str]):
    self._path = path
    self._file: io.FileIO | None = None

  def write(self, line: bytes) -> None:
    """Hands a line, its end included, to the operating system.

    Raises:
      OSError: if it cannot be written; the file is as before.
    """
    # A buffer would try again what has failed.
    self._file = file = self._file or open(self._path, 'ab', buffering=0)
    size, rest = os.fstat(file.fileno()).st_size, memoryview(line)
    try:
      while rest:  # The last of a disk takes a part.
        rest = rest[file.write(rest) :]
    except OSError:
      with contextlib.suppress(OSError):
        file.truncate(size)
      raise

  def sync(self) -> None:
    """Forces what was written to disk."""
    if self._file:
      os.fsync(self._file.fileno())

  def close(self) -> None:
    """Closes the file."""
    if self._file:
      self._file.close()
