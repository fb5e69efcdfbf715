# SPDX-License-Identifier: Apache-2.0
"""Room for copies: those that were used longest ago make way.

Beside each folder's copies lies `copied/`, with a stamp for each. Who uses a
copy has its stamp locked, in whatever process; a lock ends with its process,
however that ends. Who makes room locks a stamp as well, or leaves its copy.

To look at all copies takes seconds where there are many. So `room.lock` says
what they take at most, and when one must go, a fiftieth more goes with it.
"""

import contextlib
import dataclasses
import fcntl
import os
import pathlib
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence

STAMPS = 'copied'
_LOCK, _DIGITS = 'room.lock', 20
_CLAIM = '.room'  # As large as the copy that is coming; takes no blocks.
_PARTIAL = '.partial'
_LEFT = (_PARTIAL, _CLAIM)
# Of the disk, for others: a part of a small one, bytes of a large one.
_FREE, _MOST_FREE = 0.05, 10 * 10**9

_BEGAN = time.time_ns()
_most_bytes = 0  # 0: as many as the disk takes.
_older_are_gone = False  # Those of earlier runs.


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

  @property
  def taken(self) -> int:
    """Bytes that it takes, or is going to."""
    return self.bytes + max(self.partial, self.claim)


def keep_within(gigabytes: float) -> None:
  """Sets how much this process lets all copies take; 0: what the disk has."""
  global _most_bytes
  _most_bytes = int(gigabytes * 1e9)


@contextlib.contextmanager
def claimed(
  path: pathlib.Path, size: int, let_go: Callable[[], None]
) -> Iterator[pathlib.Path]:
  """Room for a copy; yields the file to write; the caller renames it.

  The caller has its stamp and its turn. What is in use stays, so there may be
  less room than asked for.

  Args:
    path: of the copy, in a folder of the folder of all copies.
    size: its bytes.
    let_go: ends uses of this process that are not needed now.
  """
  root = path.parent.parent
  partial = path.with_name(path.name + _PARTIAL)
  claim = path.with_name(path.name + _CLAIM)
  try:
    with _alone(root) as ledger:
      # Of a process that was killed: this one has the stamp, so nobody else
      # could remove them.
      partial.unlink(missing_ok=True)
      claim.unlink(missing_ok=True)
      _make(root, ledger, size, let_go)
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
    copies = _find(root)
    most = max(1, size + _slack(copies, size))
    removed = _remove(copies, most)
    if removed < size or not removed:
      let_go()
      removed += _remove(_find(root), most - removed)
  return removed > 0


def _make(
  root: pathlib.Path, ledger: int, size: int, let_go: Callable[[], None]
) -> None:
  """Makes room as far as there is something to remove, and writes it down."""
  global _older_are_gone
  disk = shutil.disk_usage(root)
  # What this run has read would be copied again and again: others may have as
  # much of the disk as goes without it.
  spare = min(int(_FREE * disk.total), _MOST_FREE)
  spare = 0 if _older_are_gone else spare
  taken = _read(ledger)
  if taken is None or disk.free < size + spare or _over(taken + size) > 0:
    copies = _find(root)
    for copy in copies:
      if copy.claim or copy.partial:
        _removed(copy, _LEFT)  # By a killed process.
    coming = sum(max(0, copy.claim - copy.partial) for copy in copies)
    short = size + coming - shutil.disk_usage(root).free
    older = [copy for copy in copies if copy.used < _BEGAN]
    short -= _remove(older, short + spare)
    _older_are_gone |= short + spare > 0
    short = max(short, _over(size + sum(copy.taken for copy in copies)))
    if short > 0:
      short += _slack(copies, size)
    short -= _remove(copies, short)
    if short > 0:
      let_go()
      _remove(copies, short)
    taken = sum(copy.taken for copy in copies)
  _write(ledger, taken + size)


def _over(taken: int) -> int:
  """Bytes above --data.copies_gb."""
  return taken - _most_bytes if _most_bytes else 0


def _slack(copies: list[_Copy], size: int) -> int:
  """Bytes to remove beyond what is needed now."""
  # Stamps stay without their copies.
  return sum(copy.bytes > 0 for copy in copies) // 50 * size


def _read(ledger: int) -> int | None:
  """The most that all copies take; None: nobody has looked."""
  text = os.pread(ledger, _DIGITS + 1, 0).decode()
  return int(text) if re.fullmatch(rf'\d{{{_DIGITS}}}\n', text) else None


def _write(ledger: int, taken: int) -> None:
  # In place: a full disk takes it, too.
  os.pwrite(ledger, f'{taken:0{_DIGITS}}\n'.encode(), 0)


def _remove(copies: list[_Copy], most: int) -> int:
  """Removes so many bytes of what was used longest ago, and says how many."""
  removed = 0
  for copy in sorted(copies, key=lambda copy: copy.used):
    if removed >= most:
      break
    taken = copy.bytes
    if taken and _removed(copy):
      removed += taken
  return removed


def _removed(copy: _Copy, suffixes: Sequence[str] = ('', *_LEFT)) -> bool:
  """Removes a copy, or what was left beside it, unless somebody uses it."""
  path = copy.stamp.parent.parent / copy.stamp.name
  try:
    with open(copy.stamp, 'r+') as stamp:
      fcntl.flock(stamp, fcntl.LOCK_EX | fcntl.LOCK_NB)
      # Its stamp stays: others may be waiting for it.
      for suffix in suffixes:
        path.with_name(path.name + suffix).unlink(missing_ok=True)
      if '' in suffixes:
        stamp.truncate()
  except (BlockingIOError, FileNotFoundError):  # Or it was removed by hand.
    return False
  copy.partial = copy.claim = 0
  if '' in suffixes:
    copy.bytes = 0
  return True


def _find(root: pathlib.Path) -> list[_Copy]:
  """All copies of this machine, those that are coming too."""
  found = []
  for stamps in root.glob(f'*/{STAMPS}'):
    # Somebody may be removing the folder by hand.
    files, used = _stats(stamps.parent), _stats(stamps)
    size = lambda name, files=files: files[name].st_size if name in files else 0
    found += [
      _Copy(
        stamps / name,
        stat.st_mtime_ns,
        size(name),
        size(name + _PARTIAL),
        size(name + _CLAIM),
      )
      for name, stat in used.items()
    ]
  return found


def _stats(folder: pathlib.Path) -> dict[str, os.stat_result]:
  """What is known of the files of a folder, by name."""
  found = {}
  with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
    for entry in entries:
      with contextlib.suppress(FileNotFoundError):
        found[entry.name] = entry.stat()
  return found


@contextlib.contextmanager
def _alone(root: pathlib.Path) -> Iterator[int]:
  """One process at a time: two would count the same room."""
  ledger = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
  try:
    fcntl.flock(ledger, fcntl.LOCK_EX)
    yield ledger
  finally:
    os.close(ledger)
