# SPDX-License-Identifier: Apache-2.0
"""A new folder that is written under the name FOLDER.partial.

It holds the file .aside from its first moment to its last, so that what a
killed process has left is told from what a person has put there.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator

from zaya_jax.checkpoint import errors, lock

_MARK, _LOCK = '.aside', '.lock'


@contextlib.contextmanager
def folder(output: str, flag: str = '--output') -> Iterator[str]:
  """Gives the empty folder OUTPUT.partial, and renames it to OUTPUT at the end.

  What a killed process left there is replaced. An error, and Ctrl-C, leave
  nothing.

  Args:
    output: a new folder.
    flag: that names it, for errors.

  Raises:
    CheckpointError: with exit code 2, if something else has the name
      OUTPUT.partial, another process writes it, or it cannot be made.
  """
  partial = f'{output}.partial'
  if os.path.lexists(partial) and not _is_ours(partial):
    raise errors.CheckpointError(
      f'{partial} is in the way, where {flag}={output} is written until it is '
      'complete; move it away.',
      errors.USAGE,
    )
  with lock.RunLock(partial, flag):
    try:
      with open(os.path.join(partial, _MARK), 'w'):
        pass
      _clear(partial)
      yield partial
      os.rename(partial, output)
    except BaseException:
      with contextlib.suppress(OSError):
        _clear(partial)  # The mark goes last: the rest is ours while it lies.
        shutil.rmtree(partial)
      raise
    for name in (_LOCK, _MARK):
      with contextlib.suppress(OSError):
        os.remove(os.path.join(output, name))


def _is_ours(partial: str) -> bool:
  if os.path.islink(partial) or not os.path.isdir(partial):
    return False
  names = os.listdir(partial)
  return _MARK in names or names == [_LOCK]


def _clear(partial: str) -> None:
  for left in set(os.scandir(partial)):
    if left.is_dir(follow_symlinks=False):
      shutil.rmtree(left)
    elif left.name not in (_LOCK, _MARK):
      os.remove(left)
