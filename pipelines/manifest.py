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
from collections.abc import Iterable

from pipelines import chat, errors, tokenizer, tokenizer_base, typed_json
from pipelines import manifest_content as content

FILE_NAME = 'manifest.json'
# Versions of the format: plain text, with conversations, and either with the
# list of its documents, which is what is written today.
PLAIN, MASKED, DOCUMENTED = 1, 2, 3
SUFFIX = '.array_record'
DOCUMENTS_SUFFIX = '.documents'
DOCUMENT_BYTES = 24  # Of a row of a sidecar: see `pipelines.documents`.
FILES_NAME = 'files.jsonl'

Files = content.Files
Manifest = content.Manifest
Settings = content.Settings
Shard = content.Shard
Split = content.Split

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


def load(directory: str | os.PathLike[str]) -> Manifest:
  """Reads a manifest and checks names and sizes of all files.

  Raises:
    DataError: exit code 3, naming the file that is missing, added or damaged.
  """
  if '://' in str(directory):
    raise errors.DataError(
      f'{directory} is not a folder of this machine; shards are read from one: '
      'copy them there, or mount the store.'
    )
  directory = pathlib.Path(directory)
  manifest = read(directory / FILE_NAME)
  shards = [s for split in manifest.splits.values() for s in split.shards]
  for shard in shards:
    _check_shard(directory, shard)
  if manifest.files:
    _check_file(directory / FILES_NAME, manifest.files.bytes)
  names = {shard.name for shard in shards}
  for path in sorted(directory.glob(f'*{SUFFIX}')):
    if path.name not in names:
      raise _unusable(path, f'is not listed in {FILE_NAME}; remove it')
  return manifest


def read(path: pathlib.Path) -> Manifest:
  """Reads a manifest, whatever lies beside it."""
  return _parse(path)


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
  shards = [s for split in manifest.splits.values() for s in split.shards]
  for shard in shards[part::parts]:
    check_sha256(pathlib.Path(directory) / shard.name, shard.sha256)
    if shard.documents is not None:
      path = documents_path(directory, shard)
      check_sha256(path, shard.documents_sha256)
  if manifest.files:
    check_sha256(pathlib.Path(directory, FILES_NAME), manifest.files.sha256)
  return manifest


def documents_path(
  directory: str | os.PathLike[str], shard: Shard
) -> pathlib.Path:
  """The sidecar of a shard."""
  stem = shard.name.removesuffix(SUFFIX)
  return pathlib.Path(directory, stem + DOCUMENTS_SUFFIX)


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
  directory = pathlib.Path(directory)
  manifest = load(directory)
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


def file_sha256(path: pathlib.Path) -> str:
  """Hex digest of a file, read once per process as long as it stays as is."""
  stat = path.stat()
  return _file_sha256(path, stat.st_size, stat.st_mtime_ns, stat.st_ino)


@functools.cache
def _file_sha256(path: pathlib.Path, *version: int) -> str:
  del version  # Only there to be part of the key.
  with open(path, 'rb') as f:
    return hashlib.file_digest(f, 'sha256').hexdigest()


def _write_lines(path: pathlib.Path, lines: Iterable[str]) -> int:
  count = 0
  with open(path, 'w', encoding='utf-8') as f:
    for line in lines:
      f.write(f'{line}\n')
      count += 1
    f.flush()
    os.fsync(f.fileno())
  return count


def _unusable(path: pathlib.Path, what: str) -> errors.DataError:
  return errors.DataError(f'{path} {what}.', errors.UNUSABLE)


def _parse(path: pathlib.Path) -> Manifest:
  again = f'; prepare the data again into an empty folder: {path.parent}'
  if not path.is_file():
    raise _unusable(path, f'is missing: not a folder of prepared data{again}')
  if path.stat().st_size > _MAX_BYTES:
    raise _unusable(path, f'is larger than {_MAX_BYTES} bytes{again}')
  try:
    saved = json.loads(path.read_bytes())
    checksum = saved.pop('sha256')
    if saved['format_version'] not in (PLAIN, MASKED, DOCUMENTED):
      raise _unusable(
        path,
        f'has format version {saved["format_version"]}, this program '
        f'reads {PLAIN} to {DOCUMENTED}{again}',
      )
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
  if result.sha256 != checksum:
    raise _unusable(path, f'does not match its own checksum{again}')
  return result


def _check_shard(directory: pathlib.Path, shard: Shard) -> None:
  path = directory / shard.name
  if pathlib.PurePath(shard.name).name != shard.name:
    raise _unusable(path, 'leads out of the folder of its manifest')
  _check_file(path, shard.bytes)
  if shard.documents is not None:
    _check_file(
      documents_path(directory, shard), shard.documents * DOCUMENT_BYTES
    )


def _check_file(path: pathlib.Path, expected: int) -> None:
  if path.is_symlink():
    raise _unusable(path, 'is a symbolic link; shards must be files')
  if not path.is_file():
    raise _unusable(path, f'is listed in {FILE_NAME} but missing; {_AGAIN}')
  size = path.stat().st_size
  if size != expected:
    raise _unusable(
      path,
      f'has {size} bytes, {FILE_NAME} says {expected}: damaged; {_AGAIN}',
    )
