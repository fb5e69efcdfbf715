# SPDX-License-Identifier: Apache-2.0
"""`manifest.json`: what a folder of prepared shards holds, and proof of it.

The manifest names each shard with its size and hash, so a shard that is
missing, cut, exchanged or added is found before the first step. It carries a
checksum of its own, and its names never lead out of the folder.
"""

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
from typing import Any

from pipelines import chat, errors, tokenizer, tokenizer_base, typed_json

FILE_NAME = 'manifest.json'
# Versions of the format: without conversations, and with some.
PLAIN, MASKED = 1, 2
SUFFIX = '.array_record'

_AGAIN = 'copy it from the original, or prepare the data again'
_MAX_BYTES = 2**26  # A larger file is not one of ours: do not parse it.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
  """One ArrayRecord file."""

  name: str
  bytes: int
  sha256: str
  records: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
  """The train or the val part.

  Attributes:
    documents: how many.
    tokens: with the padding between conversations, without that of the last
      record.
    bytes: of the text in UTF-8; of conversations, of what counts in the loss.
    bytes_per_token: of the tokens that count in the loss.
    zlib_bits_per_byte: what `zlib -9` needs for these bytes; val only.
    shards: files, in order.
    counted_tokens: tokens that count in the loss; None: all, and no record has
      a mask.
  """

  documents: int
  tokens: int
  bytes: int
  bytes_per_token: float
  zlib_bits_per_byte: float | None
  shards: tuple[Shard, ...]
  counted_tokens: int | None = None

  @property
  def records(self) -> int:
    """Records of all shards."""
    return sum(shard.records for shard in self.shards)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """What `prepare` was asked for.

  `window_tokens`: windows that no conversation crosses that fits into one;
  None: there are no conversations.
  """

  input: str
  text_field: str
  tokenizer: str
  train_tokenizer: int
  val_fraction: float
  record_tokens: int
  shard_tokens: int
  window_tokens: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
  """The content of a folder of prepared shards.

  Attributes:
    format_version: of this file and of the records.
    settings: what `prepare` was asked for.
    input_sha256: hash of the names and sizes of the input files.
    num_sources: files that gave text.
    sources: their names, the first thousand.
    num_skipped: files and rows that were left out.
    skipped: their names and the reason, the first thousand.
    tokenizer: name of the tokenizer.
    tokenizer_sha256: its hash.
    vocab_size: one more than the largest id.
    pad_id: id that fills the last record.
    bos_id: id that starts each document.
    eos_id: id that ends generation.
    dtype: of the tokens on disk, 'uint16' or 'uint32', little endian.
    record_tokens: tokens in a record.
    splits: 'train' and, unless nothing is held out, 'val'.
    template_sha256: of the chat template; None: there are no conversations.
  """

  format_version: int
  settings: Settings
  input_sha256: str
  num_sources: int
  sources: tuple[str, ...]
  num_skipped: int
  skipped: dict[str, str]
  tokenizer: str
  tokenizer_sha256: str
  vocab_size: int
  pad_id: int
  bos_id: int
  eos_id: int
  dtype: str
  record_tokens: int
  splits: dict[str, Split]
  template_sha256: str | None = None

  @property
  def sha256(self) -> str:
    """Hex digest of the whole content: the identity of the data."""
    return hashlib.sha256(_canonical(typed_json.plain(self))).hexdigest()

  def check_tokenizer(self, other: tokenizer_base.Tokenizer) -> None:
    """Refuses a tokenizer that is not the one of the shards."""
    if other.sha256 != self.tokenizer_sha256:
      raise errors.DataError(
        f'--data.tokenizer={other.name} (sha256 {other.sha256[:12]}) is not '
        f'the tokenizer of the shards, {self.tokenizer} (sha256 '
        f'{self.tokenizer_sha256[:12]}); use that one or prepare again.',
        errors.UNUSABLE,
      )

  def check_template(self, other: tokenizer_base.Tokenizer) -> None:
    """Refuses another chat template than wrote the conversations."""
    expected = self.template_sha256
    if expected and other.template.sha256 != expected:
      raise errors.DataError(
        f'The chat template of {other.name} is not the one that wrote the '
        'conversations of the shards; use that one or prepare again.',
        errors.UNUSABLE,
      )


def write(manifest: Manifest, directory: pathlib.Path) -> None:
  """Writes `manifest.json` and syncs it to disk."""
  content = {'sha256': manifest.sha256, **typed_json.plain(manifest)}
  with open(directory / FILE_NAME, 'w', encoding='utf-8') as f:
    json.dump(content, f, indent=1)
    f.write('\n')
    f.flush()
    os.fsync(f.fileno())


def load(directory: str | os.PathLike[str]) -> Manifest:
  """Reads a manifest and checks names and sizes of all files.

  Raises:
    DataError: exit code 3, naming the file that is missing, added or damaged.
  """
  directory = pathlib.Path(directory)
  manifest = _parse(directory / FILE_NAME)
  shards = [s for split in manifest.splits.values() for s in split.shards]
  for shard in shards:
    _check_shard(directory, shard)
  names = {shard.name for shard in shards}
  for path in sorted(directory.glob(f'*{SUFFIX}')):
    if path.name not in names:
      raise _unusable(path, f'is not listed in {FILE_NAME}; remove it')
  return manifest


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
    path = pathlib.Path(directory) / shard.name
    if file_sha256(path) != shard.sha256:
      raise _unusable(
        path,
        f'differs from its sha256 in {FILE_NAME}: damaged or exchanged; '
        f'{_AGAIN}',
      )
  return manifest


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


def _canonical(content: Any) -> bytes:
  return json.dumps(content, sort_keys=True).encode()


def _unusable(path: pathlib.Path, what: str) -> errors.DataError:
  return errors.DataError(f'{path} {what}.', errors.UNUSABLE)


def _parse(path: pathlib.Path) -> Manifest:
  again = f'; prepare the data again into an empty folder: {path.parent}'
  if not path.is_file():
    raise _unusable(path, f'is missing: not a folder of prepared data{again}')
  if path.stat().st_size > _MAX_BYTES:
    raise _unusable(path, f'is larger than {_MAX_BYTES} bytes{again}')
  try:
    content = json.loads(path.read_bytes())
    checksum = content.pop('sha256')
    if content['format_version'] not in (PLAIN, MASKED):
      raise _unusable(
        path,
        f'has format version {content["format_version"]}, this program '
        f'reads {PLAIN} and {MASKED}{again}',
      )
    result = typed_json.build(Manifest, content)
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
  if path.is_symlink():
    raise _unusable(path, 'is a symbolic link; shards must be files')
  if not path.is_file():
    raise _unusable(path, f'is listed in {FILE_NAME} but missing; {_AGAIN}')
  size = path.stat().st_size
  if size != shard.bytes:
    raise _unusable(
      path,
      f'has {size} bytes, {FILE_NAME} says {shard.bytes}: damaged; {_AGAIN}',
    )
