# SPDX-License-Identifier: Apache-2.0
"""New lines of a log, in bounded memory whatever is written there."""

import contextlib
import os

_LINE = 4096  # Bytes of a line that are kept.
_POLL = 2**20  # Bytes that one call reads.
_BACKLOG = 2**25  # Bytes after which it goes on near the end.


class Tail:
  """Reads what is appended to a file from now on, through rotations.

  Args:
    path: of a text, which need not exist yet, of a pipe, or /dev/kmsg.
  """

  def __init__(self, path: str):
    self._path, self._rest = path, b''
    self._file = self._open()  # -1: there is none.
    if self._file >= 0:
      with contextlib.suppress(OSError):  # A pipe has no past to skip.
        os.lseek(self._file, 0, os.SEEK_END)
    self.dropped = 0  # Bytes left out because they came too fast.
    self.failure = ''  # Why it cannot be read now; '' if it can.

  def read(self) -> list[str]:
    """The lines since the last call; one without its end waits."""
    try:
      if self._file < 0:
        self._file = self._open()
      lines = self._lines() if self._file >= 0 else []
    except OSError as error:
      self.failure = f'{self._path}: {error.strerror}'
      self.close()
      return []
    self.failure = ''
    return lines

  def _lines(self) -> list[str]:
    data = self._read()
    if not data and self._was_rotated():
      self.close()
      rest, self._rest = self._rest, b''
      self._file = self._open()
      return [_text(rest)] if rest else []
    *lines, rest = (self._rest + data).split(b'\n')
    self._rest = rest[:_LINE]
    return [_text(line) for line in lines if line]

  def close(self) -> None:
    """Closes the file."""
    file, self._file = self._file, -1
    if file >= 0:
      os.close(file)

  def _open(self) -> int:
    with contextlib.suppress(FileNotFoundError):
      return os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    return -1

  def _read(self) -> bytes:
    """Reads about `_POLL` bytes; /dev/kmsg gives one record at a time."""
    behind = os.fstat(self._file).st_size - self._position()
    if behind > _BACKLOG:
      self.dropped += behind - _POLL
      os.lseek(self._file, -_POLL, os.SEEK_END)
      self._rest = b''
    parts, size = [], 0
    while size < _POLL:
      try:
        part = os.read(self._file, 2**16)
      except BlockingIOError:
        break
      except BrokenPipeError:  # /dev/kmsg: the kernel overwrote some records.
        continue
      if not part:
        break
      parts.append(part)
      size += len(part)
    return b''.join(parts)

  def _was_rotated(self) -> bool:
    """Whether the path leads to another file now, or the file was emptied."""
    mine = os.fstat(self._file)
    with contextlib.suppress(FileNotFoundError):
      if not os.path.samestat(mine, os.stat(self._path)):
        return True
    return mine.st_size < self._position()

  def _position(self) -> int:
    with contextlib.suppress(OSError):  # Devices have none.
      return os.lseek(self._file, 0, os.SEEK_CUR)
    return 0


def _text(line: bytes) -> str:
  return line[:_LINE].decode(errors='replace')
