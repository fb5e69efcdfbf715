# SPDX-License-Identifier: Apache-2.0
"""What a manifest says, as dataclasses."""

import dataclasses
import functools
import hashlib
import json
import pathlib

from pipelines import errors, typed_json
from pipelines.tokenizer import base as tokenizer_base

FILE_NAME = 'manifest.json'


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
  """One ArrayRecord file, and the documents that begin in it.

  Attributes:
    name: of the file.
    bytes: its size.
    sha256: its hash.
    records: how many.
    documents: rows of its sidecar (see `documents`); None: none was written.
    documents_sha256: hash of the sidecar.
  """

  name: str
  bytes: int
  sha256: str
  records: int
  documents: int | None = None
  documents_sha256: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Files:
  """`files.jsonl`: the names of all input files, a JSON string a line."""

  count: int
  bytes: int
  sha256: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
  """The train or the val part.

  Attributes:
    documents: how many.
    tokens: with the padding between conversations, without that of the last
      record.
    bytes: of the text in UTF-8; of conversations, of what counts in the loss.
    bytes_per_token: of the tokens that count in the loss.
    zlib_bits_per_byte: what `zlib -9` needs for the first 16 MiB of these; val
      only.
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

  As the arguments of `prepare`; `window_tokens` is None where there are no
  conversations.
  """

  input: str
  text_field: str
  tokenizer: str
  train_tokenizer: int
  val_fraction: float
  record_tokens: int
  shard_tokens: int
  window_tokens: int | None = None
  val_tokens: int = 0
  bad_rows: float = 0.0
  dedup: bool = True
  decontaminate: tuple[str, ...] = ()
  trim: bool = False

  @property
  def window(self) -> int:
    """Tokens that a conversation of at most as many does not cross."""
    return self.window_tokens or self.record_tokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
  """The content of a folder of prepared shards.

  Attributes:
    format_version: of this file and of the records.
    settings: what `prepare` was asked for.
    input_sha256: hash of the names and sizes of the input files.
    num_sources: files that gave text.
    sources: their names, the first thousand.
    num_skipped: files and rows that were left out, but for duplicates.
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
    files: the list that sidecars of documents point into; None: there are
      neither.
    left_out: how many documents and rows for which reason, duplicates too.
    pairs: whether each document is two conversations, one behind the other:
      with the answer that was chosen, and with the one that was rejected.
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
  files: Files | None = None
  left_out: dict[str, int] | None = None
  pairs: bool = False

  @functools.cached_property
  def sha256(self) -> str:
    """Hex digest of the whole content: the identity of the data."""
    content = json.dumps(typed_json.plain(self), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()

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


def file_sha256(path: pathlib.Path) -> str:
  """Hex digest of a file."""
  with open(path, 'rb') as f:
    return hashlib.file_digest(f, 'sha256').hexdigest()
