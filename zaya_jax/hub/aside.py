# SPDX-License-Identifier: Apache-2.0
"""New folders that are whole or not there: written aside, then renamed."""

import contextlib
import os
import shutil
from collections.abc import Iterator

from zaya_jax import config as config_lib
from zaya_jax.checkpoint.writing import aside
from zaya_jax.hub.tensors import errors


def check(output: str, source: str = '') -> str:
  """The path of a new folder, without a slash at its end.

  Args:
    output: the path.
    source: the folder that is read to write it, if there is one.

  Raises:
    UsageError: if it exists and is not an empty folder, or lies in `source`.
  """
  inner, outer = map(os.path.realpath, (output, source))
  if source and os.path.commonpath((inner, outer)) == outer:
    raise config_lib.UsageError(
      f'--output={output} lies inside of --source={source}; name a folder '
      'elsewhere.'
    )
  if os.path.lexists(output) and not (
    os.path.isdir(output) and not os.listdir(output)
  ):
    raise config_lib.UsageError(
      f'--output={output} exists already; name a new folder.'
    )
  return output.rstrip(os.sep)


@contextlib.contextmanager
def folder(output: str, needed: int) -> Iterator[str]:
  """Gives the folder OUTPUT.partial, and renames it to OUTPUT at the end.

  What a killed process left there is replaced. An error, and Ctrl-C, leave
  nothing.

  Args:
    output: of `check`.
    needed: bytes that must be free.

  Raises:
    CheckpointError: if something else has the name OUTPUT.partial, another
      process writes it, or it cannot be made.
    FolderError: if the disk is full, or cannot be written.
  """
  try:
    with aside.folder(output) as partial:
      free = shutil.disk_usage(partial).free
      if free < needed:
        raise errors.FolderError(
          f'--output={output} needs {needed:,} bytes and {free:,} are free; '
          'make room there, or choose another folder.'
        )
      yield partial
  except OSError as error:
    if hasattr(error, 'exit_code'):
      raise
    raise errors.FolderError(
      f'--output={output} cannot be written: {_cause(error)}; make room '
      'there, or choose another folder.'
    ) from error


def _cause(error: OSError) -> str:
  """What went wrong, and with which file."""
  if isinstance(error, shutil.Error):  # Holds (from, to, text) of each file.
    return error.args[0][0][2]
  path = error.filename2 or error.filename
  text = error.strerror or error
  return f'{text}: {path}' if path else str(text)
