# SPDX-License-Identifier: Apache-2.0
"""Leaves out documents that share 13 words in a row with given texts.

Words are runs of letters and digits, in lower case: the rule by which GPT-3
and many after it kept tests out of their training text.
"""

import dataclasses
import hashlib
import itertools
import json
import pathlib
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from pipelines import errors
from pipelines.prepare.input import parquet, read, rows, stream

WORDS = 13

_WORD = re.compile(r'\w+')
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # Odd, so no word is lost.


@dataclasses.dataclass(frozen=True)
class Grams:
  """What may not occur.

  Attributes:
    vocabulary: the words of the given texts, from 1.
    hashes: uint64 [N], sorted, of `WORDS` words in a row.
    sha256: of the given texts.
  """

  vocabulary: dict[str, int]
  hashes: np.ndarray
  sha256: str

  @classmethod
  def of(cls, files: Sequence[str]) -> 'Grams':
    """Takes every text of files: of a row, each string in it.

    Raises:
      DataError: if a file cannot be read, or none has as many words.
    """
    vocabulary: dict[str, int] = {}
    found, digest = [], hashlib.sha256()
    for text in itertools.chain.from_iterable(map(_texts, files)):
      digest.update(text.encode() + b'\0')
      words = _WORD.findall(text.lower())
      ids = [vocabulary.setdefault(w, len(vocabulary) + 1) for w in words]
      found.append(_hashes(np.array(ids, np.uint64)))
    hashes = np.unique(np.concatenate([np.empty(0, np.uint64), *found]))
    if not len(hashes):
      raise errors.DataError(
        f'--data.decontaminate={",".join(files)} holds no text of {WORDS} '
        'words.'
      )
    return cls(vocabulary, hashes, digest.hexdigest())

  def occur(self, document: rows.Document) -> bool:
    """Whether a document holds one of them."""
    tail = np.empty(0, np.uint64)
    for piece in document.pieces():
      words = _WORD.findall(piece.lower())
      ids = np.array([self.vocabulary.get(w, 0) for w in words], np.uint64)
      ids = np.concatenate([tail, ids])
      if np.isin(_hashes(ids), self.hashes, kind='sort').any():
        return True
      tail = ids[1 - WORDS :]
    return False


class Filter:
  """Leaves documents out, and counts and names them."""

  def __init__(self, grams: Grams | None, skipped: dict[str, str]):
    self._grams, self._skipped = grams, skipped
    self.count = 0

  def documents(
    self, found: Iterable[rows.Document]
  ) -> Iterator[rows.Document]:
    """Yields those that may stay."""
    for document in found:
      if self._grams and self._grams.occur(document):
        self._skipped[document.key] = 'in --data.decontaminate'
        self.count += 1
      else:
        yield document


def _hashes(ids: np.ndarray) -> np.ndarray:
  """Of each `WORDS` words in a row, unless one of them is unknown (0)."""
  count = len(ids) - WORDS + 1
  if count < 1:
    return np.empty(0, np.uint64)
  result, known = np.zeros(count, np.uint64), np.ones(count, bool)
  for i in range(WORDS):
    part = ids[i : i + count]
    known &= part != 0
    result = (result + part) * _FACTOR
    result ^= result >> np.uint64(29)
  return result[known]


def _texts(files: str) -> Iterator[str]:
  for name, file in read.find(files).items():
    with file.local(pathlib.Path(tempfile.gettempdir())) as path:
      yield from _texts_of(name, path, file.path)


def _texts_of(name: str, path: pathlib.Path, where: str) -> Iterator[str]:
  if name.endswith('.parquet'):
    for row in parquet.table(path, where):
      yield from _strings(row)
  elif '.json' in pathlib.PurePath(name).name:
    for number, line in enumerate(stream.lines(path, where), 1):
      try:
        yield from _strings(json.loads(line or b'""'))
      except (ValueError, RecursionError) as error:
        raise errors.DataError(
          f'--data.decontaminate: {where} line {number} is not JSON: {error}.'
        ) from error
  else:
    yield b''.join(stream.blocks(path, where)).decode(errors='replace')


def _strings(value: Any) -> Iterator[str]:
  if isinstance(value, str):
    yield value
  elif isinstance(value, dict | list):
    for each in value.values() if isinstance(value, dict) else value:
      yield from _strings(each)
