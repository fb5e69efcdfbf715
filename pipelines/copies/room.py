# SPDX-License-Identifier: Apache-2.0
"""Room for copies: those that were used longest ago make way.

Beside each folder's copies lies `copied/`, with a stamp for each. Who uses a
copy has its stamp locked, in whatever process; a lock ends with its process,
however that ends. Who makes room locks a stamp as well, or leaves its copy.
"""

import contextlib
import dataclasses
import fcntl
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator

STAMPS = 'copied'
_LOCK = 'room.lock'
_CLAIM = '.room'  # As large as the copy that is coming; takes no blocks.
_PARTIAL = '.partial'
# Of the disk, for others: a part of a small one, bytes of a large one.
_FREE, _MOST_FREE = 0.05, 10 * 10**9

_most_bytes = 0  # 0: as many as the disk takes.


@dataclasses.dataclass
class _Copy:
  """What lies on the disk for a stamp.

  Attributes:
    stamp: the file to lock.
    used: when it was last locked for use, in ns.
    bytes: of the copy; 0: there is none.
    partial: bytes of what has come of another.
    claim: bytes of all of it.
  """

  stamp: pathlib.Path
  used: int
  bytes: int
  partial: int
  claim: int


def keep_within(gigabytes: float) -> None:
  """Sets how much this process lets all copies take; 0: what the disk has."""
  global _most_bytes
  _most_bytes = int(gigabytes * 1e9)


@contextlib.contextmanager
def claimed(
  path: pathlib.Path, size: int, let_go: Callable[[], None]
) -> Iterator[pathlib.Path]:
  """Room for a copy, whose stamp is locked; gives the file to write first.

  What is in use stays, so there may be less room than asked for.

  Args:
    path: of the copy, in a folder of the folder of all copies.
    size: its bytes.
    let_go: ends uses of this process that are not needed now.
  """
  root = path.parent.parent
  partial = path.with_name(path.name + _PARTIAL)
  claim = path.with_name(path.name + _CLAIM)
  try:
    with _alone(root):
      _make(root, lambda copies: _missing(root, copies, size), let_go)
      with open(claim, 'wb') as file:
        file.truncate(size)
    yield partial
  finally:
    partial.unlink(missing_ok=True)
    claim.unlink(missing_ok=True)


def give_way(root: pathlib.Path, size: int, let_go: Callable[[], None]) -> bool:
  """Removes copies of so many bytes: the disk is full, or a quota of it.

  False: there is nothing to remove.
  """
  with _alone(root):
    before = sum(copy.bytes for copy in _find(root))
    _make(root, lambda copies: size, let_go)
    return sum(copy.bytes for copy in _find(root)) < before


def _missing(root: pathlib.Path, copies: list[_Copy], size: int) -> int:
  """Bytes that must go before a copy of `size` can come."""
  disk = shutil.disk_usage(root)
  coming = sum(max(0, copy.claim - copy.partial) for copy in copies)
  free = min(int(_FREE * disk.total), _MOST_FREE)
  missing = size + coming + free - disk.free
  if _most_bytes:
    taken = sum(copy.bytes + max(copy.claim, copy.partial) for copy in copies)
    missing = max(missing, size + taken - _most_bytes)
  return missing


def _make(
  root: pathlib.Path,
  missing: Callable[[list[_Copy]], int],
  let_go: Callable[[], None],
) -> None:
  """Removes copies of others first, then what this process has let go."""
  if not _remove(root, missing):
    let_go()
    _remove(root, missing)


def _remove(root: pathlib.Path, missing: Callable[[list[_Copy]], int]) -> bool:
  """Removes what was used longest ago, and says whether it was enough."""
  copies = _find(root)
  # What a killed process left behind counts until it is gone.
  left = [copy for copy in copies if copy.claim or copy.partial]
  for copy in left:
    if _removed(copy):
      copies.remove(copy)
  most = missing(copies)
  for copy in sorted(copies, key=lambda copy: copy.used):
    if most <= 0:
      break
    if copy.bytes and _removed(copy):
      most -= copy.bytes
  return most <= 0


def _removed(copy: _Copy) -> bool:
  """Removes a copy unless somebody uses it."""
  path = copy.stamp.parent.parent / copy.stamp.name
  with open(copy.stamp, 'r+') as stamp:
    try:
      fcntl.flock(stamp, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      return False
    # Its stamp stays: others may be waiting for it.
    for suffix in ('', _PARTIAL, _CLAIM):
      path.with_name(path.name + suffix).unlink(missing_ok=True)
    stamp.truncate()
  return True


def _find(root: pathlib.Path) -> list[_Copy]:
  """All copies of this machine, those that are coming too."""
  found = []
  for stamps in root.glob(f'*/{STAMPS}'):
    sizes = _sizes(stamps.parent)
    with os.scandir(stamps) as entries:
      found += [
        _Copy(
          pathlib.Path(entry.path),
          entry.stat().st_mtime_ns,
          sizes.get(entry.name, 0),
          sizes.get(entry.name + _PARTIAL, 0),
          sizes.get(entry.name + _CLAIM, 0),
        )
        for entry in entries
      ]
  return found


def _sizes(folder: pathlib.Path) -> dict[str, int]:
  """Bytes of files by name; others may be about to go."""
  sizes = {}
  with os.scandir(folder) as entries:
    for entry in entries:
      with contextlib.suppress(FileNotFoundError):
        sizes[entry.name] = entry.stat().st_size
  return sizes


@contextlib.contextmanager
def _alone(root: pathlib.Path) -> Iterator[None]:
  """One process at a time: two would count the same room."""
  with open(root / _LOCK, 'a') as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    yield
