# SPDX-License-Identifier: Apache-2.0
"""The newest valid checkpoint: whose seal holds, all of its files read.

All processes of a run look together, and each reads its share of the files.
"""

import functools
import itertools
import logging
import os
from collections.abc import Callable
from typing import Any

from zaya_jax.checkpoint import agreement, errors, folders, seal
from zaya_jax.checkpoint.reading import aside
from zaya_jax.runtime import processes

_turns = itertools.count()
_verified: dict[str, Any] = {}  # Path -> `_stats` when it was verified.
# More that a checkpoint must be: raises BrokenError; of its path and its seal.
Also = Callable[[str, dict[str, Any]], None]


def resolve(source: str) -> str:
  """The checkpoint that a path means; all of its files have been verified.

  Args:
    source: one checkpoint, a folder of checkpoints, or a run directory, of
      which the newest sealed checkpoint is taken.

  Returns:
    The absolute path of a checkpoint.

  Raises:
    BrokenError: if it is damaged; nobody is given an older one unasked.
    CheckpointError: if there is none.
  """
  path = os.path.abspath(source)
  if os.path.islink(path):  # The user says so.
    path = os.path.realpath(path)
  if folders.is_checkpoint(path):
    verify(path)
    return path
  for folder in (folders.root(path), path):
    step = newest(folder, strict=True)
    if step is not None:
      return os.path.join(folder, str(step))
  raise errors.nothing(source)


def newest(
  folder: str,
  *,
  repair: bool = False,
  strict: bool = False,
  also: Also = lambda *_: None,
) -> int | None:
  """The step of the newest checkpoint in `folder` whose seal holds.

  Args:
    folder: of checkpoints.
    repair: renames newer ones that do not count to bad/STEP-REASON.
    strict: a damaged one is an error; one without a seal is passed over.
    also: raises for those that do not count; the same in all processes.

  Returns:
    None if there is no checkpoint.

  Raises:
    CheckpointError: if there are some and none is valid; they stay.
  """
  broken = {}
  for name in processes.first_says(lambda: folders.numbered(folder)):
    directory = os.path.join(folder, name)
    try:
      also(directory, verify(directory))
    except seal.BrokenError as error:
      there = functools.partial(os.path.lexists, directory)
      if not processes.first_says(there):
        continue  # A run that goes on has removed it.
      if strict and error.reason != 'unsealed':
        raise
      broken[name] = error
      continue
    break
  else:
    found = [f'{step} ({error.reason})' for step, error in broken.items()]
    if found and processes.first_says(lambda: _has_files(folder, broken)):
      raise errors.CheckpointError(
        f'{folder} holds no valid checkpoint: {", ".join(found)}. Name the key '
        'that they were sealed with (--checkpoint.seal_key_file), seal what '
        'you trust with --mode=checkpoints --checkpoint.action=seal --source='
        'CHECKPOINT, or start anew with another --run_dir; those of another '
        'run (run) are named with --restore.'
      )
    name = None
  for bad, error in broken.items():
    if repair and processes.process() == 0:
      aside.move(os.path.join(folder, bad), error.reason)
    elif not repair:
      logging.warning('%s', error)
  return None if name is None else int(name)


def verify(directory: str) -> dict[str, Any]:
  """What the seal of a checkpoint says, if it holds; reads all files, once.

  Raises:
    BrokenError: the same in all processes.
  """
  count = processes.processes()
  before = _stats(directory)
  if before and _verified.get(directory) == before:
    return seal.verified(directory)
  found, body = None, None
  try:
    body = folders.check(directory, share=(processes.process(), count))
  except seal.BrokenError as error:
    found = [error.reason, error.what]
  name = f'found/{next(_turns)}'
  if found := agreement.reach(name, found, agreement.first):
    raise seal.BrokenError(directory, *found)
  _verified[directory] = before
  seal.remember(directory, body)
  return body


def _has_files(folder: str, names: Any) -> bool:
  """Whether there is more in these directories than nothing."""
  paths = (os.path.join(folder, name) for name in names)
  return any(files for path in paths for _, _, files in os.walk(path))


def _stats(directory: str) -> list[Any]:
  """Size, times and inode of each file: they change when it is written."""
  try:
    return sorted(
      (path, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
      for folder, _, names in os.walk(directory)
      for path in (os.path.join(folder, name) for name in names)
      for stat in [os.lstat(path)]
    )
  except FileNotFoundError:  # It is being removed.
    return []
