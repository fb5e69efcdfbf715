# SPDX-License-Identifier: Apache-2.0
"""Where files lie: in a folder here, or behind a URL in an object store.

What is behind a URL is copied to this machine when its turn comes, file by
file: a connection that drops then costs one more try and no wrong text.
"""

import contextlib
import dataclasses
import errno
import functools
import glob
import logging
import os
import pathlib
import re
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from typing import TypeVar

from pipelines import errors

_T = TypeVar('_T')
_TRIES = 3  # Drivers try again themselves, too.
_WAIT_S = 0.5  # Before the second try; twice as long before each further one.
# Of this machine's disk: to try again is of no use.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_URL = re.compile(r'[a-zA-Z][a-zA-Z0-9+.-]*://')


@dataclasses.dataclass(frozen=True)
class File:
  """An input file.

  Attributes:
    path: of a file here, or a URL.
    size: in bytes.
    version: changes with the content, as far as the place tells.
  """

  path: str
  size: int
  version: str

  @contextlib.contextmanager
  def local(self, folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """A path of this machine to read; `folder` takes what must be copied."""
    if not is_url(self.path):
      yield pathlib.Path(self.path)
      return
    fs, path = filesystem(self.path, '--data.input')
    # Machines share the folder, and in containers numbers of processes too.
    handle, name = tempfile.mkstemp(prefix='copy-', dir=folder)
    os.close(handle)
    copy = pathlib.Path(name)
    try:
      attempt(lambda: _get(fs, path, copy, self.size), self.path)
      yield copy
    finally:
      copy.unlink(missing_ok=True)


def is_url(name: str | os.PathLike[str]) -> bool:
  """Whether it names something in an object store: `gs://`, `s3://`, …."""
  return bool(_URL.match(str(name)))


def local_file(path: pathlib.Path) -> File:
  """A file of this machine."""
  stat = path.stat()
  return File(str(path), stat.st_size, str(stat.st_mtime_ns))


def filesystem(url: str, flag: str):
  """The file system of a URL, and its path there.

  Raises:
    DataError: if there is no such kind of store, or its driver is missing.
  """
  import fsspec

  # It writes a page for each try.
  logging.getLogger('gcsfs').setLevel(logging.CRITICAL)
  try:
    return fsspec.core.url_to_fs(url)
  except ImportError as error:
    raise errors.DataError(
      f'{flag}={url}: reading it needs another package ({error}); pip install '
      's3fs for s3://, gcsfs for gs://.'
    ) from error
  except Exception as error:  # Drivers have errors of their own.
    raise errors.DataError(
      f'{flag}={url} is not a place that can be read ({error}); give a folder '
      'of this machine, or a URL of gs:// or s3://.'
    ) from error


def find(url: str) -> dict[str, File]:
  """Name to file of all files under a URL or matching its glob."""
  fs, path = filesystem(url, '--data.input')

  def listed() -> tuple[str, dict[str, dict]]:
    fs.invalidate_cache()
    if glob.has_magic(path) and not fs.exists(path):
      before = re.split('[*?[]', path, maxsplit=1)[0]
      return before.rpartition('/')[0], fs.glob(path, detail=True)
    found = fs.find(path, detail=True)
    return path, found or {path: fs.info(path)}

  root, infos = attempt(listed, url)
  found = {
    name: info
    for name, info in infos.items()
    if info.get('type', 'file') == 'file'
  }
  return {
    os.path.relpath(name, root) if name != path else os.path.basename(name): (
      File(fs.unstrip_protocol(name), info['size'], _version(info))
    )
    for name, info in found.items()
  }


def attempt(
  function: Callable[[], _T],
  url: str,
  tries: int = _TRIES,
  missing: errors.DataError | None = None,
) -> _T:
  """Calls a function of a store, again when a connection failed.

  Args:
    function: to call.
    url: that it is about.
    tries: how often.
    missing: what to raise if there is no such file; None: that the input does
      not exist.

  Raises:
    DataError: if there is no such file, no permission (exit code 2), or no
      answer (1).
    OSError: if the disk of this machine is full.
  """
  for number in range(tries):
    try:
      return function()
    except FileNotFoundError as error:
      missing = missing or errors.DataError(f'{url} does not exist.')
      raise missing from error
    except Exception as error:  # Drivers have errors of their own.
      if isinstance(error, OSError) and error.errno in _FULL:
        raise
      what = f'{type(error).__name__}: {error}'.splitlines()[0]
      if _is_refused(error, what):
        raise errors.DataError(
          f'{url} cannot be opened, for want of permission or credentials '
          f'({what}); set those of its store in the environment.'
        ) from error
      last = what
    time.sleep(_WAIT_S * 2**number if number + 1 < tries else 0)
  raise errors.DataError(
    f'{url} did not answer {tries} times ({last}); look at the network and '
    'the store, then give the same command again.',
    errors.AGAIN,
  )


def _is_refused(error: Exception, what: str) -> bool:
  """Whether a store wants other credentials; gcsfs has no error for that."""
  return (
    isinstance(error, PermissionError)
    or getattr(error, 'code', None) in (401, 403)
    or 'redential' in what
    or 'Forbidden' in what
  )


def replace(path: pathlib.Path, content: bytes) -> None:
  """Writes a file of this machine: whole, or not at all."""
  # Machines share folders, and in containers numbers of processes too.
  partial = path.with_name(f'{path.name}.{uuid.uuid4().hex}.partial')
  try:
    partial.write_bytes(content)
    partial.replace(path)
  finally:
    partial.unlink(missing_ok=True)


def upload(folder: pathlib.Path, url: str, last: str) -> None:
  """Copies the files of a folder to a place of a store, one of them `last`."""
  fs, place = filesystem(url, '--output')
  names = sorted(path.name for path in folder.iterdir())
  attempt(lambda: fs.makedirs(place, exist_ok=True), url)
  for name in sorted(names, key=lambda name: name == last):
    put = functools.partial(fs.put_file, str(folder / name), f'{place}/{name}')
    attempt(put, f'{url}/{name}')


def _get(fs, path: str, copy: pathlib.Path, size: int) -> None:
  fs.get_file(path, str(copy))
  if copy.stat().st_size != size:
    raise OSError(f'{copy.stat().st_size} of {size} bytes came')


def _version(info: dict) -> str:
  keys = ('ETag', 'etag', 'md5Hash', 'generation', 'mtime', 'LastModified')
  return str(next((info[key] for key in keys if key in info), ''))
