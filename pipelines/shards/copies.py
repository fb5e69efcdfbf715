# SPDX-License-Identifier: Apache-2.0
"""Copies of shards that lie behind a URL, in a folder of this machine.

A file is copied when it is first read, once for all processes of the machine,
and its hash is compared with that of the manifest. A small file in `copied/`,
its stamp, is the lock of all who use it (`pipelines.shards.room`), and
remembers which copy was compared.
"""

import contextlib
import errno
import fcntl
import functools
import hashlib
import os
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import TextIO, TypeVar

from pipelines import chat, errors, store, tokenizer
from pipelines.shards import content, room

keep_within = room.keep_within

_T = TypeVar('_T')
_BESIDE = (tokenizer.FILE_NAME, *chat.FILE_NAMES)  # Not listed there.
_FLAG = '--data.dir'
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
# Who copies locks a second file: readers of an older copy keep their lock on
# the stamp.
_TURNS = 'copying'
# A run should outlive a store that is away for a while: 31 s, and what the
# drivers wait by themselves.
_TRIES = 7


def root() -> pathlib.Path:
  """The folder of all copies: $XDG_CACHE_HOME/zaya_jax/shards."""
  base = os.environ.get('XDG_CACHE_HOME') or '~/.cache'
  return pathlib.Path(base).expanduser() / 'zaya_jax' / 'shards'


def folder(directory: str | os.PathLike[str]) -> pathlib.Path:
  """Where files of a folder of shards are, or are copied to, on this machine.

  What is behind a URL is looked up once in a process: its manifest, and the
  files of its tokenizer.

  Raises:
    DataError: if the URL cannot be read.
  """
  if not store.is_url(directory):
    return pathlib.Path(directory)
  return _folder(str(directory))


def take(
  url: str,
  name: str,
  sha256: str,
  let_go: Callable[[], None] = lambda: None,
) -> tuple[pathlib.Path, TextIO]:
  """A copy of a listed file, which stays until its stamp is closed.

  Args:
    url: of the folder of shards.
    name: of the file.
    sha256: of its content.
    let_go: closes stamps of this process that are not needed now; called where
      there is no room.

  Returns:
    The copy, and its stamp.

  Raises:
    DataError: if the file cannot be copied, or is not the one of the manifest.
  """
  path = _folder(url) / name
  with _disk(path.parent), contextlib.ExitStack() as on_error:
    make = functools.partial(open, path.parent / room.STAMPS / name, 'a+')
    stamp = _despite_full_disk(make, path, 0, let_go)
    on_error.enter_context(stamp)
    fcntl.flock(stamp, fcntl.LOCK_SH)
    if not _is_compared(stamp, path):
      make = functools.partial(open, path.parent / _TURNS / name, 'a')
      with _despite_full_disk(make, path, 0, let_go) as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if not _is_compared(stamp, path):
          if not _is_right(path, sha256):
            _copy(url, path, sha256, let_go)
          write = functools.partial(_remember, stamp, _version(path))
          _despite_full_disk(write, path, 0, let_go)
    now = time.time_ns()  # The file system's own clock is coarse.
    os.utime(stamp.fileno(), ns=(now, now))
    on_error.pop_all()
  return path, stamp


@contextlib.contextmanager
def held(
  directory: str | os.PathLike[str], name: str, sha256: str
) -> Iterator[pathlib.Path]:
  """A listed file of a folder of shards, on this machine; of a URL, a copy.

  The copy stays as long as the context.

  Raises:
    DataError: if the file cannot be copied, or is not the one of the manifest.
  """
  if not store.is_url(directory):
    yield pathlib.Path(directory, name)
    return
  path, stamp = take(str(directory), name, sha256)
  with stamp:
    yield path


def exists(url: str) -> bool:
  """Whether a manifest is behind a URL."""
  fs, place = store.filesystem(url, _FLAG)

  def there() -> bool:
    fs.invalidate_cache()
    return fs.exists(f'{place}/{content.FILE_NAME}')

  return store.attempt(there, url, _TRIES)


def sizes(url: str) -> dict[str, int]:
  """Bytes of the files behind a URL, by name."""
  fs, place = store.filesystem(url, _FLAG)

  def listed() -> list[dict]:
    fs.invalidate_cache()
    return fs.ls(place, detail=True)

  return {
    os.path.basename(file['name']): file['size']
    for file in store.attempt(listed, url, _TRIES)
    if file['type'] == 'file'
  }


# As long as the process lives: what it reads stays what it is.
@functools.cache
def _folder(url: str) -> pathlib.Path:
  fs, place = store.filesystem(url, _FLAG)
  manifest = _get(fs, place, url, content.FILE_NAME)
  # Another manifest is another folder.
  key = hashlib.sha256(url.encode() + manifest).hexdigest()[:16]
  result = root() / f'{os.path.basename(place.rstrip("/"))}-{key}'
  with _disk(result):
    root().mkdir(parents=True, exist_ok=True)
    for path in (result, result / room.STAMPS, result / _TURNS):
      make = functools.partial(path.mkdir, exist_ok=True)
      _despite_full_disk(make, result / content.FILE_NAME, 0)
    if not (result / content.FILE_NAME).exists():
      there = store.attempt(lambda: fs.ls(place, detail=False), url, _TRIES)
      names = {os.path.basename(path) for path in there}
      for name in _BESIDE:
        if name in names:
          _write(result / name, _get(fs, place, url, name))
    # Each time: it is small, and may have been damaged here.
    _write(result / content.FILE_NAME, manifest)
  return result


def _is_compared(stamp: TextIO, path: pathlib.Path) -> bool:
  """Whether the copy is the one whose hash was compared."""
  stamp.seek(0)
  version = _version(path)
  return bool(version) and stamp.read() == version


def _copy(
  url: str, path: pathlib.Path, sha256: str, let_go: Callable[[], None]
) -> None:
  """Copies a file; what comes otherwise is asked for once more."""
  fs, place = store.filesystem(url, _FLAG)
  there, source = f'{url}/{path.name}', f'{place}/{path.name}'
  attempt = functools.partial(
    store.attempt, url=there, tries=_TRIES, missing=_missing(there)
  )
  size = attempt(lambda: fs.info(source)['size'])
  with contextlib.ExitStack() as at_end:
    claim = lambda: at_end.enter_context(room.claimed(path, size, let_go))
    partial = _despite_full_disk(claim, path, 0, let_go)
    get = functools.partial(fs.get_file, source, str(partial))
    for _ in range(2):
      _despite_full_disk(lambda: attempt(get), path, size, let_go)
      if _is_right(partial, sha256):
        partial.replace(path)
        return
  raise errors.DataError(
    f'{there} differs from its sha256 in {content.FILE_NAME}: damaged, or '
    'changed since the run began to read; copy it there from the original, or '
    'prepare the data again.',
    errors.UNUSABLE,
  )


def _missing(there: str) -> errors.DataError:
  return errors.DataError(
    f'{there} is listed in {content.FILE_NAME} but missing; copy it there from '
    'the original, or prepare the data again.',
    errors.UNUSABLE,
  )


def _despite_full_disk(
  write: Callable[[], _T],
  path: pathlib.Path,
  size: int,
  let_go: Callable[[], None] = lambda: None,
) -> _T:
  """Writes; on a full disk again, as long as older copies can go."""
  while True:
    try:
      return write()
    except OSError as error:
      if error.errno not in _FULL:
        raise
      if not room.give_way(path.parent.parent, size, let_go):
        raise


def _remember(stamp: TextIO, version: str) -> None:
  """Writes at once: what is left in a buffer would fail again at its end."""
  stamp.truncate(0)
  os.write(stamp.fileno(), version.encode())


def _get(fs, place: str, url: str, name: str) -> bytes:
  get = functools.partial(fs.cat_file, f'{place}/{name}')
  return store.attempt(get, f'{url}/{name}', _TRIES)


def _write(path: pathlib.Path, text: bytes) -> None:
  write = functools.partial(store.replace, path, text)
  _despite_full_disk(write, path, len(text))


def _is_right(path: pathlib.Path, sha256: str) -> bool:
  """Whether there is a file with this hash."""
  try:
    return content.file_sha256(path) == sha256
  except FileNotFoundError:
    return False


def _version(path: pathlib.Path) -> str:
  """Changes with the file; '' where there is none."""
  try:
    stat = path.stat()
  except FileNotFoundError:
    return ''
  return f'{stat.st_ino} {stat.st_mtime_ns} {stat.st_size}'


@contextlib.contextmanager
def _disk(place: pathlib.Path) -> Iterator[None]:
  """Says which disk is full, or cannot be written, and what to do."""
  try:
    yield
  except FileNotFoundError as error:
    raise errors.DataError(
      f'{place} was removed while this command used it; give the same command '
      'again.',
      errors.AGAIN,
    ) from error
  except OSError as error:
    why, then = error.strerror or error, 'name a folder that can be written'
    if error.errno in _FULL:
      then = 'make room, or name a larger disk'
    elif error.errno in _NO_LOCKS:
      why = f'locks do not work there: {why}'
      then = 'name a disk of this machine'
    raise errors.DataError(
      f'{place} cannot take a copy of shards ({why}); {then} with '
      'XDG_CACHE_HOME in the environment.',
      errors.UNUSABLE,
    ) from error
