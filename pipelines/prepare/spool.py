# SPDX-License-Identifier: Apache-2.0
"""Encoded documents on their way: the files that a unit leaves."""

import os
import pathlib

import numpy as np

from pipelines import pack
from pipelines.prepare import split, tokenize
from pipelines.shards import documents

# A document in a unit. `offset`: byte in `.tokens` where its tokens begin,
# behind which, if it is `masked`, a byte of flags follows for each; `text` and
# `bytes`: where its text is in `.text` (of what counts; held-out documents
# only), and its size; `counted`: tokens that count in the loss; `file`: in the
# unit. Sorted by `hash`, so that units are merged in one pass.
INDEX = np.dtype([
  ('hash', '<u8'), ('offset', '<u8'), ('tokens', '<u8'), ('counted', '<u8'),
  ('bytes', '<u8'), ('text', '<u8'), ('file', '<u4'), ('line', '<u4'),
  ('held_out', 'u1'), ('masked', 'u1'), ('unused', 'V6'),
])  # fmt: skip

_RUN = 2**23  # Tokens that are sorted in memory before they are written.


class _Document:
  """A document whose pieces are still coming."""

  def __init__(self, piece: tokenize.Encoded):
    self.held_out = piece.split == split.VAL
    self.place = piece.place
    self.masked = piece.counts is not None
    self.hash = documents.TextHash()
    self.tokens = self.counted = self.bytes = 0
    self.offset: int | None = None  # Once it is on its way to the disk.
    self.text: int | None = None
    self.parts: list[bytes] = []
    self.texts: list[bytes] = []


class Writer:
  """Writes the documents of a unit, sorted in runs that fit into memory."""

  def __init__(self, stem: pathlib.Path, dtype: str):
    self._stem = stem
    self._dtype = np.dtype(dtype).newbyteorder('<')
    self._files = {s: open(self.path(s), 'wb') for s in ('tokens', 'text')}
    self._document: _Document | None = None
    self._run: list[_Document] = []
    self._run_tokens = 0
    self._rows: list[np.ndarray] = []
    self.documents = self.tokens = self.pairs = 0

  def __enter__(self):
    return self

  def __exit__(self, kind, *unused):
    for file in self._files.values():
      file.close()
    if kind:
      for suffix in (*self._files, 'index'):
        self.path(suffix).unlink(missing_ok=True)

  def path(self, suffix: str) -> pathlib.Path:
    """Where a file is until the unit is whole."""
    return self._stem.with_name(f'{self._stem.name}.{suffix}')

  def add(self, piece: tokenize.Encoded) -> None:
    """Appends a piece of a document."""
    if piece.begins:
      self._end()
      self._document = _Document(piece)
    document = self._document
    text = piece.text.encode()
    document.hash.add(piece.whole.encode() if piece.whole else text)
    document.tokens += len(piece.ids)
    document.bytes += len(text)
    document.parts.append(piece.ids.astype(self._dtype).tobytes())
    document.counted += len(piece.ids)
    if piece.counts is not None:
      flags = piece.counts * np.uint8(pack.COUNTS)
      flags[:1] |= pack.BEGINS
      if piece.second:
        flags[piece.second] |= pack.BEGINS
        self.pairs += 1
      document.parts.append(flags.astype(np.uint8).tobytes())
      document.counted += int(piece.counts.sum()) - len(piece.ids)
    if document.held_out:
      document.texts.append(text)
    if document.offset is not None or document.tokens >= _RUN:
      if document.offset is None:
        self._flush()
      self._write(document)

  def close(self) -> None:
    """Writes what is left, and the index."""
    self._end()
    self._flush()
    found = np.concatenate([np.empty(0, INDEX), *self._rows])
    found = found[np.lexsort((found['line'], found['file'], found['hash']))]
    with open(self.path('index'), 'wb') as file:
      file.write(found.tobytes())
      for each in (file, *self._files.values()):
        each.flush()
        os.fsync(each.fileno())

  def _end(self) -> None:
    document, self._document = self._document, None
    if document is None:
      return
    self.documents += 1
    self.tokens += document.tokens
    if document.offset is not None:
      self._rows.append(_index_row([document]))
      return
    self._run.append(document)
    self._run_tokens += document.tokens
    if self._run_tokens >= _RUN:
      self._flush()

  def _flush(self) -> None:
    if not self._run:
      return
    self._run.sort(key=lambda document: int(document.hash))
    for document in self._run:
      self._write(document)
    self._rows.append(_index_row(self._run))
    self._run, self._run_tokens = [], 0

  def _write(self, document: _Document) -> None:
    tokens, text = self._files['tokens'], self._files['text']
    if document.offset is None:
      document.offset, document.text = tokens.tell(), text.tell()
    tokens.writelines(document.parts)
    text.writelines(document.texts)
    document.parts, document.texts = [], []


def _index_row(found: list[_Document]) -> np.ndarray:
  rows = [
    (
      int(d.hash), d.offset, d.tokens, d.counted, d.bytes, d.text, *d.place,
      d.held_out, d.masked, b'',
    )
    for d in found
  ]  # fmt: skip
  return np.array(rows, INDEX)
