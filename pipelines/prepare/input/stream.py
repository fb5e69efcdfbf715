# SPDX-License-Identifier: Apache-2.0
"""Bytes of a file, whatever packed them, and its lines, however long."""

import gzip
import pathlib
import zlib
from collections.abc import Iterator

import zstandard

from pipelines import errors

PACKED = ('.gz', '.zst')

_BLOCK = 2**20  # Bytes that are read at once.
_LONGEST = 2**26  # Bytes of a line; a longer one is kept from filling memory.


def blocks(path: pathlib.Path, where: str) -> Iterator[bytes]:
  """Yields what is in a file, unpacked if its name says that it is packed.

  Args:
    path: of the file, or of a copy of it.
    where: its own path or URL.

  Raises:
    DataError: naming the file, if it is damaged or cut.
  """
  if where.endswith('.zst'):
    return _zst(path, where)
  return _gz(path, where) if where.endswith('.gz') else _plain(path)


def lines(path: pathlib.Path, where: str) -> Iterator[bytes | None]:
  """Yields lines without their ends; None for one that is too long to hold."""
  rest: list[bytes] = []
  held, too_long = 0, False
  for block in blocks(path, where):
    *whole, last = block.split(b'\n')
    for line in whole:
      if rest:
        line = b''.join((*rest, line))
        rest, held = [], 0
      yield None if too_long or len(line) > _LONGEST else line
      too_long = False
    if last and not too_long:
      rest.append(last)
      held += len(last)
      if held > _LONGEST:
        rest, held, too_long = [], 0, True
  if rest or too_long:
    yield None if too_long else b''.join(rest)


def too_long() -> str:
  """What to say of a line that `lines` did not give."""
  return f'is longer than {_LONGEST >> 20} MiB; divide it'


def _plain(path: pathlib.Path) -> Iterator[bytes]:
  with open(path, 'rb') as file:
    while block := file.read(_BLOCK):
      yield block


def _gz(path: pathlib.Path, where: str) -> Iterator[bytes]:
  try:
    with gzip.open(path, 'rb') as file:
      while block := file.read(_BLOCK):
        yield block
  except (gzip.BadGzipFile, EOFError, zlib.error) as error:
    raise errors.DataError(
      f'{where} is not a whole gzip file: {error}.'
    ) from error


def _zst(path: pathlib.Path, where: str) -> Iterator[bytes]:
  """Unlike the library's reader it notices a cut file."""
  frame = None
  try:
    with open(path, 'rb') as file:
      while block := file.read(_BLOCK):
        while block:
          frame = frame or zstandard.ZstdDecompressor().decompressobj()
          yield frame.decompress(block)
          block = frame.unused_data
          frame = None if frame.eof else frame
    if frame:
      raise zstandard.ZstdError('it ends within a frame')
  except zstandard.ZstdError as error:
    raise errors.DataError(
      f'{where} is not a whole zstd file: {error}.'
    ) from error
