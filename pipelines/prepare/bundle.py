# SPDX-License-Identifier: Apache-2.0
"""Cuts a stream of tokens into records and records into shards.

One record bundles many tokens (`group_size:1`): reading one at random then
costs one read of a useful size. A record with a conversation in it has one byte
more for each token, behind all tokens: the flags of `pipelines.pack`.
"""

import contextlib
import dataclasses
import os
import pathlib
import zlib
from collections.abc import Iterator

import numpy as np
from array_record.python import array_record_module

from pipelines import documents, errors, manifest, pack
from pipelines.prepare import tokenize

_OPTIONS = 'group_size:1,zstd:3'


class SplitWriter:
  """Writes the shards of one split into a folder."""

  def __init__(
    self,
    folder: pathlib.Path,
    name: str,
    *,
    dtype: str,
    record_tokens: int,
    shard_tokens: int,
    window_tokens: int,
    pad_id: int,
  ):
    self._folder = folder
    self._name = name
    self._window = window_tokens
    self._pad_id = pad_id
    self._record = np.empty(record_tokens, np.dtype(dtype).newbyteorder('<'))
    self._flags = np.empty(record_tokens, np.uint8)
    self._fill = 0
    self._masked = False  # The record that is being filled.
    self._uncounted = None  # Tokens; a number once there is a conversation.
    self._shard_records = max(1, shard_tokens // record_tokens)
    self._records = []  # Of each shard.
    self._writer: array_record_module.ArrayRecordWriter | None = None
    self._documents: dict[int, list[tuple[int, ...]]] = {}  # By shard.
    self._row: tuple[int, ...] = ()  # Of the last one: start, file, line.
    self._hash = documents.TextHash()
    self._tokens = self._bytes = 0
    self._zlib = zlib.compressobj(9) if name == 'val' else None
    self._zlib_bytes = 0

  def add(self, piece: tokenize.Encoded) -> None:
    """Appends a piece of a document."""
    text = piece.text.encode()
    self._bytes += len(text)
    if self._zlib:
      self._zlib_bytes += len(self._zlib.compress(text))
    flags = np.full(len(piece.ids), pack.COUNTS, np.uint8)
    masked = piece.counts is not None
    if masked:
      flags[:] = piece.counts * np.uint8(pack.COUNTS)
      room = -self._fill % self._window
      if room < len(flags) <= self._window:
        empty = np.full(room, pack.EMPTY, np.uint8)
        self._append(np.full(room, self._pad_id), empty, masked)
    flags[:1] |= pack.BEGINS * piece.begins
    if piece.begins:
      self._end_document()
      self._row = self._tokens, *piece.place
      self._hash = documents.TextHash()
    self._hash.add((piece.whole or piece.text).encode())
    self._append(piece.ids, flags, masked)

  def _append(self, rest: np.ndarray, flags: np.ndarray, masked: bool) -> None:
    self._tokens += len(rest)
    if masked:
      uncounted = np.sum(flags & pack.COUNTS == 0)
      self._uncounted = (self._uncounted or 0) + uncounted
    while len(rest):
      taken = rest[: len(self._record) - self._fill]
      here = slice(self._fill, self._fill + len(taken))
      self._record[here], self._flags[here] = taken, flags[: len(taken)]
      self._masked |= masked
      self._fill += len(taken)
      rest, flags = rest[len(taken) :], flags[len(taken) :]
      if self._fill == len(self._record):
        self._write_record()

  def _end_document(self) -> None:
    if self._row:
      shard = self._row[0] // (len(self._record) * self._shard_records)
      row = *self._row, int(self._hash)
      self._documents.setdefault(shard, []).append(row)

  def close(self) -> manifest.Split | None:
    """Pads the last record and names the shards; None if there was no text."""
    self._end_document()
    if self._fill:
      self._record[self._fill :] = self._pad_id
      self._flags[self._fill :] = 0
      self._write_record()
    self._close_shard()
    if not self._tokens:
      return None
    bits = None
    if self._zlib:
      bits = 8 * (self._zlib_bytes + len(self._zlib.flush())) / self._bytes
    counted = self._tokens - int(self._uncounted or 0)
    return manifest.Split(
      documents=sum(map(len, self._documents.values())),
      tokens=self._tokens,
      counted_tokens=None if self._uncounted is None else counted,
      bytes=self._bytes,
      bytes_per_token=self._bytes / counted,
      zlib_bits_per_byte=bits,
      shards=tuple(map(self._name_shard, range(len(self._records)))),
    )

  def _write_record(self) -> None:
    if self._writer is None:
      path = self._shard_path(len(self._records))
      self._writer = array_record_module.ArrayRecordWriter(str(path), _OPTIONS)
      self._records.append(0)
    with self._one_sentence():
      flags = self._flags.tobytes() if self._masked else b''
      self._writer.write(self._record.tobytes() + flags)
    self._fill, self._masked = 0, False
    self._records[-1] += 1
    if self._records[-1] == self._shard_records:
      self._close_shard()

  def _close_shard(self) -> None:
    if self._writer is None:
      return
    with self._one_sentence():
      self._writer.close()
    self._writer = None
    with open(self._shard_path(len(self._records) - 1), 'rb') as f:
      os.fsync(f.fileno())

  @contextlib.contextmanager
  def _one_sentence(self) -> Iterator[None]:
    # The writer works in the background: a full disk may show at any call.
    try:
      yield
    except RuntimeError as error:
      path = self._shard_path(len(self._records) - 1)
      raise errors.DataError(
        f'writing {path} failed, is the disk full? {error}',
        errors.UNUSABLE,
      ) from error

  def _shard_path(self, index: int) -> pathlib.Path:
    return self._folder / f'{self._name}-{index:05d}'

  def _name_shard(self, index: int) -> manifest.Shard:
    path = self._shard_path(index).rename(
      self._folder / f'{self._name}-{index:05d}-of-{len(self._records):05d}'
      f'{manifest.SUFFIX}'
    )
    shard = manifest.Shard(
      name=path.name,
      bytes=path.stat().st_size,
      sha256=manifest.file_sha256(path),
      records=self._records[index],
    )
    rows = np.array(self._documents.get(index, []), documents.ROW)
    path = manifest.documents_path(self._folder, shard)
    path.write_bytes(rows.tobytes())
    return dataclasses.replace(
      shard, documents=len(rows), documents_sha256=manifest.file_sha256(path)
    )
