# SPDX-License-Identifier: Apache-2.0
"""Files of lowered steps: whole or not at all, and not too many.

A line of JSON, then the bytes of `jax.export`. No file is a pickle, but what it
holds is executed: it is trusted as JAX's own cache beside it is.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import tempfile
from typing import Any

_FOLDER = 'lowered'
_OURS = '~/.cache/zaya_jax'  # As in zaya_jax/main.py.
_MOST_BYTES = 4 << 30  # Of compiled and lowered programs.
_MOST_HEADER = 1 << 20


class DamagedError(ValueError):
  """A file is not as it was written."""


def path(folder: str, digest: str) -> pathlib.Path:
  """Where a step is kept, in the folder of JAX's own cache."""
  return pathlib.Path(folder, _FOLDER, f'{digest}.step')


def read(file: pathlib.Path) -> tuple[dict[str, Any], bytes] | None:
  """What was written there, or None if nothing was.

  Raises:
    DamagedError: if it is not whole.
    OSError: if it cannot be read.
  """
  try:
    with file.open('rb') as opened:
      header, program = opened.readline(_MOST_HEADER), opened.read()
  except FileNotFoundError:
    return None
  with contextlib.suppress(OSError):  # Used: others are removed before it.
    os.utime(file)
  try:
    about = json.loads(header)
    good = about['sha256'] == _hash(about['about'], program)
  except (ValueError, KeyError, TypeError) as error:
    raise DamagedError(f'{file} is damaged') from error
  if not good:
    raise DamagedError(f'{file} is damaged')
  return about['about'], program


def write(file: pathlib.Path, about: dict[str, Any], program: bytes) -> None:
  """Writes a file in the place of any other; who reads sees the old or this.

  Args:
    file: of `path`.
    about: what JSON can hold.
    program: bytes.

  Raises:
    OSError: if it cannot be written.
  """
  header = json.dumps({'sha256': _hash(about, program), 'about': about})
  file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
  number, partial = tempfile.mkstemp(dir=file.parent, suffix='.partial')
  try:
    with open(number, 'wb') as opened:
      opened.write(header.encode() + b'\n' + program)
    os.replace(partial, file)
  except OSError:
    with contextlib.suppress(OSError):
      os.unlink(partial)
    raise


def prune(folder: str, most_bytes: int = _MOST_BYTES) -> None:
  """Removes what was used longest ago, until the rest is small enough.

  Args:
    folder: of JAX's own cache. Its programs count and go, too, where it is the
      one that the command line chooses; elsewhere others may use it.
    most_bytes: of all files.
  """
  found = []
  ours = os.path.dirname(os.path.abspath(folder)) == os.path.expanduser(_OURS)
  top = folder if ours else os.path.join(folder, _FOLDER)
  for place, _, names in os.walk(top):
    for name in names:
      with contextlib.suppress(OSError):  # Others prune, too.
        stat = os.stat(entry := os.path.join(place, name))
        used = max(stat.st_atime, stat.st_mtime)
        found.append((used, stat.st_size, entry))
  total = 0
  for _, size, entry in sorted(found, reverse=True):
    total += size
    if total > most_bytes:
      with contextlib.suppress(OSError):
        os.unlink(entry)


def _hash(about, program) -> str:
  found = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
  found.update(program)
  return found.hexdigest()
