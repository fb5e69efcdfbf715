# SPDX-License-Identifier: Apache-2.0
"""`manifest.json`: what a folder of prepared shards holds, and proof of it.

The manifest names each shard with its size and hash, so a shard that is
missing, cut, exchanged or added is found before the first step. It carries a
checksum of its own, and its names never lead out of the folder.
"""

import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Container, Iterable

from pipelines import chat, errors, store, tokenizer, typed_json
from pipelines.shards import content, copies
from pipelines.tokenizer import base as tokenizer_base

FILE_NAME = content.FILE_NAME
# Versions of the format: plain text, with conversations, and either with the
# list of its documents, which is what is written today.
PLAIN, MASKED, DOCUMENTED = 1, 2, 3
SUFFIX = '.array_record'
DOCUMENTS_SUFFIX = '.documents'
DOCUMENT_BYTES = 24  # Of a row of a sidecar: see `pipelines.shards.documents`.
FILES_NAME = 'files.jsonl'

Files = content.Files
Manifest = content.Manifest
Settings = content.Settings
Shard = content.Shard
Split = content.Split
file_sha256 = content.file_sha256

_AGAIN = 'copy it from the original, or prepare the data again'
_MAX_BYTES = 2**26  # A larger file is not one of ours: do not parse it.


def write(manifest: Manifest, directory: pathlib.Path) -> None:
  """Writes `manifest.json` and syncs it to disk."""
  saved = {'sha256': manifest.sha256, **typed_json.plain(manifest)}
  _write_lines(directory / FILE_NAME, [json.dumps(saved, indent=1)])


def write_files(names: Iterable[str], directory: pathlib.Path) -> Files:
  """Writes `files.jsonl`, to which the sidecars of documents point."""
  path = directory / FILES_NAME
  count = _write_lines(path, map(json.dumps, names))
  size = path.stat().st_size
  return Files(count=count, bytes=size, sha256=file_sha256(path))


def read(directory: str | os.PathLike[str]) -> Manifest:
  """Reads a manifest, once as long as it stays as is, and nothing else.

  Args:
    directory: a folder of this machine, or the URL of one.

  Raises:
    DataError: exit code 3, if it is missing or damaged; 2, if there is none
      behind the URL.
  """
  return read_file(copies.folder(directory) / FILE_NAME)


def exists(directory: str | os.PathLike[str]) -> bool:
  """Whether there is a manifest in a folder, or behind its URL."""
  if store.is_url(directory):
    return copies.exists(str(directory))
  return os.path.exists(os.path.join(directory, FILE_NAME))


def read_file(path: pathlib.Path) -> Manifest:
  """Like `read`, of a file of any name."""
  if not path.is_file():
    raise _unusable(
      path, f'is missing: not a folder of prepared data{_prepare_again(path)}'
    )
  stat = path.stat()
  return _parse(path, stat.st_size, stat.st_mtime_ns, stat.st_ino)


def load(directory: str | os.PathLike[str]) -> Manifest:
  """Reads a manifest and checks names and sizes of all files.

  Raises:
    DataError: exit code 3, naming the file that is missing, added or damaged.
  """
  manifest = read(directory)
  scan(directory, manifest)
  return manifest


def scan(
  directory: str | os.PathLike[str], manifest: Manifest
) -> dict[str, tuple[int, int]]:
  """Looks at the files that a manifest lists: all there with their sizes.

  Returns:
    By name, in the order of the manifest, what tells a file from another in its
    place: its number in the file system, and when it was written, in ns; of
    what is behind a URL 0 and 0.

  Raises:
    DataError: exit code 3, naming the file that is missing, added or damaged.
  """
  sizes = dict(_sizes(manifest))
  for name in sizes:
    if '/' in name or name in ('', '.', '..'):
      path = os.path.join(directory, name)
      raise _unusable(path, 'leads out of the folder of its manifest')
  if store.is_url(directory):
    found = copies.sizes(str(directory))
    there = {name: (size, 0, 0) for name, size in found.items()}
  else:
    there = _entries(directory, sizes)
  for name in [*sizes, *there]:
    path = os.path.join(directory, name)
    if name not in there:
      raise _unusable(path, f'is listed in {FILE_NAME} but missing; {_AGAIN}')
    if name not in sizes and name.endswith(SUFFIX):
      raise _unusable(path, f'is not listed in {FILE_NAME}; remove it')
    size, expected = there[name][0], sizes.get(name)
    if expected not in (None, size):
      raise _unusable(
        path,
        f'has {size} bytes, {FILE_NAME} says {expected}: damaged; {_AGAIN}',
      )
  return {name: there[name][1:] for name in sizes}


def verify(
  directory: str | os.PathLike[str], *, part: int = 0, parts: int = 1
) -> Manifest:
  """Like `load`, and compares the hashes of the files.

  Args:
    directory: folder of prepared shards.
    part: which share of the shards is hashed.
    parts: number of shares; several processes hash one each.
  """
  manifest = load(directory)
  for name, sha256 in list(hashes(manifest).items())[part::parts]:
    with copies.held(directory, name, sha256) as path:
      check_sha256(path, sha256)
  return manifest


def hashes(manifest: Manifest) -> dict[str, str]:
  """The sha256 of each file that a manifest lists, by name."""
  found = {}
  for shard in _shards(manifest):
    found[shard.name] = shard.sha256
    if shard.documents_sha256:
      found[documents_name(shard)] = shard.documents_sha256
  if manifest.files:
    found[FILES_NAME] = manifest.files.sha256
  return found


def documents_name(shard: Shard) -> str:
  """The sidecar of a shard."""
  return shard.name.removesuffix(SUFFIX) + DOCUMENTS_SUFFIX


def check_sha256(path: pathlib.Path, expected: str) -> None:
  """Refuses a file that is not the one of the manifest."""
  if file_sha256(path) != expected:
    raise _unusable(
      path,
      f'differs from its sha256 in {FILE_NAME}: damaged or exchanged; {_AGAIN}',
    )


def load_tokenizer(
  directory: str | os.PathLike[str],
) -> tokenizer_base.Tokenizer:
  """Loads the tokenizer of a folder of prepared shards, checking its hash."""
  manifest = read(directory)
  directory = copies.folder(directory)
  if manifest.tokenizer == 'bytes':
    result = tokenizer.load('bytes')
  else:
    path = directory / tokenizer.FILE_NAME
    if not path.is_file():
      raise _unusable(path, f'is missing; {_AGAIN}')
    beside = chat.read_files(directory)
    result = tokenizer.from_json(path.read_bytes(), manifest.tokenizer, beside)
    if result.sha256 != manifest.tokenizer_sha256:
      raise _unusable(path, f'is not the tokenizer of the shards; {_AGAIN}')
    manifest.check_template(result)
  return result


def _write_lines(path: pathlib.Path, lines: Iterable[str]) -> int:
  count = 0
  with open(path, 'w', encoding='utf-8') as f:
    for line in lines:
      f.write(f'{line}\n')
      count += 1
    f.flush()
    os.fsync(f.fileno())
  return count


def _unusable(path: pathlib.Path | str, what: str) -> errors.DataError:
  return errors.DataError(f'{path} {what}.', errors.UNUSABLE)


def _shards(manifest: Manifest) -> Iterable[Shard]:
  for split in manifest.splits.values():
    yield from split.shards


def _sizes(manifest: Manifest) -> Iterable[tuple[str, int]]:
  """Name and bytes of each file."""
  for shard in _shards(manifest):
    yield shard.name, shard.bytes
    if shard.documents is not None:
      yield documents_name(shard), shard.documents * DOCUMENT_BYTES
  if manifest.files:
    yield FILES_NAME, manifest.files.bytes


def _prepare_again(path: pathlib.Path) -> str:
  return f'; prepare the data again into an empty folder: {path.parent}'


@functools.lru_cache(64)
def _parse(path: pathlib.Path, size: int, *version: int) -> Manifest:
  del version  # Only there to be part of the key.
  again = _prepare_again(path)
  if size > _MAX_BYTES:
    raise _unusable(path, f'is larger than {_MAX_BYTES} bytes{again}')
  try:
    saved = json.loads(path.read_text(encoding='utf-8'))
    checksum = saved.pop('sha256')
    if saved['format_version'] not in (PLAIN, MASKED, DOCUMENTED):
      raise _unusable(
        path,
        f'has format version {saved["format_version"]}, this program '
        f'reads {PLAIN} to {DOCUMENTED}{again}',
      )
    text = json.dumps(saved, sort_keys=True).encode()
    if hashlib.sha256(text).hexdigest() != checksum:
      raise _unusable(path, f'does not match its own checksum{again}')
    del text
    result = typed_json.build(Manifest, saved)
  except (
    AttributeError,
    KeyError,
    RecursionError,
    TypeError,
    UnicodeDecodeError,
    json.JSONDecodeError,
  ) as error:
    raise _unusable(path, f'is damaged ({error}){again}') from error
  vars(result)['sha256'] = checksum  # It would write all of it once more.
  return result


def _entries(
  directory: str | os.PathLike[str], names: Container[str]
) -> dict[str, tuple[int, int, int]]:
  """Size, number and time of what is in a folder."""
  found = {}
  with os.scandir(directory) as entries:
    for entry in entries:
      if entry.name in names and entry.is_symlink():
        raise _unusable(entry.path, 'is a symbolic link; shards must be files')
      stat = entry.stat(follow_symlinks=False)
      # A folder has no size that a manifest could say.
      size = stat.st_size if entry.is_file() else -1
      found[entry.name] = size, stat.st_ino, stat.st_mtime_ns
  return found
