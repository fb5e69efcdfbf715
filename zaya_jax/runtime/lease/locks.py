# SPDX-License-Identifier: Apache-2.0
"""Locks of the kernel (flock) on a file or on a folder itself."""

import errno
import fcntl
import os
import pathlib
import time

from zaya_jax.config import exit_codes
from zaya_jax.runtime.lease import errors

_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
_NOT_ON_FOLDERS = (*_NO_LOCKS, errno.EBADF, errno.EINVAL)
_PAUSE_S = 0.01


class HeldError(Exception):
  """Another open file holds the lock."""


class Lock:
  """A lock, from `take` to `close` or the end of its process.

  Attributes:
    path: what was locked.
  """

  def __init__(self, path: str, handle: int):
    self.path, self._handle = path, handle

  def is_in_place(self) -> bool:
    """Whether the path still names what was locked."""
    try:
      now = os.stat(self.path)
    except OSError:
      return False
    return os.path.samestat(now, os.fstat(self._handle))

  def close(self) -> None:
    """Gives the lock up."""
    os.close(self._handle)


def take_folder(path: str | os.PathLike[str]) -> Lock:
  """Locks a folder itself, for this machine alone; waits for nobody.

  File systems between machines lock files only. One that has no locks for
  folders gives none here, and no error.

  Raises:
    HeldError: somebody holds the lock.
    OSError: the path cannot be opened.
  """
  handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
  try:
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except OSError as error:
    if error.errno not in _NOT_ON_FOLDERS:
      os.close(handle)
      if isinstance(error, BlockingIOError):
        raise HeldError from error
      raise
  return Lock(os.fspath(path), handle)


def take_file(path: str | os.PathLike[str], flags: int = os.O_CREAT) -> Lock:
  """Locks a file; waits for nobody.

  Args:
    path: of the file.
    flags: for opening it, beside O_RDWR.

  Raises:
    HeldError: somebody holds the lock.
    StoreError: this file system has no locks.
    OSError: the path cannot be opened.
  """
  if flags & os.O_CREAT:
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
  handle = os.open(path, os.O_RDWR | flags, 0o600)
  lock = Lock(os.fspath(path), handle)
  try:
    _flock(path, handle)
    if not lock.is_in_place():  # Deleted meanwhile: others lock another file.
      raise HeldError
  except BaseException:
    os.close(handle)
    raise
  return lock


def wait(path: str | os.PathLike[str], limit_s: float) -> Lock:
  """As `take_file`, of a file that others lock for moments.

  Args:
    path: of the file.
    limit_s: seconds to wait at most.

  Raises:
    StoreError: somebody still held it then.
  """
  end = time.monotonic() + limit_s
  while True:
    try:
      return take_file(path)
    except HeldError as error:
      if time.monotonic() >= end:
        raise errors.StoreError(
          f'{os.fspath(path)} was locked for {limit_s:g} s, by a process that '
          'is stopped or waits for its disk.'
        ) from error
    time.sleep(_PAUSE_S)


def _flock(path: str | os.PathLike[str], handle: int) -> None:
  try:
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError as error:
    raise HeldError from error
  except OSError as error:
    if error.errno not in _NO_LOCKS:
      raise
    raise errors.StoreError(
      f'{os.fspath(path)} cannot be locked ({error.strerror}): mount its file '
      'system with locks (Lustre: -o flock), or keep the lease elsewhere, with '
      '--aegis.lease=etcd://HOST:PORT.',
      exit_codes.USAGE,
    ) from error
