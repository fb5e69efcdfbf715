# SPDX-License-Identifier: Apache-2.0
"""The folder that is made: what may be there, and what is there for a while."""

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any, TextIO

from pipelines import errors, store
from pipelines import tokenizer as tokenizer_lib
from pipelines.prepare import units
from pipelines.prepare.input import read
from pipelines.shards import manifest

_LOCK = 'lock'
_WORK = 'work'
_KEPT = (_LOCK, units.FOLDER, 'trained')


def existing(
  output: pathlib.Path, settings: manifest.Settings
) -> manifest.Manifest:
  """Returns the manifest of a finished folder if it is what was asked for.

  Raises:
    DataError: exit code 2, if it is another; 3, if it is damaged.
  """
  found = manifest.load(output)
  _check_same(found, str(output), settings)
  return found


def existing_there(
  url: str, settings: manifest.Settings
) -> manifest.Manifest | None:
  """Like `existing`, of what is behind a URL; None: there is nothing.

  Raises:
    DataError: exit code 2, if it is another, or the store cannot be reached.
  """
  fs, place = store.filesystem(url, '--output')
  path = f'{place}/{manifest.FILE_NAME}'
  if not store.attempt(lambda: fs.exists(path), url):
    return None
  with tempfile.TemporaryDirectory() as folder:
    copy = pathlib.Path(folder, manifest.FILE_NAME)
    store.attempt(lambda: fs.get_file(path, str(copy)), url)
    found = manifest.read_file(copy)
  _check_same(found, url, settings)
  return found


def staging(url: str) -> pathlib.Path:
  """The folder of this machine where what goes to a URL is made."""
  name = hashlib.sha256(url.encode()).hexdigest()[:16]
  return pathlib.Path(tempfile.gettempdir(), f'zaya-prepare-{name}')


def check(output: pathlib.Path, text_input: str) -> None:
  """Refuses a place that cannot be an output."""
  if output.is_dir() and any(output.iterdir()):
    raise errors.DataError(
      f'--output={output} holds other files and no {manifest.FILE_NAME}; '
      'choose an empty or new folder.'
    )
  if output.exists() and not output.is_dir():
    raise errors.DataError(f'--output={output} is a file; choose a folder.')
  folder = pathlib.Path(os.path.abspath(text_input))
  if (
    not store.is_url(text_input)
    and folder.is_dir()
    and output.is_relative_to(folder)
  ):
    raise errors.DataError(
      f'--output={output} lies inside --data.input={text_input} and would '
      'become part of it; choose a folder outside.'
    )


@contextlib.contextmanager
def partial(
  output: pathlib.Path, part: tuple[int, int] | None
) -> Iterator[pathlib.Path]:
  """Makes `OUTPUT.partial` for this process alone, or for parts together.

  What fails before anything is done leaves nothing behind; units that are done
  stay.
  """
  folder = output.with_name(output.name + '.partial')
  try:
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as locks:
      lock = locks.enter_context(open(folder / _LOCK, 'w'))
      _lock(lock, folder, fcntl.LOCK_SH if part else fcntl.LOCK_EX)
      if part:
        name = f'{_LOCK}-{part[0]}-of-{part[1]}'
        own = locks.enter_context(open(folder / name, 'w'))
        _lock(own, folder, fcntl.LOCK_EX)
      try:
        yield folder
      except BaseException:
        if not part and not any((folder / units.FOLDER).glob('*.json')):
          shutil.rmtree(folder, ignore_errors=True)
        raise
  except OSError as error:
    raise errors.DataError(
      f'Preparing --output={output} failed ({error.strerror}: '
      f'{error.filename or folder}); make that place readable, writable and '
      'large enough, or choose another.',
      errors.UNUSABLE,
    ) from error


def clean(folder: pathlib.Path, names: set[str]) -> None:
  """Removes what killed processes and other calls left, but for done units."""
  for path in (folder / units.FOLDER).iterdir():
    if path.stem not in names or path.suffix[1:] not in units.SUFFIXES:
      path.unlink()


def work(folder: pathlib.Path, parts: list[Any]) -> pathlib.Path:
  """The folder of a layout, which is named by what decides about it."""
  name = hashlib.sha256(repr(parts).encode()).hexdigest()[:24]
  result = folder / f'{_WORK}-{name}'
  for path in folder.iterdir():
    if path.name in _KEPT or path == result:
      continue
    # Shards are of this layout if it was begun.
    if result.exists() and path.name.endswith(
      (manifest.SUFFIX, manifest.DOCUMENTS_SUFFIX)
    ):
      continue
    _remove(path)
  result.mkdir(exist_ok=True)
  return result


def tidy(folder: pathlib.Path) -> None:
  """Removes all that is no part of the result."""
  for path in folder.iterdir():
    if path.name in _KEPT or path.name.startswith((_WORK, _LOCK)):
      _remove(path)


def _check_same(
  found: manifest.Manifest, output: str, settings: manifest.Settings
) -> None:
  """Refuses a manifest that is not of what was asked for."""
  wanted, had = dataclasses.asdict(settings), dataclasses.asdict(found.settings)
  if not settings.trim or had['window_tokens'] is None:
    # Other windows than planned only cut some conversations, or none; None:
    # there are no conversations.
    del wanted['window_tokens']
  differing = [k for k in wanted if wanted[k] != had[k]]
  way_out = f'choose another --output or remove {output}'
  if differing:
    listed = ', '.join(
      f'--data.{k}={wanted[k]} (there: {had[k]})' for k in differing
    )
    raise errors.DataError(
      f'{output} was prepared with other settings: {listed}; {way_out}.'
    )
  # A run may go on where its text is gone, but not on text that has changed.
  # Another Python's library counts as gone: an upgrade must not stop a run.
  if settings.input != read.STDLIB and read.exists(settings.input):
    source = read.Source(settings.input, settings.text_field)
    if source.sha256 != found.input_sha256:
      raise errors.DataError(
        f'{output} was prepared from other files than --data.input='
        f'{settings.input} has now; {way_out}, or use it as it is with '
        f'--data.dir={output}.'
      )
  if not settings.train_tokenizer and os.path.exists(settings.tokenizer):
    named = tokenizer_lib.load(settings.tokenizer)
    found.check_tokenizer(named)
    found.check_template(named)


def _remove(path: pathlib.Path) -> None:
  if path.is_dir():
    shutil.rmtree(path)
  else:
    path.unlink()


def _lock(lock: TextIO, folder: pathlib.Path, kind: int) -> None:
  try:
    fcntl.flock(lock, kind | fcntl.LOCK_NB)
  except BlockingIOError as error:
    raise errors.DataError(
      f'{folder} is in use by another process that prepares the same data; '
      'wait for it to end.'
    ) from error
