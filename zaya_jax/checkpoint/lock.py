# SPDX-License-Identifier: Apache-2.0
"""One training process per run directory.

The locks are held by the kernel and fall with the process, also under kill -9.
One is on the directory itself, so that who deletes the file .lock lets nobody
in; the other on that file, as some filesystems lock no directories. The file
tells who holds them.
"""

import contextlib
import errno
import fcntl
import logging
import os
import socket
from typing import Self

from zaya_jax.checkpoint import errors

# What a filesystem without locks says, as Lustre that is mounted without them.
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


class RunLock:
  """Holds a run directory from `with` to its end.

  Args:
    run_dir: the directory; it is made if need be.
    flag: that names it, for errors.
    needed: on a filesystem without locks it is an error; else a warning.
    shared: whether others that share it may hold it at the same time.

  Raises:
    CheckpointError: on entry, with exit code 2, if another process holds it or
      it cannot be written. Nothing but the directory has been made by then.
  """

  def __init__(
    self,
    run_dir: str,
    flag: str = '--run_dir',
    *,
    needed: bool = True,
    shared: bool = False,
  ):
    self._kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    self._run_dir, self._flag, self._needed = run_dir, flag, needed
    self._name = f'{flag}={run_dir}'
    self._open = contextlib.ExitStack()

  def __enter__(self) -> Self:
    with contextlib.ExitStack() as stack:
      try:
        os.makedirs(self._run_dir, exist_ok=True)
        folder = os.open(self._run_dir, os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, folder)
        path = os.path.join(self._run_dir, '.lock')
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        stack.callback(os.close, file)
      except OSError as error:
        raise _error(
          f'{self._name} cannot be written: {error.strerror}; choose another.'
        ) from error
      try:
        fcntl.flock(folder, self._kind | fcntl.LOCK_NB)
      except BlockingIOError as error:
        raise self._in_use(file) from error
      except OSError:
        pass  # It locks files at most.
      try:
        fcntl.flock(file, self._kind | fcntl.LOCK_NB)
      except BlockingIOError as error:
        raise self._in_use(file) from error
      except OSError as error:
        self._without(error)
      with contextlib.suppress(OSError):  # Of a full disk: it only tells who.
        os.ftruncate(file, 0)
        os.write(file, f'{socket.gethostname()} pid {os.getpid()}'.encode())
      self._open = stack.pop_all()
    return self

  def __exit__(self, *unused) -> None:
    self._open.close()

  def _without(self, error: OSError) -> None:
    why = error.strerror
    if error.errno not in _NO_LOCKS:
      raise _error(
        f'{self._name} cannot be locked: {why}; choose another.'
      ) from error
    text = f'{self._name} lies on a filesystem without locks (flock: {why})'
    if self._needed:
      raise _error(
        f'{text}; mount it with locks (on Lustre with -o flock), or choose '
        'another.'
      ) from error
    logging.warning(
      '%s: nothing keeps a second process from training in it, or a supervisor '
      'from starting one.',
      text,
    )

  def _in_use(self, file: int) -> errors.CheckpointError:
    holder = os.read(file, 200).decode(errors='replace').strip()
    return _error(
      f'{self._name} is in use by {holder or "a process"}; wait for it, stop '
      f'it, or choose another {self._flag}.'
    )


def _error(text: str) -> errors.CheckpointError:
  return errors.CheckpointError(text, errors.USAGE)
