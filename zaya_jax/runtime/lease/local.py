# SPDX-License-Identifier: Apache-2.0
"""A lease that the kernel holds: file locks of one process.

The owner has three locks, which fall with its process: on a file in the state
directory of this user, by the id of the run; on the run directory itself, which
deleting a file does not undo; and on RUN_DIR/run_id, for other machines.
Facts are kept twice as well: in the state directory, where who writes into a
run directory does not reach them, and in the run directory, where the ranks on
other hosts see them. The newer one counts.
"""

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from zaya_jax.config import exit_codes
from zaya_jax.runtime.lease import errors, facts, locks, store, tokens

# The longest wait for another process that reads and writes a few files.
_MUTEX_S: Final = 5.0


class Local(store.Store):
  """As `store.Store`; the lease lives as long as its process.

  Args:
    run_id: of the run.
    run_dir: of the run.
  """

  expires = False

  def __init__(self, run_id: str, run_dir: str | os.PathLike[str]):
    super().__init__('local', run_id, run_dir)
    self._own = facts.Folder(_state_home() / 'runs' / run_id)
    self._site = facts.Folder(_state_home() / 'site')
    self._locks: tuple[locks.Lock, ...] = ()

  def holder(self) -> tokens.Token | None:
    """As `Store.holder`."""
    with self._alone():
      return self._holder()

  def read_site(self, key: str) -> dict[str, Any] | None:
    """As `Store.read_site`; shared by all runs of this user on this host."""
    _, value = self._newest(key, self._site)
    return value

  def update_site(self, key: str, function: store.Update) -> dict[str, Any]:
    """As `Store.update_site`."""
    with self._alone(self._site.path):
      version, value = self._newest(key, self._site)
      value = function(value)
      self._site.write(key, version + 1, value)
      return value

  def close(self) -> None:
    """Gives up the locks."""
    super().close()
    for lock in self._locks:
      lock.close()
    self._locks = ()

  def _state(self) -> tuple[str, int | None]:
    # A lost state directory is made up for by the run directory.
    return 'local', None

  def _acquire(self, owner: str, ttl_s: float, floor: int) -> tokens.Token:
    with self._alone():
      taken: list[locks.Lock] = []
      try:
        taken.append(locks.take_file(self._own.path / 'lock'))
        for take in self._takes():
          taken.append(take())
        version, past = self._newest('owner')
        token = tokens.Token(
          owner, max(floor, (past or {}).get('epoch', 0)) + 1
        )
        self._put('owner', version + 1, vars(token))
      except BaseException as error:
        for lock in taken:
          lock.close()
        if isinstance(error, locks.HeldError):
          raise self._held_error() from error
        raise
    self._locks = tuple(taken)
    return token

  def _renew(self, token: tokens.Token) -> None:
    for lock in self._locks:
      if not lock.is_in_place():
        raise errors.LostError(
          f'{token.owner} lost run {self.run_id}: {lock.path} was moved or '
          'deleted, so that others may hold the run.'
        )

  def _release(self, token: tokens.Token) -> None:
    self.close()

  def _read(self, key: str) -> dict[str, Any] | None:
    _, value = self._newest(key)
    return value

  def _write(
    self, key: str, value: dict[str, Any], token: tokens.Token
  ) -> None:
    with self._alone():
      if (holder := self._holder()) != token:
        raise self._lost(token, holder)
      version, _ = self._newest(key)
      self._put(key, version + 1, value)

  def _mirror(self, key: str, value: dict, token: tokens.Token) -> None:
    pass  # `_write` has done it, alone.

  def _holder(self) -> tokens.Token | None:
    """The owner, if its process lives. With `_alone`."""
    _, past = self._newest('owner')
    if past is None or not any(map(_is_held, self._takes())):
      return None
    return tokens.Token(past['owner'], past['epoch'])

  @contextlib.contextmanager
  def _alone(self, folder: pathlib.Path | None = None) -> Iterator[None]:
    """Keeps other processes from changing facts in the meantime."""
    try:
      mutex = locks.wait((folder or self._memory.path) / 'mutex', _MUTEX_S)
      with contextlib.closing(mutex):
        yield
    except OSError as error:
      raise self._disk_error(error) from error

  def _takes(self) -> tuple[Callable[[], locks.Lock], ...]:
    """What takes the locks on the run directory."""
    run_id = pathlib.Path(self.run_dir, 'run_id')
    return (
      lambda: locks.take_folder(self.run_dir),
      lambda: locks.take_file(run_id, flags=0),
    )

  def _held_error(self) -> errors.HeldError:
    _, past = self._newest('owner')
    holder = tokens.Token(past['owner'], past['epoch']) if past else None
    who = holder.owner if holder else 'a process'
    return errors.HeldError(
      f'{self.run_dir} is in use by {who}; wait for it or stop it.', holder
    )

  def _disk_error(self, error: OSError) -> errors.StoreError:
    told = super()._disk_error(error)
    if str(error.filename or '').startswith(str(_state_home())):
      told = errors.StoreError(
        f'{error.filename} cannot be used for the lease of run '
        f'{self.run_id}: {error.strerror}; set XDG_STATE_HOME to a folder that '
        'can be written.',
        told.exit_code,
      )
    return told

  def _put(self, key: str, version: int, value: dict[str, Any]) -> None:
    # The one that all hosts see comes first: it is never behind.
    for folder in (self._memory, self._own):
      folder.write(key, version, value)

  def _newest(
    self, key: str, *folders: facts.Folder
  ) -> tuple[int, dict[str, Any] | None]:
    """The newest readable copy of a fact; (0, None): there is none."""
    found: list[tuple[int, dict[str, Any]]] = []
    garbled = None
    for folder in folders or (self._own, self._memory):
      try:
        if fact := folder.read(key):
          found.append(fact)
      except facts.GarbledError as error:
        garbled = error
      except OSError as error:
        raise self._disk_error(error) from error
    if garbled and not found:
      raise errors.StoreError(str(garbled), exit_codes.UNUSABLE)
    return max(found, key=lambda fact: fact[0], default=(0, None))


def _is_held(take: Callable[[], locks.Lock]) -> bool:
  """Whether somebody has the lock."""
  try:
    take().close()
  except locks.HeldError:
    return True
  except FileNotFoundError:
    pass
  return False


def _state_home() -> pathlib.Path:
  """Where this user keeps what programs remember (XDG)."""
  home = os.environ.get('XDG_STATE_HOME') or '~/.local/state'
  try:
    return pathlib.Path(home).expanduser() / 'zaya_jax'
  except RuntimeError as error:
    raise errors.StoreError(
      f'--aegis.lease=local needs the home of user {os.geteuid()}, who has '
      'none: set XDG_STATE_HOME to a folder that can be written.',
      exit_codes.USAGE,
    ) from error
