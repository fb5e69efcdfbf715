# SPDX-License-Identifier: Apache-2.0
"""Chooses or trains the tokenizer and encodes text in batches."""

import dataclasses
from collections.abc import Iterable, Iterator

import numpy as np

from pipelines import tokenizer as tokenizer_lib
from pipelines.prepare import read, split

_BATCH = 2**22  # Characters; enough to keep all cores of the library busy.
_TRAINING = 2**28  # Characters; more does not change a vocabulary.


@dataclasses.dataclass(frozen=True)
class Encoded:
  """A piece of a document.

  Attributes:
    split: 'train' or 'val'.
    begins: whether the document begins here; then `ids` starts with BOS.
    text: the piece.
    ids: int32 [N].
  """

  split: str
  begins: bool
  text: str
  ids: np.ndarray


def make_tokenizer(
  source: read.Source, held_out: split.HeldOut, name: str, trained_size: int
) -> tokenizer_lib.Tokenizer:
  """Loads the tokenizer, or trains one on the text that is not held out."""
  if not trained_size:
    return tokenizer_lib.load(name)
  return tokenizer_lib.train_bpe(_training(source, held_out), trained_size)


def encode(
  source: read.Source,
  held_out: split.HeldOut,
  tokenizer: tokenizer_lib.Tokenizer,
) -> Iterator[Encoded]:
  """Encodes all documents, in order."""
  parts = (
    part for document in source.documents() for part in held_out.parts(document)
  )
  for batch in _batches(parts):
    ids = tokenizer.encode_batch([text for _, _, text in batch])
    for (name, begins, text), piece in zip(batch, ids, strict=True):
      if begins:
        piece = np.insert(piece, 0, tokenizer.bos_id)
      yield Encoded(name, begins, text, piece)


def _batches(
  parts: Iterable[tuple[str, bool, str]],
) -> Iterator[list[tuple[str, bool, str]]]:
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
