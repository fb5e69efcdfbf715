# SPDX-License-Identifier: Apache-2.0
"""Writes shards: records of tokens, and the list of documents beside them.

One record bundles many tokens (`group_size:1`): reading one at random then
costs one read of a useful size. A record with a conversation in it has one byte
more for each token, behind all tokens: the flags of `pipelines.pack`.
"""

import bisect
import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Iterator

import numpy as np
from array_record.python import array_record_module

from pipelines import errors, pack
from pipelines.prepare import layout, tasks, units
from pipelines.shards import documents, manifest

_OPTIONS = 'group_size:1,zstd:3'
_ROWS = 2**12  # Documents that are looked up at once.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shards:
  """What all shards of a call have in common.

  Attributes:
    folder: where they go; it holds the units.
    layout: folder of the layout; done shards are marked there.
    units: names of the units, by which documents know them.
    dtype: of tokens on disk.
    record_tokens: of a record.
    shard_tokens: of a shard, about.
    pad_id: fills what is empty.
    tokens: of each split.
    masked: splits that hold conversations.
  """

  folder: pathlib.Path
  layout: pathlib.Path
  units: tuple[str, ...]
  dtype: str
  record_tokens: int
  shard_tokens: int
  pad_id: int
  tokens: dict[str, int]
  masked: frozenset[str]

  def stops(self, split: str) -> list[int]:
    """The token at which each shard of a split ends."""
    records = max(1, self.shard_tokens // self.record_tokens)
    each, total = records * self.record_tokens, self.tokens[split]
    return [min(total, stop) for stop in range(each, total + each, each)]

  def tasks(self) -> list[tuple[str, int]]:
    """All shards: split and number."""
    return [(s, i) for s in self.tokens for i in range(len(self.stops(s)))]

  def mark(self, split: str, index: int) -> pathlib.Path:
    """Says that a shard is done."""
    return self.layout / f'{split}-{index:05d}.json'

  def done(self, split: str, index: int) -> manifest.Shard | None:
    """What is known of a shard; None: it is not done."""
    found = tasks.marked(self.mark(split, index))
    return None if found is None else manifest.Shard(**found)


def write(task: tuple[str, int], shards: Shards) -> None:
  """Writes a shard and its sidecar, unless they are there.

  Raises:
    DataError: exit code 3, if the disk is full.
  """
  split, index = task
  if shards.done(split, index):
    return
  stops = shards.stops(split)
  start = stops[index - 1] if index else 0
  name = f'{split}-{index:05d}-of-{len(stops):05d}{manifest.SUFFIX}'
  path = shards.folder / f'{name}.{os.getpid()}'
  rows = _rows(shards, split, start, stops[index])
  count = _Writer(path, shards, split in shards.masked).write(
    start, stops[index], rows
  )
  listed = _documents(shards, split, start, stops[index])
  shard = manifest.Shard(
    name=name,
    bytes=path.stat().st_size,
    sha256=manifest.file_sha256(path),
    records=count,
    documents=len(listed),
  )
  # Its name does not end as that of one that is whole: see `output.work`.
  sidecar = path.with_name(f'{name}{manifest.DOCUMENTS_SUFFIX}.{os.getpid()}')
  with open(sidecar, 'wb') as file:
    file.write(listed.tobytes())
    file.flush()
    os.fsync(file.fileno())
  shard = dataclasses.replace(
    shard, documents_sha256=manifest.file_sha256(sidecar)
  )
  os.rename(sidecar, manifest.documents_path(shards.folder, shard))
  os.rename(path, shards.folder / name)
  tasks.mark(shards.mark(split, index), dataclasses.asdict(shard))


def _rows(
  shards: Shards, split: str, start: int, stop: int
) -> Iterator[tuple[int, int, int, int, int]]:
  """Yields start, offset, tokens, unit, masked of what is in [start, stop)."""
  rows = layout.read(shards.layout, split)
  first = max(0, bisect.bisect_right(rows, start, key=_start) - 1)
  last = bisect.bisect_left(rows, stop, key=_start)
  for i in range(first, last, _ROWS):
    part = rows[i : min(i + _ROWS, last)]
    yield from zip(
      *(part[f].tolist() for f in ('start', 'offset', 'tokens', 'unit')),
      part['masked'].tolist(),
      strict=True,
    )


def _documents(shards: Shards, split: str, start: int, stop: int) -> np.ndarray:
  """The sidecar: documents that begin in [start, stop)."""
  rows = layout.read(shards.layout, split)
  first = bisect.bisect_left(rows, start, key=_start)
  part = rows[first : bisect.bisect_left(rows, stop, key=_start)]
  found = np.empty(len(part), documents.ROW)
  for field in documents.ROW.names:
    found[field] = part[field]
  return found


def _start(row: np.void) -> int:
  return int(row['start'])


class _Writer:
  """Writes the records of one shard."""

  def __init__(self, path: pathlib.Path, shards: Shards, masked: bool):
    self._path, self._shards = path, shards
    self._dtype = np.dtype(shards.dtype).newbyteorder('<')
    self._record = np.empty(shards.record_tokens, self._dtype)
    # Whether this record needs flags; None: no record of the split does.
    self._flagged = False if masked else None
    self._flags = np.empty(shards.record_tokens, np.uint8)
    self._fill = self._count = 0
    self._unit = units.files(shards.folder, shards.units, 'tokens')
    with self._one_sentence():
      self._writer = array_record_module.ArrayRecordWriter(str(path), _OPTIONS)

  def write(
    self, start: int, stop: int, rows: Iterator[tuple[int, int, int, int, int]]
  ) -> int:
    """Writes tokens [start, stop) of the split; returns how many records."""
    position = start
    for begin, offset, tokens, unit, masked in rows:
      if begin > position:
        self._gap(min(begin, stop) - position)
      first = max(0, start - begin)
      last = min(tokens, stop - begin)
      if last > first:
        content, width = self._unit(unit), self._dtype.itemsize
        ids = content[offset + first * width : offset + last * width]
        flags = None
        if masked:
          behind = offset + tokens * width
          flags = content[behind + first : behind + last]
        self._append(ids.view(self._dtype), flags, first == 0)
      position = max(position, begin + last)
    if self._fill:
      self._record[self._fill :] = self._shards.pad_id
      self._flags[self._fill :] = 0
      self._write_record()
    with self._one_sentence():
      self._writer.close()
    with open(self._path, 'rb') as file:
      os.fsync(file.fileno())
    return self._count

  def _gap(self, tokens: int) -> None:
    ids = np.full(tokens, self._shards.pad_id, self._dtype)
    self._append(ids, np.full(tokens, pack.EMPTY, np.uint8), False)

  def _append(
    self, ids: np.ndarray, flags: np.ndarray | None, begins: bool
  ) -> None:
    """Adds tokens; without `flags` all count, `begins` is of the first."""
    done = 0
    while done < len(ids):
      taken = min(len(ids) - done, len(self._record) - self._fill)
      here = slice(self._fill, self._fill + taken)
      self._record[here] = ids[done : done + taken]
      if self._flagged is not None:
        if flags is None:
          self._flags[here] = pack.COUNTS
          self._flags[self._fill] |= pack.BEGINS * (begins and not done)
        else:
          self._flags[here] = flags[done : done + taken]
          self._flagged = True
      self._fill += taken
      done += taken
      if self._fill == len(self._record):
        self._write_record()

  def _write_record(self) -> None:
    content = self._record.tobytes()
    if self._flagged:
      content += self._flags.tobytes()
      self._flagged = False
    with self._one_sentence():
      self._writer.write(content)
    self._fill = 0
    self._count += 1

  @contextlib.contextmanager
  def _one_sentence(self) -> Iterator[None]:
    # The writer works in the background: a full disk may show at any call.
    try:
      yield
    except RuntimeError as error:
      raise errors.DataError(
        f'writing {self._path} failed, is the disk full? {error}',
        errors.UNUSABLE,
      ) from error
