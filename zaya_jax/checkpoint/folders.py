# SPDX-License-Identifier: Apache-2.0
"""Where checkpoints lie in a run directory, and which of them count.

A checkpoint is RUN_DIR/checkpoints/STEP. It gets that name when its seal is on
disk, but a name proves nothing: one counts only if its seal holds. Others are
never deleted but renamed to bad/STEP-REASON, and only by training.
"""

import contextlib
import logging
import math
import os
import re
import sys
import time
from collections.abc import Mapping
from typing import Any

from zaya_jax.checkpoint import errors, seal
from zaya_jax.runtime import supervised

STATE = 'state'  # The arrays.
META = 'meta'  # What the checkpoint says about itself, and the data position.
ASIDE = '.unsealed'  # Of the name of one that is being written.
TRASH = '.trash'  # Of one that is being removed.
_TEMPORARY = r'\.orbax-checkpoint-tmp(-\d+)?'  # Orbax's, while it writes.
# All names that saves and removals make beside those of steps, and in them.
_LEFT = re.compile(
  rf'(0|[1-9][0-9]*)(\{ASIDE}|\{TRASH}|(\{ASIDE})?{_TEMPORARY})', re.ASCII
)
_PART = re.compile(
  rf'({STATE}|{META}|metrics)({_TEMPORARY})?|_CHECKPOINT_METADATA|'
  rf'commit_success\.txt|{re.escape(seal.NAME)}(\.partial)?',
  re.ASCII,
)


def root(run_dir: str) -> str:
  """The absolute path of the folder that holds the checkpoints of a run."""
  return os.path.join(os.path.abspath(run_dir), 'checkpoints')


def run_of(directory: str) -> str:
  """The run directory of a checkpoint."""
  return os.path.dirname(os.path.dirname(directory))


def step_of(directory: str) -> int:
  """The step that the name of a checkpoint says, also in bad/STEP-REASON."""
  return int(os.path.basename(directory).partition('-')[0])


def checkpoints(source: str) -> list[str]:
  """The checkpoints that a path means, good or bad; tells of leftovers.

  Args:
    source: one checkpoint, a folder of them, or a run directory.

  Raises:
    CheckpointError: if there is none.
  """
  path = os.path.abspath(source)
  if is_checkpoint(path):
    return [path]
  for folder in (root(path), path):
    if names := numbered(folder):
      for name in incomplete(folder):
        if name not in names:
          ours = is_leftover(folder, name)
          why = 'left by a killed save' if ours else 'no name of a checkpoint'
          path = os.path.join(folder, name)
          print(f'{path}: {why}, ignored', file=sys.stderr)
      return [os.path.join(folder, name) for name in reversed(names)]
  raise errors.nothing(source)


def steps(folder: str) -> list[int]:
  """The steps of the sealed checkpoints in `folder`, ascending.

  Their files have the right names and sizes; `finder` reads them.
  """
  found = []
  for name in numbered(folder):
    with contextlib.suppress(seal.BrokenError):
      check(os.path.join(folder, name), contents=False)
      found.append(int(name))
  return sorted(found)


def facts(
  step: int,
  meta: Mapping[str, Any],
  prints: Mapping[str, str],
  origin: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
  """What the seal of a checkpoint says beside its files.

  Args:
    step: optimizer steps done.
    meta: of the checkpoint; its finite 'metrics' decide about the best.
    prints: fingerprints of the arrays by path.
    origin: of `origin_of`.
  """
  return {
    **(origin or {}),
    'step': step,
    'time': time.time(),
    'metrics': _finite(meta.get('metrics', {})),
    'fingerprint': dict(prints),
  }


def origin_of(lineage: Mapping[str, str]) -> dict[str, Any]:
  """Whose a checkpoint is that is sealed now.

  Args:
    lineage: of `run_files.lineage`.

  Returns:
    'run' and, if there is one, 'parent'; of a supervised process 'generation',
    and 'owner' and 'epoch' of its lease.
  """
  told = vars(supervised.place()) if supervised.place() else {}
  names = [x for x in ('generation', 'owner', 'epoch') if told.get(x)]
  return {**lineage, **{name: told[name] for name in names}}


def amend(directory: str, metrics: Mapping[str, float]) -> None:
  """Adds what was measured of a step later to its seal, if it was saved.

  What goes wrong is a warning: the seal stays as it was.
  """
  if not os.path.exists(directory):
    return
  try:
    supervised.check_fence()
    body = seal.read(directory)
    files = body.pop('files')
    body['metrics'] = {**body.get('metrics', {}), **_finite(metrics)}
    seal.write(directory, body, known=files)
  except (OSError, RuntimeError) as error:
    why = errors.cause(error)
    logging.warning('%s was sealed without %s: %s', directory, metrics, why)


def check(directory: str, **options) -> dict[str, Any]:
  """As `seal.verify`, and that a checkpoint has the name of its step."""
  if os.path.islink(directory):
    raise seal.BrokenError(directory, 'kind', 'the folder is a link')
  body, name = seal.verify(directory, **options), os.path.basename(directory)
  if name.isdigit() and body.get('step') != int(name):
    raise seal.BrokenError(
      directory, 'name', f'it was sealed as step {body.get("step")}'
    )
  return body


def incomplete(folder: str) -> list[str]:
  """Names in `folder` that look like a checkpoint and do not count."""
  if not os.path.isdir(folder):
    return []
  known = {str(step) for step in steps(folder)}
  return sorted(
    name
    for name in os.listdir(folder)
    if name.partition('.')[0].isdigit() and name not in known
  )


def is_leftover(folder: str, name: str) -> bool:
  """Whether a name in `folder` is what a save or a removal has left.

  By the name, and by what is in it: a name alone may be anybody's.
  """
  path = os.path.join(folder, name)
  if not _LEFT.fullmatch(name) or os.path.islink(path):
    return False
  with contextlib.suppress(OSError):
    return all(_PART.fullmatch(part) for part in os.listdir(path))
  return False


def strangers(folder: str) -> list[str]:
  """Names in `folder` that begin as a checkpoint's and are not of this program.

  Nobody reads or removes them.
  """
  names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
  return [
    name
    for name in names
    if name.partition('.')[0].isdigit()
    and not _is_step(name)
    and not is_leftover(folder, name)
  ]


def is_checkpoint(path: str) -> bool:
  """Whether a path is one checkpoint, valid or not; else a folder of them."""
  return any(os.path.lexists(os.path.join(path, x)) for x in (STATE, seal.NAME))


def _finite(metrics):
  return {k: v for k, v in metrics.items() if math.isfinite(v)}


def numbered(folder: str) -> list[str]:
  """Names in `folder` that are steps, newest first."""
  names = os.listdir(folder) if os.path.isdir(folder) else []
  return sorted(filter(_is_step, names), key=int, reverse=True)


def _is_step(name: str) -> bool:
  return name.isdecimal() and name == str(int(name))
