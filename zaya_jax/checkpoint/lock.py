# SPDX-License-Identifier: Apache-2.0
"""One training process per run directory.

The lock is held by the kernel and falls with the process, also under kill -9;
the file .lock only tells who holds it.
"""

import contextlib
import fcntl
import os
import socket
from typing import Self

from zaya_jax.checkpoint import errors


class RunLock:
  """Holds a run directory from `with` to its end.

  Args:
    run_dir: the directory; it is made if need be.
    flag: that names it, for errors.

  Raises:
    CheckpointError: on entry, with exit code 2, if another process holds it or
      it cannot be written. Nothing but the directory has been made by then.
  """

  def __init__(self, run_dir: str, flag: str = '--run_dir'):
    self._run_dir, self._flag = run_dir, flag
    self._file: int | None = None

  def __enter__(self) -> Self:
    path = os.path.join(self._run_dir, '.lock')
    try:
      os.makedirs(self._run_dir, exist_ok=True)
      self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
      raise errors.CheckpointError(
        f'{self._flag}={self._run_dir} cannot be written: {error.strerror}; '
        'choose another.',
        errors.USAGE,
      ) from error
    try:
      fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      holder = os.read(self._file, 200).decode(errors='replace').strip()
      os.close(self._file)
      raise errors.CheckpointError(
        f'{self._flag}={self._run_dir} is in use by {holder or "a process"}; '
        f'wait for it, stop it, or choose another {self._flag}.',
        errors.USAGE,
      ) from error
    with contextlib.suppress(OSError):  # Of a full disk: it only tells who.
      os.ftruncate(self._file, 0)
      os.write(self._file, f'{socket.gethostname()} pid {os.getpid()}'.encode())
    return self

  def __exit__(self, *unused) -> None:
    os.close(self._file)
