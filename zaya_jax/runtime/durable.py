# SPDX-License-Identifier: Apache-2.0
"""Files that are there whole or not at all, also after a loss of power."""

import contextlib
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
