# SPDX-License-Identifier: Apache-2.0
"""The lease store that knows the owner of this process's run, if one does.

A supervisor with --aegis.lease=etcd://… or kubernetes://… owns its run there.
Its rank 0 asks the same store before a checkpoint gets its name. With the local
lease, files of the run directory say the same (`fence`).
"""

import contextlib
from collections.abc import Iterator

from zaya_jax.runtime import fence, lease, run_files, supervised

LOCAL = ('', 'local')
_UNCONFIRMED = 'the lease store does not say whose this run is'

_held: list[tuple[lease.Store, lease.Token]] = []


class UnconfirmedError(OSError):
  """The lease store cannot be asked: no checkpoint may get its name now."""


def is_unconfirmed(why: str) -> bool:
  """Whether this is the text of an `UnconfirmedError`."""
  return why.startswith(_UNCONFIRMED)


@contextlib.contextmanager
def using(store: lease.Store, token: lease.Token) -> Iterator[None]:
  """Within, facts of the run are kept in this store, under this token."""
  _held.append((store, token))
  try:
    yield
  finally:
    _held.pop()


@contextlib.contextmanager
def borrowed(address: str, run_dir: str) -> Iterator[None]:
  """As `using`, as the owner for so long; nothing with a local lease.

  Raises:
    LeaseError: if somebody owns the run, or the store cannot be asked.
  """
  if address in LOCAL:
    yield
    return
  run, ttl_s = run_files.run_id(run_dir), 60.0
  store = lease.open(address, run_id=run, run_dir=run_dir)
  with contextlib.closing(store):
    token = store.acquire(lease.owner_name(), ttl_s)
    try:
      with using(store, token):
        yield
    finally:
      store.release(token)


def current() -> tuple[lease.Store, lease.Token] | None:
  """The store and the owner's token; None: the lease is local, or none.

  Of a generation's ranks only the first asks the store.

  Raises:
    StoreError: if the store cannot be asked.
  """
  place = supervised.place()
  if not _held and place and not place.rank and place.lease not in LOCAL:
    run = run_files.run_id(place.run_dir)
    store = lease.open(place.lease, run_id=run, run_dir=place.run_dir)
    _held.append((store, lease.Token(place.owner, place.epoch)))
  return _held[-1] if _held else None


def check_fence() -> None:
  """Before each save: whether the generation of this process still goes on.

  Raises:
    FencedError: another generation, or owner, goes on in its place.
    UnconfirmedError: the lease store cannot be asked.
  """
  supervised.check_fence()
  place = supervised.place()
  try:
    owned = current()
    if not owned or not place:
      return
    store, token = owned
    now = store.read('generation') or {}
  except lease.StoreError as error:
    raise UnconfirmedError(f'{_UNCONFIRMED} ({error})') from error
  known = now.get('number'), now.get('owner'), now.get('epoch')
  if known != (place.generation, token.owner, token.epoch):
    raise fence.FencedError(
      f'generation {place.generation} of {token.owner} was given up: '
      f'{store.address} knows generation {known[0]} of {known[1]}; this '
      'process saves nothing.'
    )
