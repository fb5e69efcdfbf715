# SPDX-License-Identifier: Apache-2.0
"""The mark below which a run does not go on unasked: its newest checkpoint.

A signed checkpoint that is removed leaves an older one, which is signed as
well. So the mark is kept where who writes into the run directory does not reach
it.
"""

import json
import logging
import os
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from zaya_jax.checkpoint import errors, folders, seal
from zaya_jax.runtime import durable, run_files


class Mark(NamedTuple):
  """A checkpoint: its step, and `seal.identity` of it."""

  step: int
  seal: str


class Home(Protocol):
  """Where the mark of one run is kept."""

  def read(self) -> Mark | None:
    """The mark; None: there is none."""

  def write(self, mark: Mark | None) -> None:
    """Replaces the mark."""


class Local:
  """A file of this user on this host, by the id of the run.

  A copy of a run directory has its id, but another past: the mark is that of
  the directory that was used last.
  """

  def __init__(self, run_dir: str):
    self._run_dir = os.path.realpath(run_dir)
    default = pathlib.Path('~/.local/state').expanduser()
    state = pathlib.Path(os.environ.get('XDG_STATE_HOME') or default)
    name = f'{run_files.run_id(run_dir)}.json'
    self._path = state / 'zaya_jax' / name

  def read(self) -> Mark | None:
    """As `Home.read`."""
    if not self._path.exists():
      return None
    found = json.loads(self._path.read_bytes())
    if found['run_dir'] != self._run_dir or not found['high_water']:
      return None
    return Mark(**found['high_water'])

  def write(self, mark: Mark | None) -> None:
    """As `Home.write`."""
    self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept = mark and mark._asdict()
    text = json.dumps({'run_dir': self._run_dir, 'high_water': kept})
    durable.replace(self._path, f'{text}\n'.encode())


def home(run_dir: str) -> Home:
  """Where the mark of a run is kept."""
  return Local(run_dir)


def read(run_dir: str) -> Mark | None:
  """The mark of a run; one that cannot be read is told of."""
  try:
    return home(run_dir).read()
  except errors.FAILURES as error:
    _warn(run_dir, 'known', error)
    return None


def set_to(run_dir: str, body: Mapping[str, Any] | None) -> None:
  """Sets the mark to a checkpoint, by its seal; None: the run has none.

  What goes wrong is a warning: the run is worth more.
  """
  mark = body and Mark(body['step'], seal.identity(body))
  try:
    if mark or home(run_dir).read():
      home(run_dir).write(mark or None)
  except errors.FAILURES as error:
    _warn(run_dir, 'kept', error)


def lower(run_dir: str, *, below: int) -> None:
  """Sets the mark to the newest sealed checkpoint before a step."""
  mark = read(run_dir)
  if mark is None or mark.step < below:
    return
  root = folders.root(run_dir)
  left = [step for step in folders.steps(root) if step < below]
  body = seal.read(os.path.join(root, str(left[-1]))) if left else None
  set_to(run_dir, body)


def _warn(run_dir: str, what: str, error: Exception) -> None:
  logging.warning(
    'Which checkpoint of %s is the newest is not %s: %s.',
    run_dir,
    what,
    errors.cause(error),
  )
