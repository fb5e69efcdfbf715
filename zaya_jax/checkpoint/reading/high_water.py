# SPDX-License-Identifier: Apache-2.0
"""The mark below which a run does not go on unasked: its newest checkpoint.

A signed checkpoint that is removed leaves an older one, which is signed as
well. So the mark is kept where who writes into the run directory does not reach
it.
"""

import hashlib
import json
import logging
import os
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from zaya_jax.checkpoint import errors, folders, seal
from zaya_jax.checkpoint.reading import ownership
from zaya_jax.runtime import durable, lease, run_files


class Mark(NamedTuple):
  """A checkpoint: its step, `seal.identity` of it, and the id of its run."""

  step: int
  seal: str
  run: str


class Home(Protocol):
  """Where the mark of one run is kept."""

  def read(self) -> Mark | None:
    """The mark; None: there is none."""

  def write(self, mark: Mark | None) -> None:
    """Replaces the mark."""


class Local:
  """A file of this user on this host, by the path of the run directory.

  A copy of a run has its id, but another past. Who writes into the directory
  can change its id, but not its path.
  """

  def __init__(self, run_dir: str):
    self._run_dir = os.path.realpath(run_dir)
    default = pathlib.Path('~/.local/state').expanduser()
    state = pathlib.Path(os.environ.get('XDG_STATE_HOME') or default)
    name = hashlib.sha256(self._run_dir.encode()).hexdigest()[:32]
    self._path = state / 'zaya_jax' / 'high_water' / f'{name}.json'

  def read(self) -> Mark | None:
    """As `Home.read`."""
    if not self._path.exists():
      return None
    found = json.loads(self._path.read_bytes())
    return Mark(**{name: found[name] for name in Mark._fields})

  def write(self, mark: Mark | None) -> None:
    """As `Home.write`."""
    if mark is None:
      self._path.unlink(missing_ok=True)
      return
    self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = json.dumps({'run_dir': self._run_dir, **mark._asdict()})
    durable.replace(self._path, f'{text}\n'.encode())


class Stored:
  """The lease store of the run, which only its owner changes."""

  def __init__(self, store: lease.Store, token: lease.Token):
    self._store, self._token = store, token

  def read(self) -> Mark | None:
    """As `Home.read`."""
    found = self._store.read('high_water')
    return Mark(**found) if found else None

  def write(self, mark: Mark | None) -> None:
    """As `Home.write`."""
    value = mark._asdict() if mark else {}
    self._store.write('high_water', value, self._token)


def home(run_dir: str) -> Home:
  """Where the mark of a run is kept."""
  owned = ownership.current()
  return Stored(*owned) if owned else Local(run_dir)


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
  try:
    mark = None
    if body:
      run = body.get('run') or run_files.run_id(run_dir)
      mark = Mark(body['step'], seal.identity(body), run)
    home(run_dir).write(mark)
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
