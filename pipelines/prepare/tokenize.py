# SPDX-License-Identifier: Apache-2.0
"""Trains the tokenizer and encodes text in batches."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from pipelines import tokenizer as tokenizer_lib
from pipelines.prepare import engine as engine_lib
from pipelines.prepare import split
from pipelines.prepare.input import read, rows

_BATCH = 2**22  # Characters; enough to keep all cores of the library busy.
_TRAINING = 2**28  # Characters; more does not change a vocabulary.


@dataclasses.dataclass(frozen=True)
class Encoded:
  """A piece of a document.

  Attributes:
    split: 'train' or 'val'.
    begins: whether the document begins here; then the `ids` of plain text start
      with BOS, those of a conversation as its template says.
    text: the piece; of a conversation, what counts in the loss.
    ids: int32 [N].
    place: index of the file, and line of the document in it.
    counts: bool [N], whether a token counts in the loss; None: all do.
    whole: all text of a conversation.
    second: of a pair, the token with which the rejected conversation begins;
      0: it is no pair.
  """

  split: str
  begins: bool
  text: str
  ids: np.ndarray
  place: tuple[int, int]
  counts: np.ndarray | None = None
  whole: str = ''
  second: int = 0


def train_tokenizer(
  source: read.Source, held_out: split.HeldOut, size: int
) -> tokenizer_lib.Tokenizer:
  """Trains a tokenizer on the text that is not held out."""
  return tokenizer_lib.train_bpe(_training(source, held_out), size)


def encode(
  documents: Iterable[rows.Document],
  files: Mapping[str, int],
  held_out: split.HeldOut,
  tokenizer: tokenizer_lib.Tokenizer,
  engine: engine_lib.Name = 'auto',
) -> Iterator[Encoded]:
  """Encodes documents, in order; `files` numbers those that they are from."""
  bos = np.array([tokenizer.bos_id], np.int32)
  plain_text = engine_lib.choose(tokenizer, engine)
  parts = (
    (*part, document)
    for document in documents
    for part in held_out.parts(document)
  )
  for batch in _batches(parts):
    plain = [text for _, _, text, document in batch if not document.turns]
    ids = iter(plain_text.encode_batch(plain))
    for name, begins, text, document in batch:
      place = files[document.name], document.index
      if document.turns:
        yield _encode_chat(tokenizer, document, name, begins, text, place)
        continue
      piece = next(ids)
      if begins:
        # `np.insert` costs as much as reading the text.
        piece = np.concatenate([bos, piece])
      yield Encoded(name, begins, text, piece, place)


def _encode_chat(tokenizer, document, name, begins, text, place) -> Encoded:
  """A conversation, or both of a pair, one behind the other."""
  both = [turns for turns in (document.turns, document.rejected) if turns]
  counted = ''.join(text for turns in both for text, counts in turns if counts)
  ids, counts = zip(*map(tokenizer.encode_chat, both), strict=True)
  second = len(ids[0]) if document.rejected else 0
  ids, counts = np.concatenate(ids), np.concatenate(counts)
  return Encoded(name, begins, counted, ids, place, counts, text, second)


_Part = tuple[str, bool, str, rows.Document]


def _batches(parts: Iterable[_Part]) -> Iterator[list[_Part]]:
  batch, characters = [], 0
  for part in parts:
    batch.append(part)
    characters += len(part[2])
    if characters >= _BATCH:
      yield batch
      batch, characters = [], 0
  if batch:
    yield batch


def _training(source: read.Source, held_out: split.HeldOut) -> Iterator[str]:
  characters = 0
  for document in source.documents():
    for name, _, text in held_out.parts(document):
      if name == split.TRAIN:
        characters += len(text)
        yield text
    if characters >= _TRAINING:
      return
