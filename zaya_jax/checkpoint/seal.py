# SPDX-License-Identifier: Apache-2.0
"""SEAL.json: the names, sizes and SHA-256 of all files of a checkpoint.

It is written last, before the checkpoint gets its name, so that a checkpoint
without it is half of one. What it says is covered by a hash of its own and,
with a key (`seal_key`), by an HMAC that nobody without the key can make. Every
byte counts: a file that is not listed is as wrong as one that is missing.
"""

import concurrent.futures
import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from typing import Any

from zaya_jax.checkpoint import errors, seal_key
from zaya_jax.runtime import durable

NAME = 'SEAL.json'

_LARGEST_JSON = 2**26  # Bytes: thousands of processes write one of a tenth.
_MOST_THREADS = 8  # hashlib lets go of the interpreter.
_PLAIN = re.compile(r'[\w.\-]+', re.ASCII)
_CODE = ('.pkl', '.pickle', '.pt', '.pth', '.py', '.pyc', '.so', '.npy', '.npz')

Files = dict[str, list[Any]]  # Name with '/': [bytes, SHA-256 in hex].
_known: dict[str, dict[str, Any]] = {}  # What `remember` was told.


class BrokenError(errors.CheckpointError):
  """A checkpoint that is not what was sealed.

  Attributes:
    reason: one word: unsealed, seal, key, kind, name, missing, extra, size,
      hash, json, fingerprint, run or zombie.
    what: is wrong, with the name of the file.
  """

  def __init__(self, directory: str, reason: str, what: str):
    if reason == 'unsealed':
      text = (
        f'Checkpoint {directory} has no seal: {what}. If you trust it, seal it '
        'with --mode=checkpoints --checkpoint.action=seal --source='
        f'{directory}'
      )
    elif reason in ('run', 'zombie'):
      text = f'Checkpoint {directory} is not of this run ({what})'
    else:
      text = f'Checkpoint {directory} is damaged ({what}); use an older one'
    super().__init__(f'{text}.')
    self.reason, self.what = reason, what


def write(
  directory: str, facts: Mapping[str, Any], *, known: Files | None = None
) -> dict[str, Any]:
  """Seals a directory; all of it is on disk when this returns.

  Args:
    directory: with all its files; a seal that it has is replaced.
    facts: what else the seal says, all of it JSON: step, time, fingerprint.
    known: of files that others have hashed and synced (`digest`).

  Returns:
    What the seal says: the facts, and 'files'.

  Raises:
    BrokenError: if a known file is missing or has another size, or there is
      something that is no plain file.
    OSError: if it cannot be written.
  """
  sizes = _scan(directory)
  known = known or {}
  for name, (size, _) in known.items():
    if sizes.get(name) != size:
      raise BrokenError(directory, 'size', f'{name} was written only in part')
  own = [name for name in sizes if name not in known]
  body = {**facts, 'files': {**known, **digest(directory, own, sync=True)}}
  for folder, _, _ in os.walk(directory, topdown=False):
    durable.sync(folder)
  text = _text(body, seal_key.sign(_canonical(body)))
  _known.pop(directory, None)
  durable.replace(os.path.join(directory, NAME), text)
  return body


def digest(directory: str, names: list[str], *, sync: bool = False) -> Files:
  """The size and hash of these files; `sync` also forces them to disk."""

  def one(name):
    with open(os.path.join(directory, name), 'rb') as file:
      if sync:
        os.fsync(file.fileno())
      found = hashlib.file_digest(file, 'sha256')
      return [file.tell(), found.hexdigest()]

  threads = min(_MOST_THREADS, os.cpu_count() or 1)
  with concurrent.futures.ThreadPoolExecutor(threads) as pool:
    return dict(zip(names, pool.map(one, names), strict=True))


def read(directory: str) -> dict[str, Any]:
  """What the seal of a checkpoint says; its files are not looked at.

  Raises:
    BrokenError: if there is none, it was changed, or made without the key.
  """
  path = os.path.join(directory, NAME)
  if not os.path.lexists(path):
    raise BrokenError(
      directory, 'unsealed', 'it is half written, or older than seals'
    )
  try:
    body = _parse(directory, path)
  except RecursionError as error:
    raise _too_deep(directory, NAME) from error
  except OSError as error:  # It is being removed.
    raise BrokenError(directory, 'missing', errors.cause(error)) from error
  for name, entry in body['files'].items():
    _check_name(directory, name)
    if type(entry) is not list or [*map(type, entry)] != [int, str]:
      raise BrokenError(directory, 'seal', f'{NAME} says nonsense of {name!r}')
  return body


def verify(
  directory: str, *, contents: bool = True, share: tuple[int, int] = (0, 1)
) -> dict[str, Any]:
  """What the seal says, if the checkpoint is still exactly that.

  Args:
    directory: a checkpoint.
    contents: also hashes the files, not only their names and sizes.
    share: (index, count): hashes only the index-th of `count` parts of the
      files, so that `count` processes together read each once.

  Raises:
    BrokenError: naming the first file that differs.
  """
  body = read(directory)
  try:
    files, sizes = body['files'], _scan(directory)
  except OSError as error:  # It is being removed, or the disk is dying.
    raise BrokenError(directory, 'missing', errors.cause(error)) from error
  for names, reason, what in (
    (files.keys() - sizes.keys(), 'missing', 'missing'),
    (sizes.keys() - files.keys(), 'extra', 'not part of it'),
  ):
    if names:
      raise BrokenError(directory, reason, f'{min(names)} is {what}')
  for name, (size, _) in files.items():
    if sizes[name] != size:
      what = f'{name} has {sizes[name]} bytes, not {size}'
      raise BrokenError(directory, 'size', what)
  if contents:
    index, count = share
    names = sorted(files)[index::count]
    try:
      found = digest(directory, names)
    except OSError as error:
      raise BrokenError(directory, 'hash', errors.cause(error)) from error
    for name in names:
      if found[name] != files[name]:
        raise BrokenError(directory, 'hash', f'{name} has changed')
  return body


def identity(body: Mapping[str, Any]) -> str:
  """A hash of what was sealed; it stays when a seal is amended or renewed."""
  whole = _canonical([body.get('step'), body['files']])
  return hashlib.sha256(whole).hexdigest()


def short_print(prints: Mapping[str, str], field: str) -> str:
  """12 digits for the values of a field of a state, on whatever mesh.

  Args:
    prints: the fingerprints of its arrays by path.
    field: for example 'opt_state'.
  """
  own = {k: v for k, v in prints.items() if k.split('/')[0] == field}
  return hashlib.sha256(_canonical(own)).hexdigest()[:12]


def key_id(directory: str) -> str | None:
  """The id of the key of a seal, '' if that has none; None: it has no key."""
  whole = load_json(directory, NAME)
  return whole.get('key', '') if 'hmac' in whole else None


def remember(directory: str, body: dict[str, Any]) -> None:
  """Has `verified` and `load_json` hold a checkpoint to what was verified."""
  _known[directory] = body


def verified(directory: str) -> dict[str, Any]:
  """What the seal said when the checkpoint was verified; else what it says.

  Raises:
    BrokenError: as `read`.
  """
  return _known.get(directory) or read(directory)


def load_json(directory: str, name: str) -> Any:
  """Reads JSON that may be malicious: bounded in size and depth.

  Raises:
    BrokenError: if it is larger than any real one, nested without end, no JSON,
      or not what was hashed when the checkpoint was verified.
  """
  path = os.path.join(directory, name)
  try:
    size = os.stat(path, follow_symlinks=False).st_size
    if size > _LARGEST_JSON:
      raise BrokenError(directory, 'json', f'{name} has {size:,} bytes')
    with open(path, 'rb') as file:
      content = file.read()
    wanted = _known.get(directory, {}).get('files', {}).get(name)
    hashed = [len(content), hashlib.sha256(content).hexdigest()]
    if wanted not in (None, hashed):
      raise BrokenError(directory, 'hash', f'{name} has changed')
    return json.loads(content)
  except RecursionError as error:
    raise _too_deep(directory, name) from error
  except (OSError, ValueError) as error:
    why = f'{name}: {errors.cause(error)}'
    raise BrokenError(directory, 'json', why) from error


def _parse(directory: str, path: str) -> dict[str, Any]:
  if not stat.S_ISREG(os.lstat(path).st_mode):
    raise BrokenError(directory, 'kind', f'{NAME} is no plain file')
  whole = load_json(directory, NAME)
  body = whole.get('body') if isinstance(whole, dict) else None
  if not isinstance(body, dict) or not isinstance(body.get('files'), dict):
    raise BrokenError(directory, 'seal', f'{NAME} is not a seal')
  with open(path, 'rb') as file:
    raw = file.read()
  signature = {name: whole[name] for name in ('hmac', 'key') if name in whole}
  if raw != _text(body, signature):
    raise BrokenError(directory, 'seal', f'{NAME} has changed')
  hmac, key = signature.get('hmac'), signature.get('key', '')
  if not seal_key.accepts(_canonical(body), hmac, key):
    what = f'{NAME} was not made with a key of {seal_key.where()}'
    raise BrokenError(directory, 'key', f'{what}{key and f", but with {key}"}')
  return body


def _text(body: dict[str, Any], signature: dict[str, Any]) -> bytes:
  """The only spelling of a seal."""
  hashed = hashlib.sha256(_canonical(body)).hexdigest()
  return _canonical({'body': body, 'sha256': hashed, **signature})


def _canonical(value: Any) -> bytes:
  return json.dumps(value, sort_keys=True, separators=(',', ':')).encode()


def _scan(directory: str) -> dict[str, int]:
  """The sizes of all files but the seal; nothing else may be there."""
  found, folders = {}, ['']
  while folders:
    prefix = folders.pop()
    for entry in list(os.scandir(os.path.join(directory, prefix))):
      name = prefix + entry.name
      if entry.is_dir(follow_symlinks=False):
        folders.append(f'{name}/')
      elif entry.is_file(follow_symlinks=False):
        found[name] = entry.stat(follow_symlinks=False).st_size
      else:
        raise BrokenError(directory, 'kind', f'{name} is no plain file')
  own = (NAME, f'{NAME}.partial')  # The next one, if this was killed then.
  return {name: size for name, size in found.items() if name not in own}


def _check_name(directory: str, name: str) -> None:
  """Refuses names that lead out of the checkpoint, or to code."""
  parts = name.split('/')
  if not all(_PLAIN.fullmatch(part) for part in parts) or {'.', '..'} & {
    *parts
  }:
    raise BrokenError(directory, 'name', f'{NAME} lists {name[:200]!r}')
  if name.endswith(_CODE):
    raise BrokenError(directory, 'name', f'{name} is of a kind never read')


def _too_deep(directory: str, name: str) -> BrokenError:
  return BrokenError(directory, 'json', f'{name} is nested too deep')
