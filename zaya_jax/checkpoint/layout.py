# SPDX-License-Identifier: Apache-2.0
"""Where checkpoints lie in a run directory, and which of them are complete.

A checkpoint is RUN_DIR/checkpoints/STEP. Orbax writes it under a temporary name
and renames it when all is on disk, but takes any directory named by a number
for a checkpoint. Here one counts only if it also says when it was committed.
"""

import json
import logging
import os
import shutil
import time

from zaya_jax.checkpoint import errors

STATE = 'state'  # The arrays.
META = 'meta'  # What the checkpoint says about itself, and the data position.

_RECORD = '_CHECKPOINT_METADATA'  # Written by Orbax, at the start and the end.


def root(run_dir: str) -> str:
  """The absolute path of the folder that holds the checkpoints of a run."""
  return os.path.join(os.path.abspath(run_dir), 'checkpoints')


def steps(folder: str) -> list[int]:
  """The steps of the complete checkpoints in `folder`, ascending."""
  numbered, _ = _sort(folder)
  return sorted(int(name) for name in numbered)


def incomplete(folder: str) -> list[str]:
  """Names in `folder` that look like a checkpoint and are not complete."""
  _, broken = _sort(folder)
  return sorted(broken)


def commit_time(directory: str) -> float | None:
  """Seconds since the epoch when a checkpoint was committed; None: never."""
  try:
    with open(os.path.join(directory, _RECORD), encoding='utf-8') as f:
      nanoseconds = json.load(f)['commit_timestamp_nsecs']
  except (OSError, ValueError, KeyError, TypeError):
    return None
  return nanoseconds / 1e9 if isinstance(nanoseconds, int) else None


def set_aside(folder: str) -> None:
  """Renames incomplete checkpoints to bad/STEP-TIME, so that none counts."""
  for name in incomplete(folder):
    if name.isdigit():
      target = os.path.join(folder, 'bad', f'{name}-{time.time_ns()}')
      os.makedirs(os.path.dirname(target), exist_ok=True)
      os.rename(os.path.join(folder, name), target)
      logging.warning(
        'Checkpoint %s is incomplete; it was moved to %s.',
        os.path.join(folder, name),
        target,
      )


def remove_partial(folder: str) -> None:
  """Removes what saves left that never got their final name."""
  for name in incomplete(folder):
    if not name.isdigit():
      # A thread of a failed save may still write; the next start finds it.
      shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


def resolve(source: str) -> str:
  """The checkpoint that a path means.

  Args:
    source: one checkpoint, a folder of checkpoints, or a run directory, of
      which the newest complete checkpoint is taken.

  Returns:
    The absolute path of a complete checkpoint.

  Raises:
    CheckpointError: if there is none.
  """
  path = os.path.abspath(source)
  if _is_complete(path):
    return path
  for folder in (root(path), path):
    if found := steps(folder):
      return os.path.join(folder, str(found[-1]))
  raise errors.CheckpointError(
    f'{source} holds no complete checkpoint; name a run directory with '
    'checkpoints/STEP in it, or one such checkpoint.',
    errors.USAGE,
  )


def _sort(folder: str) -> tuple[list[str], list[str]]:
  """Splits the names in `folder` into (complete, incomplete)."""
  if not os.path.isdir(folder):
    return [], []
  complete, broken = [], []
  for name in os.listdir(folder):
    if name.isdigit():
      whole = _is_complete(os.path.join(folder, name))
      (complete if whole else broken).append(name)
    elif name.partition('.')[0].isdigit():  # STEP.orbax-checkpoint-tmp
      broken.append(name)
  return complete, broken


def _is_complete(directory: str) -> bool:
  parts = (os.path.join(directory, item) for item in (STATE, META))
  return commit_time(directory) is not None and all(map(os.path.isdir, parts))
