# SPDX-License-Identifier: Apache-2.0
"""Copies of shards that lie behind a URL, in a folder of this machine.

A file is copied when it is first read, once for all processes of the machine,
and its hash is compared with that of the manifest. A small file in `copied/`
is the lock of those who need it, and remembers which copy was compared.
"""

import contextlib
import fcntl
import functools
import hashlib
import os
import pathlib
from collections.abc import Iterator

from pipelines import chat, errors, store, tokenizer

MANIFEST = 'manifest.json'
_BESIDE = (tokenizer.FILE_NAME, *chat.FILE_NAMES)  # Not listed there.
_FLAG = '--data.dir'
_STAMPS = 'copied'
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


def local(
  directory: str | os.PathLike[str], name: str, sha256: str
) -> pathlib.Path:
  """A listed file of a folder of shards, on this machine; of a URL, a copy.

  Raises:
    DataError: if the file cannot be copied, or is not the one of the manifest.
  """
  if not store.is_url(directory):
    return pathlib.Path(directory, name)
  return _local(str(directory), name, sha256)


def exists(url: str) -> bool:
  """Whether a manifest is behind a URL."""
  fs, place = store.filesystem(url, _FLAG)

  def there() -> bool:
    fs.invalidate_cache()
    return fs.exists(f'{place}/{MANIFEST}')

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
  content = _get(fs, place, url, MANIFEST)
  # Another manifest is another folder.
  key = hashlib.sha256(url.encode() + content).hexdigest()[:16]
  result = root() / f'{os.path.basename(place.rstrip("/"))}-{key}'
  with _disk(result):
    (result / _STAMPS).mkdir(parents=True, exist_ok=True)
    if not (result / MANIFEST).exists():
      there = store.attempt(lambda: fs.ls(place, detail=False), url, _TRIES)
      names = {os.path.basename(path) for path in there}
      for name in _BESIDE:
        if name in names:
          _write(result / name, _get(fs, place, url, name))
    # Each time: it is small, and may have been damaged here.
    _write(result / MANIFEST, content)
  return result


@functools.cache
def _local(url: str, name: str, sha256: str) -> pathlib.Path:
  path = folder(url) / name
  with _disk(path.parent), open(path.parent / _STAMPS / name, 'a+') as stamp:
    fcntl.flock(stamp, fcntl.LOCK_EX)
    stamp.seek(0)
    if stamp.read() != _version(path):
      if _hash(path) != sha256:
        _copy(url, path, sha256)
      stamp.truncate(0)
      stamp.write(_version(path))
  return path


def _copy(url: str, path: pathlib.Path, sha256: str) -> None:
  """Copies a file; what comes otherwise is asked for once more."""
  fs, place = store.filesystem(url, _FLAG)
  there, partial = f'{url}/{path.name}', path.with_name(f'{path.name}.partial')
  try:
    for _ in range(2):
      store.attempt(
        lambda: fs.get_file(f'{place}/{path.name}', str(partial)), there, _TRIES
      )
      if _hash(partial) == sha256:
        partial.replace(path)
        return
  finally:
    partial.unlink(missing_ok=True)
  raise errors.DataError(
    f'{there} differs from its sha256 in {MANIFEST}: damaged, or changed since '
    'the run began to read; copy it there from the original, or prepare the '
    'data again.',
    errors.UNUSABLE,
  )


def _get(fs, place: str, url: str, name: str) -> bytes:
  get = functools.partial(fs.cat_file, f'{place}/{name}')
  return store.attempt(get, f'{url}/{name}', _TRIES)


def _write(path: pathlib.Path, content: bytes) -> None:
  partial = path.with_name(f'{path.name}.{os.getpid()}.partial')
  try:
    partial.write_bytes(content)
    partial.replace(path)
  finally:
    partial.unlink(missing_ok=True)


def _hash(path: pathlib.Path) -> str:
  """Hex digest of a file; '' where there is none."""
  if not path.is_file():
    return ''
  with open(path, 'rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def _version(path: pathlib.Path) -> str:
  """Changes with the file; '-' where there is none."""
  if not path.is_file():
    return '-'
  stat = path.stat()
  return f'{stat.st_ino} {stat.st_mtime_ns} {stat.st_size}'


@contextlib.contextmanager
def _disk(place: pathlib.Path) -> Iterator[None]:
  """Says which disk is full, or cannot be written."""
  try:
    yield
  except OSError as error:
    raise errors.DataError(
      f'{error.filename or place} cannot take a copy of shards '
      f'({error.strerror or error}); make room, or name a larger disk with '
      'XDG_CACHE_HOME in the environment.',
      errors.UNUSABLE,
    ) from error
