# SPDX-License-Identifier: Apache-2.0
"""Where each document of all units goes: to which side, and to which token.

Documents come in the order of the hashes of their texts. That is a shuffle:
neighbours in the input are none here. It is the same however the input was
divided, and equal texts meet in it, so that all but one are left out and none
is on both sides. A part of the documents is in memory at a time.
"""

import bisect
import collections
import dataclasses
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

from pipelines.prepare import split, spool, units

# A document of a split. `start`: its first token there; `unit`: that holds it;
# `file`: in the input; the others as in `spool.INDEX`.
ROW = np.dtype([
  ('start', '<u8'), ('offset', '<u8'), ('tokens', '<u8'), ('hash', '<u8'),
  ('bytes', '<u8'), ('text', '<u8'), ('unit', '<u4'), ('file', '<u4'),
  ('line', '<u4'), ('masked', 'u1'), ('unused', 'V3'),
])  # fmt: skip

_AT_ONCE = 2**19  # Documents in memory, about.
_BUFFER = 2**12  # Conversations that are packed together.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
  """What decides where documents go.

  Attributes:
    window_tokens: a conversation of at most as many crosses no multiple of it.
    dedup: leaves out all but one document of a text.
    val_tokens: held-out documents above so many tokens go to train; 0: none.
    one: the input is a single document with a side for each part.
  """

  window_tokens: int
  dedup: bool = True
  val_tokens: int = 0
  one: bool = False


@dataclasses.dataclass
class Side:
  """One split, while it is laid out.

  Attributes:
    documents: how many.
    tokens: with the padding between conversations.
    bytes: of the text.
    counted: tokens that count in the loss.
    masked: whether there are conversations.
  """

  documents: int = 0
  tokens: int = 0
  bytes: int = 0
  counted: int = 0
  masked: bool = False


def write(
  folder: pathlib.Path,
  made: Sequence[tuple[units.Unit, str]],
  to: pathlib.Path,
  rules: Rules,
) -> tuple[dict[str, Side], dict[str, int]]:
  """Writes the documents of each split to a file of `ROW`s in `to`.

  Args:
    folder: holds the units.
    made: units, all done, with their names.
    to: folder that gets a file named like each split.
    rules: what decides.

  Returns:
    The sides, and how many documents were left out for which reason.
  """
  sides = {name: Side() for name in (split.TRAIN, split.VAL)}
  left_out: collections.Counter[str] = collections.Counter()
  files = {name: open(to / name, 'wb') for name in sides}
  packers = {
    name: Packer(side, rules.window_tokens) for name, side in sides.items()
  }
  held = 0
  try:
    for rows, counted, held_out in _in_order(folder, made):
      kept, held_out = _without_repeats(rows, held_out, rules, left_out)
      rows, counted, held_out = rows[kept], counted[kept], held_out[kept]
      if rules.val_tokens:
        after = held + np.cumsum(rows['tokens'] * held_out, dtype=np.int64)
        # One at least, however long it is.
        first = held_out & (np.cumsum(held_out) == 1) & (held == 0)
        held = int(after[-1]) if len(after) else held
        fits = (after <= rules.val_tokens) | first
        # Equal texts go where the first of them does.
        held_out &= fits[np.searchsorted(rows['hash'], rows['hash'])]
      for name, mine in ((split.TRAIN, ~held_out), (split.VAL, held_out)):
        part = packers[name].add(rows[mine], counted[mine])
        files[name].write(part.tobytes())
    for name, packer in packers.items():
      files[name].write(packer.finish().tobytes())
  finally:
    for file in files.values():
      file.close()
  return sides, dict(left_out)


def read(folder: pathlib.Path, name: str) -> np.ndarray:
  """The rows of a split, of type `ROW`, on disk."""
  path = folder / name
  if not path.stat().st_size:
    return np.empty(0, ROW)
  return np.memmap(path, ROW, 'r')


def _in_order(
  folder: pathlib.Path, made: Sequence[tuple[units.Unit, str]]
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
  """Yields rows without a start, counted tokens and whether held out."""
  names = [name for _, name in made]
  total = sum(len(units.index(folder, name)) for name in names)
  count = max(1, -(-total // _AT_ONCE))
  steps = np.array([2**64 * i // count for i in range(1, count)], np.uint64)
  # Kept, for each costs a pass through the index.
  borders = [_borders(units.index(folder, name), steps) for name in names]
  for i in range(count):
    parts = [  # Copies: one index is open at a time.
      np.array(units.index(folder, name)[b[i] : b[i + 1]])
      for name, b in zip(names, borders, strict=True)
    ]
    index = np.concatenate([np.empty(0, spool.INDEX), *parts])
    rows = np.zeros(len(index), ROW)
    for field in ('offset', 'tokens', 'hash', 'bytes', 'text', 'line'):
      rows[field] = index[field]
    rows['masked'] = index['masked']
    sizes = list(map(len, parts))
    rows['unit'] = np.repeat(np.arange(len(parts)), sizes)
    numbers = [
      np.array([n for n, _, _ in unit.files], np.uint32)[part['file']]
      for (unit, _), part in zip(made, parts, strict=True)
    ]
    rows['file'] = np.concatenate([np.empty(0, np.uint32), *numbers])
    order = np.lexsort((
      index['held_out'], rows['line'], rows['file'], rows['hash']
    ))  # fmt: skip
    held_out = index['held_out'].astype(bool)
    yield rows[order], index['counted'][order], held_out[order]


def _borders(index: np.ndarray, steps: np.ndarray) -> list[int]:
  return [0, *np.searchsorted(index['hash'], steps).tolist(), len(index)]


def _without_repeats(
  rows: np.ndarray,
  held_out: np.ndarray,
  rules: Rules,
  left_out: collections.Counter[str],
) -> tuple[np.ndarray, np.ndarray]:
  """Which rows stay, and which are held out: equal texts are on one side."""
  kept = np.ones(len(rows), bool)
  if rules.one or not len(rows):
    return kept, held_out
  new = np.insert(rows['hash'][1:] != rows['hash'][:-1], 0, True)
  text = np.cumsum(new) - 1  # Which text it is.
  any_held = np.bincount(text, held_out) > 0
  leak = any_held[text] & ~held_out
  kept &= ~leak
  left_out['duplicates of held-out documents'] += int(leak.sum())
  if rules.dedup:
    # The first that stays.
    nth = np.cumsum(kept)
    before = (nth - kept)[np.flatnonzero(new)][text]
    repeat = kept & (nth - before > 1)
    kept &= ~repeat
    left_out['duplicates'] += int(repeat.sum())
  return kept, held_out


class Packer:
  """Gives documents their places: plain text behind each other, windows full.

  Conversations wait in a buffer, until best-fit-decreasing bins are full.
  """

  def __init__(self, side: Side, window: int):
    self._side, self._window = side, window
    self._waiting = np.empty(0, ROW)

  def add(self, rows: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """Returns rows that have their start; others wait."""
    side = self._side
    side.documents += len(rows)
    side.bytes += int(rows['bytes'].sum())
    side.counted += int(counted.sum())
    side.masked |= bool(rows['masked'].any())
    placed = [np.empty(0, ROW)]
    for i in range(0, len(rows), _BUFFER):
      part = rows[i : i + _BUFFER]
      placed.append(self._behind_each_other(part[part['masked'] == 0]))
      chats = part[part['masked'] != 0]
      if len(chats):
        self._waiting = np.concatenate([self._waiting, chats])
      if len(self._waiting) >= _BUFFER:
        placed.append(self._pack(last=False))
    return np.concatenate(placed)

  def finish(self) -> np.ndarray:
    """Places what waits."""
    return self._pack(last=True)

  def _behind_each_other(self, rows: np.ndarray) -> np.ndarray:
    ends = self._side.tokens + np.cumsum(rows['tokens'], dtype=np.int64)
    if len(rows):
      rows['start'] = ends - rows['tokens'].astype(np.int64)
      self._side.tokens = int(ends[-1])
    return rows

  def _pack(self, last: bool) -> np.ndarray:
    """Fills windows; unless it is the last time, only full ones are used."""
    rows, side = self._waiting, self._side
    lengths = rows['tokens'].tolist()
    first, *found = bins(lengths, self._window, -side.tokens % self._window)
    self._waiting = rows[:0]
    if not last:
      # Half at most waits on, so the buffer stays small.
      empty = [-sum(lengths[i] for i in b) % self._window for b in found]
      some = sorted(range(len(found)), key=lambda i: empty[i])
      half = len(found) // 2
      wait = [i for i in some[half:] if empty[i] * 100 > self._window]
      self._waiting = rows[sorted(j for i in wait for j in found[i])]
      found = [b for i, b in enumerate(found) if i not in set(wait)]
    # Bins are shuffled once more: they came sorted by the longest in them.
    found.sort(key=lambda b: min(int(rows['hash'][i]) for i in b))
    placed = [self._behind_each_other(rows[first])]
    for each in found:
      side.tokens += -side.tokens % self._window
      placed.append(self._behind_each_other(rows[each]))
    return np.concatenate(placed)


def bins(lengths: Sequence[int], room: int, begun: int) -> list[list[int]]:
  """Best-fit-decreasing: which lengths go together into windows.

  Args:
    lengths: of each item; one that is longer than a window begins a bin of its
      own, whose last window is filled with others.
    room: of a window.
    begun: room of a window that has begun.

  Returns:
    The items of each bin, sorted but for a long one, which is the first; the
    first bin fills the window that has begun, and may be empty.
  """
  found: list[list[int]] = [[]]
  free = [(begun, 0)]  # Room that is left and bin, sorted.
  for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
    place = bisect.bisect_left(free, (lengths[i], -1))
    if place < len(free) and lengths[i] <= room:
      left, number = free.pop(place)
      found[number].append(i)
      bisect.insort(free, (left - lengths[i], number))
    else:
      bisect.insort(free, (-lengths[i] % room, len(found)))
      found.append([i])
  return [sorted(b, key=lambda i: (lengths[i] <= room, i)) for b in found]
