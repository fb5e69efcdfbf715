# SPDX-License-Identifier: Apache-2.0
"""Sealed copies of parts of a state, in folders of one host.

A copy is FOLDER/RUN/PROCESS/STEP.OWNER: held by a process, the part of another
or its own.
"""

import collections
import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

from zaya_jax.checkpoint import errors, seal

FILE = 'part'
_KEPT = 2  # States: one process may be a state behind the others.
_NAME = re.compile(r'(\d+)\.\d+(\.partial)?', re.ASCII)
_FILES = {FILE, seal.NAME, f'{seal.NAME}.partial'}
_PARTIAL = -1  # In place of the step of what is half written.


def write(
  holder: str,
  facts: Mapping[str, Any],
  parts: Mapping[int, Callable[[BinaryIO], None]],
) -> None:
  """Writes parts, where old ones make room for them.

  Args:
    holder: the folder of this process.
    facts: for the seals; with 'step'.
    parts: what writes each part, by the process whose part it is.

  Raises:
    OSError: if they cannot be written; none of them is left.
    CheckpointError: the same.
  """
  os.makedirs(holder, mode=0o700, exist_ok=True)
  step, known = facts['step'], _by_step(holder)
  # Steps only grow: what is ahead belongs to a past that is undone.
  older = sorted((s for s in known if 0 <= s < step), reverse=True)
  for old in set(known) - set(older[: _KEPT - 1]):
    for name in known[old]:
      shutil.rmtree(os.path.join(holder, name))
  try:
    for owner, write_part in parts.items():
      path = os.path.join(holder, f'{step}.{owner}')
      os.mkdir(f'{path}.partial')
      with open(os.path.join(f'{path}.partial', FILE), 'wb') as file:
        write_part(file)
      seal.write(f'{path}.partial', {**facts, 'owner': owner})
      os.rename(f'{path}.partial', path)
  except (OSError, errors.CheckpointError):
    for name in _by_step(holder).get(_PARTIAL, []):  # It may fill the memory.
      shutil.rmtree(os.path.join(holder, name), ignore_errors=True)
    raise


def sealed(folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields path and facts of each copy under its own name, of all processes.

  Nothing is read but seals.
  """
  for holder in list(os.scandir(folder)):
    for names in _by_step(holder.path).values():
      for name in names:
        path = os.path.join(holder.path, name)
        with contextlib.suppress(OSError, KeyError, errors.CheckpointError):
          facts = seal.read(path)
          if name == f'{facts["step"]}.{facts["owner"]}':
            yield path, facts


def clear(holder: str) -> None:
  """Removes all copies of a process, and its folder if nothing is left."""
  for names in _by_step(holder).values():
    for name in names:
      shutil.rmtree(os.path.join(holder, name), ignore_errors=True)
  with contextlib.suppress(OSError):
    os.rmdir(holder)


def strangers(holder: str) -> list[str]:
  """Names in the folder of a process that are no copies; they stay."""
  ours = {name for names in _by_step(holder).values() for name in names}
  there = os.listdir(holder) if os.path.isdir(holder) else []
  return sorted({*there} - ours)


def private(folder: str, run: str) -> str:
  """A folder of the run that nobody else may write to.

  Raises:
    CheckpointError: with exit code 2 if it cannot be had.
  """
  path = os.path.join(os.path.abspath(folder), run)
  try:
    os.makedirs(path, mode=0o700, exist_ok=True)
    owner = os.lstat(path).st_uid
  except OSError as error:
    raise errors.CheckpointError(
      f'--checkpoint.fast={folder} cannot be written: {error.strerror}; choose '
      'another.',
      errors.USAGE,
    ) from error
  if owner != os.geteuid():
    raise errors.CheckpointError(
      f'--checkpoint.fast={folder}: {path} belongs to another user; choose '
      'another.',
      errors.USAGE,
    )
  return path


def _by_step(holder: str) -> dict[int, list[str]]:
  """The copies in a folder, by step: a name alone may be anybody's."""
  by_step = collections.defaultdict(list)
  with contextlib.suppress(OSError):
    for entry in os.scandir(holder):
      found = _NAME.fullmatch(entry.name)
      if found and entry.is_dir(follow_symlinks=False):
        if {*os.listdir(entry)} <= _FILES:
          step = _PARTIAL if found[2] else int(found[1])
          by_step[step].append(entry.name)
  return dict(by_step)
