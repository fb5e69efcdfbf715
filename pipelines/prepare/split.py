# SPDX-License-Identifier: Apache-2.0
"""Which documents are held out: a fixed share by hash, or one document's tail.

The choice depends on the name of a document alone, so text that is added later
does not move a document from one side to the other.
"""

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator

from pipelines import errors
from pipelines.prepare.input import rows

TRAIN = 'train'
VAL = 'val'


@dataclasses.dataclass(frozen=True)
class HeldOut:
  """The rule of one corpus.

  Attributes:
    fraction: share that is held out.
    moved: key to split, for the one document that keeps a side from being
      empty.
    tail_from: character at which the held-out tail of a single document
      begins; None when whole documents are held out.
  """

  fraction: float
  moved: dict[str, str] = dataclasses.field(default_factory=dict)
  tail_from: int | None = None

  def parts(self, document: rows.Document) -> Iterator[tuple[str, bool, str]]:
    """Yields (split, whether it begins there, text) for each piece."""
    begun = set()
    position = 0
    for piece in document.pieces():
      for split, text in self._divide(document, position, piece):
        yield split, split not in begun, text
        begun.add(split)
      position += len(piece)

  def _divide(
    self, document: rows.Document, position: int, piece: str
  ) -> Iterator[tuple[str, str]]:
    if self.tail_from is None:
      side = VAL if _share(document) < self.fraction else TRAIN
      yield self.moved.get(document.key, side), piece
      return
    cut = min(max(self.tail_from - position, 0), len(piece))
    if piece[:cut]:
      yield TRAIN, piece[:cut]
    if piece[cut:]:
      yield VAL, piece[cut:]


def choose(documents: Iterable[rows.Document], fraction: float) -> HeldOut:
  """Looks at as many documents as it takes to see both sides non-empty.

  Raises:
    DataError: if the only document is too short to be divided.
  """
  shares: dict[str, float] = {}
  first = None
  for document in documents:
    shares[document.key] = _share(document)
    if not fraction:
      return HeldOut(fraction)
    if first is None:  # Counted now: its file may be a copy that goes.
      first, characters = document, sum(map(len, document.pieces()))
    if min(shares.values()) < fraction <= max(shares.values()):
      return HeldOut(fraction)
    # Two are enough to decide, whatever their number.
    if len(shares) > 2:
      del shares[sorted(shares, key=shares.get)[1]]
  if first is None:
    return HeldOut(fraction)
  if len(shares) == 1:
    return HeldOut(fraction, tail_from=_tail_from(first, characters, fraction))
  low, *_, high = sorted(shares, key=shares.get)
  moved = {high: TRAIN} if shares[high] < fraction else {low: VAL}
  return HeldOut(fraction, moved)


def _share(document: rows.Document) -> float:
  """A number in [0, 1) that only depends on the name of the document."""
  digest = hashlib.sha256(document.key.encode()).digest()
  return int.from_bytes(digest[:6], 'big') / 2**48


def _tail_from(
  document: rows.Document, characters: int, fraction: float
) -> int:
  if document.turns:
    raise errors.DataError(
      f'{document.name} has one conversation and nothing else is there; give '
      'more of them, or --data.val_fraction=0.'
    )
  if characters < 2:
    raise errors.DataError(
      f'{document.name} has {characters} character and nothing else is '
      'there; give more text, or --data.val_fraction=0.'
    )
  return min(max(int(characters * (1 - fraction)), 1), characters - 1)
