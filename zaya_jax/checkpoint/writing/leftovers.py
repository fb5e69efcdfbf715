# SPDX-License-Identifier: Apache-2.0
"""What is removed from a folder of checkpoints: old ones, and halves of saves.

Nothing goes that this program has not made (`folders.is_leftover`).
"""

import contextlib
import os
import shutil

from zaya_jax.checkpoint import errors, folders
from zaya_jax.runtime import durable


def clear(folder: str) -> None:
  """Removes what saves and removals have left that has no name of a step."""
  with contextlib.suppress(FileNotFoundError):
    for name in os.listdir(folder):
      if folders.is_leftover(folder, name):
        # A thread of a failed save may still write; the next start finds it.
        shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


def remove(directory: str) -> None:
  """Deletes a checkpoint; killed half-way, it leaves nothing that counts.

  Raises:
    OSError: if it cannot be renamed; then it stays.
  """
  trash = f'{directory}{folders.TRASH}'
  os.rename(directory, trash)
  durable.sync(os.path.dirname(directory))
  shutil.rmtree(trash, ignore_errors=True)


def obstacle(folder: str, num_bytes: int) -> str:
  """Makes `folder`; returns why so much cannot be written to it, or ''."""
  try:
    os.makedirs(folder, exist_ok=True)
    clear(folder)
    free = shutil.disk_usage(folder).free
  except OSError as error:
    return errors.cause(error)
  if not os.access(folder, os.W_OK | os.X_OK):
    return 'the folder cannot be written'
  if free < num_bytes:
    return f'it needs {num_bytes:,} bytes and {free:,} are free'
  return ''
