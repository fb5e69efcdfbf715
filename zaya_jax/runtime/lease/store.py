# SPDX-License-Identifier: Apache-2.0
"""The interface of a lease store, its tokens and its errors."""

import abc
import contextlib
import errno
import json
import os
import time
from collections.abc import Callable
from typing import Any, Final, Literal

from zaya_jax.config import exit_codes
from zaya_jax.runtime.lease import errors, facts, tokens

# A change of the store must be wished for: the new one's identity.
ACCEPT: Final = 'ZAYA_LEASE_ACCEPT'

# What will not pass by itself, unlike a full disk.
_NOT_LATER: Final = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)

# A new one may be empty; an older one has lost what was written last.
_Kind = Literal['same', 'new', 'older']

Update = Callable[[dict[str, Any] | None], dict[str, Any]]


class Store(abc.ABC):
  """A run in a lease store.

  A method that raises StoreError may have done its work or not: the answer is
  not known. All methods may be called from any thread, and each ends in
  seconds (docs/leases.md).

  Args:
    address: of the store, for messages.
    run_id: of the run.
    run_dir: of the run; what the store is told is remembered in it.

  Attributes:
    expires: whether a lease runs out by itself.
  """

  expires = True

  def __init__(self, address: str, run_id: str, run_dir: str | os.PathLike):
    self.address, self.run_id = address, run_id
    self.run_dir = os.fspath(run_dir)
    self._memory = facts.Folder(facts.of_run_dir(run_dir))
    self._now = time.monotonic
    self._identity = ''
    self._held: tokens.Token | None = None
    self._ttl_s = self._deadline = 0.0

  def acquire(self, owner: str, ttl_s: float) -> tokens.Token:
    """Makes `owner` the owner of the run.

    Args:
      owner: a name that no other process has.
      ttl_s: seconds for which the run is held without `renew`.

    Returns:
      The token, with a new epoch.

    Raises:
      HeldError: somebody owns the run; try again after its `ttl_s`.
      StoreError: the store cannot be asked, or is another than before.
    """
    before = self._now()
    try:
      _, past = self._memory.read('store') or (0, {})
      kind = self._kind(past)
      token = self._acquire(owner, ttl_s, int(past.get('epoch', 0)))
    except facts.GarbledError as error:
      raise errors.StoreError(str(error), exit_codes.UNUSABLE) from error
    except OSError as error:
      raise self._disk_error(error) from error
    self._held, self._ttl_s = token, ttl_s
    self._deadline = before + ttl_s
    try:
      self._remember(token, kind)
    except BaseException as error:
      with contextlib.suppress(errors.LeaseError):
        self.release(token)
      if isinstance(error, OSError):
        raise self._disk_error(error) from error
      if isinstance(error, errors.LostError):  # So soon.
        raise errors.HeldError(str(error)) from error
      raise
    return token

  def renew(self, token: tokens.Token) -> float:
    """Holds the run for another `ttl_s`.

    Returns:
      `time.monotonic()` at which the lease runs out, counted from before the
      question was sent.

    Raises:
      LostError: the lease ran out, or somebody else owns the run.
      StoreError: the store cannot be asked; the old deadline stands.
    """
    before = self._now()
    if token != self._held:
      raise self._lost(token)
    if self.expires and before >= self._deadline:
      raise errors.LostError(
        f'{token.owner} lost run {self.run_id}: its lease of {self._ttl_s:g} s '
        f'in {self.address} ran out before it could be renewed.'
      )
    self._renew(token)
    self._deadline = before + self._ttl_s
    return self._deadline

  def release(self, token: tokens.Token) -> None:
    """Lets others acquire the run; nothing if `token` does not own it.

    Raises:
      StoreError: the store cannot be asked; ask again, or let the lease run
        out by itself.
    """
    if token == self._held:
      self._release(token)
      self._held = None

  def read(self, key: str) -> dict[str, Any] | None:
    """The value of a key of this run; None: it has none.

    A store that knows nothing of a key, such as a new one, is helped out by
    what the run directory remembers.

    Raises:
      StoreError: the store cannot be asked.
    """
    if (value := self._read(key)) is not None:
      return value
    try:
      if (known := self._memory.read(key)) is not None:
        return known[1]
      if key == 'generation':
        return facts.old_generation(self.run_dir)
    except facts.GarbledError as error:
      raise errors.StoreError(str(error), exit_codes.UNUSABLE) from error
    except OSError as error:
      raise self._disk_error(error) from error
    return None

  def write(self, key: str, value: dict[str, Any], token: tokens.Token) -> None:
    """Sets a key of this run, whole or not at all.

    Any process may write that knows the owner's token.

    Raises:
      LostError: `token` is not the owner's; nothing has changed.
      StoreError: the store cannot be asked.
    """
    self._write(key, value, token)
    self._mirror(key, value, token)

  @abc.abstractmethod
  def holder(self) -> tokens.Token | None:
    """The token of the owner; None: nobody owns the run."""

  @abc.abstractmethod
  def read_site(self, key: str) -> dict[str, Any] | None:
    """The value of a key that all runs of this store share; None: no value."""

  @abc.abstractmethod
  def update_site(self, key: str, function: Update) -> dict[str, Any]:
    """Sets a key that all runs share, by compare-and-swap.

    Args:
      key: its name.
      function: new value of the old one, None for none. It may be asked several
        times, also about a value that it has given itself.

    Returns:
      The new value.
    """

  def close(self) -> None:
    """Closes what is open; a lease of a server stays until it runs out."""
    self._held = None

  @abc.abstractmethod
  def _state(self) -> tuple[str, int | None]:
    """A name that the store loses when it is emptied, and its newest epoch.

    The epoch is None where it is not lost by itself.
    """

  @abc.abstractmethod
  def _acquire(self, owner: str, ttl_s: float, floor: int) -> tokens.Token:
    """As `acquire`, with an epoch above `floor`."""

  @abc.abstractmethod
  def _renew(self, token: tokens.Token) -> None: ...

  @abc.abstractmethod
  def _release(self, token: tokens.Token) -> None: ...

  @abc.abstractmethod
  def _read(self, key: str) -> dict[str, Any] | None: ...

  @abc.abstractmethod
  def _write(
    self, key: str, value: dict[str, Any], token: tokens.Token
  ) -> None: ...

  def _parse(self, text: str | bytes | None, where: str) -> dict | None:
    """The value that a server keeps as JSON."""
    if text is None:
      return None
    try:
      value = json.loads(text)
    except ValueError:
      value = None
    if not isinstance(value, dict):
      raise errors.StoreError(
        f'{self.address} holds something else than zaya_jax wrote at {where}; '
        'delete that key if no process of this run is alive.',
        exit_codes.UNUSABLE,
      )
    return value

  def _lost(
    self, token: tokens.Token, holder: tokens.Token | None = None
  ) -> errors.LostError:
    now = (
      f'{holder.owner} (epoch {holder.epoch}) owns it'
      if holder
      else ('it must acquire the run anew')
    )
    return errors.LostError(
      f'{token.owner} (epoch {token.epoch}) does not own run {self.run_id} in '
      f'{self.address}: {now}.'
    )

  def _kind(self, past: dict[str, Any]) -> _Kind:
    """Whether the store is the one that the run used last, and as it was.

    Args:
      past: what the run directory remembers of the store.

    Raises:
      StoreError: it is not, and nobody has accepted that.
    """
    self._identity, epoch = self._state()
    known, is_ours = past.get('identity'), past.get('run') == self.run_id
    kind: _Kind = 'new'
    if known in (None, self._identity):
      if not is_ours or epoch is None or epoch >= past['epoch']:
        return 'same' if is_ours else 'new'
      kind = 'older'
    # The kernel says whether a local owner is alive.
    if known != 'local' and os.environ.get(ACCEPT) != self._identity:
      raise errors.StoreError(
        f'{self.address} is not the store that run {self.run_id} used last: it '
        'was emptied, was restored from an older copy, or is another; if no '
        'process of this run is alive anywhere, accept it with '
        f'{ACCEPT}={self._identity} in the environment.',
        exit_codes.USAGE,
      )
    return kind

  def _remember(self, token: tokens.Token, kind: _Kind) -> None:
    """Tells the run directory of the store, and the store of its past."""
    memory = {
      'identity': self._identity,
      'run': self.run_id,
      'epoch': token.epoch,
    }
    newest, _ = self._memory.read('store') or (0, None)
    if newest < token.epoch:  # Not after a pause in which others went on.
      self._memory.write('store', token.epoch, memory)
    if kind == 'same':
      return
    for key in self._memory.keys() - {'owner', 'store'}:
      if kind == 'older' or self._read(key) is None:
        if known := self._memory.read(key):
          self._write(key, known[1], token)

  def _mirror(self, key: str, value: dict, token: tokens.Token) -> None:
    """Tells the run directory, which helps out a store that is empty."""
    with contextlib.suppress(OSError, facts.GarbledError):
      newest, _ = self._memory.read('store') or (0, None)
      version, _ = self._memory.read(key) or (0, None)
      if token.epoch >= newest:  # Not after a pause in which others went on.
        self._memory.write(key, version + 1, value)

  def _disk_error(self, error: OSError) -> errors.StoreError:
    return errors.StoreError(
      f'{error.filename or self.run_dir} cannot be used for the lease of run '
      f'{self.run_id}: {error.strerror}.',
      exit_codes.USAGE if error.errno in _NOT_LATER else exit_codes.STOPPED,
    )
