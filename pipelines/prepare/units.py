# SPDX-License-Identifier: Apache-2.0
"""Units of work: some files, or row groups of one, to the tokens in them.

A unit leaves three files, and a fourth that says that they are whole. Its name
is a hash of all that its content depends on, so whoever finds it need not make
it again, and a unit of other text or settings is never taken for it.
"""

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
from collections.abc import (
  Callable,
  Collection,
  Iterator,
  Mapping,
  Sequence,
)

import numpy as np

from pipelines import store
from pipelines import tokenizer as tokenizer_lib
from pipelines.prepare import contamination, split, spool, tasks, tokenize, trim
from pipelines.prepare import engine as engine_lib
from pipelines.prepare.input import parquet, read
from pipelines.sources import readers

FOLDER = 'units'
SUFFIXES = ('tokens', 'text', 'index', 'json')
LISTED = 1000  # Names that are kept of what is left out.

_VERSION = 1  # Of what a unit holds.
_UNIT = 2**26  # Bytes: files below are put together, row groups too.


@dataclasses.dataclass(frozen=True)
class Unit:
  """A share of the input.

  Attributes:
    files: index in the input, name and file of each.
    row_groups: those to read of the one file; None: all there is.
  """

  files: tuple[tuple[int, str, store.File], ...]
  row_groups: range | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
  """What all units of a call have in common.

  Attributes:
    text_field: `--data.text_field`.
    tokenizer: of the text.
    held_out: which documents are.
    dtype: of tokens on disk.
    skip_bad: whether bad rows are counted rather than refused.
    trim_tokens: what conversations are trimmed to; 0: they are not.
    contaminated: hashes of what no document may hold.
    engine: what encodes plain text; all give the same ids.
    window_tokens: a pair that is longer is left out.
  """

  text_field: str
  tokenizer: tokenizer_lib.Tokenizer
  held_out: split.HeldOut
  dtype: str
  skip_bad: bool = False
  trim_tokens: int = 0
  contaminated: contamination.Grams | None = None
  engine: engine_lib.Name = 'auto'
  window_tokens: int = 0

  @functools.cached_property
  def key(self) -> str:
    """Hash of what decides the content of a unit, besides its files."""
    parts = [
      _VERSION, self.text_field, self.tokenizer.sha256,
      self.tokenizer.template_sha256, dataclasses.asdict(self.held_out),
      self.dtype, self.skip_bad, self.trim_tokens,
      self.contaminated.sha256 if self.contaminated else None,
      self.window_tokens,
    ]  # fmt: skip
    return _hash(parts)


@dataclasses.dataclass(frozen=True)
class Report:
  """What is known of a unit that is done.

  Attributes:
    rows: of .jsonl and .parquet.
    bad: of these, what could not be used.
    contaminated: documents that were left out for what they hold.
    num_skipped: files and rows that were left out.
    skipped: names and reasons, the first thousand.
    used: names of files that gave text.
    documents: how many.
    tokens: how many.
    first_bad: the first row that could not be used, and why; '': none.
    pairs: documents that are pairs of answers.
  """

  rows: int
  bad: int
  contaminated: int
  num_skipped: int
  skipped: dict[str, str]
  used: list[str]
  documents: int
  tokens: int
  first_bad: str = ''
  pairs: int = 0


def divide(
  files: Mapping[str, store.File], left_out: Collection[str]
) -> Iterator[Unit]:
  """Divides the input into units, in order; `left_out` has names of files."""
  group, size = [], 0
  for index, (name, file) in enumerate(files.items()):
    if name in left_out:
      continue
    large = file.size > _UNIT
    if group and (large or size + file.size > _UNIT):
      yield Unit(tuple(group))
      group, size = [], 0
    if large and name.endswith('.parquet') and not store.is_url(file.path):
      for groups in _row_groups(file):
        yield Unit(((index, name, file),), groups)
      continue
    group.append((index, name, file))
    size += file.size
  if group:
    yield Unit(tuple(group))


def _row_groups(file: store.File) -> Iterator[range]:
  sizes = parquet.row_groups(pathlib.Path(file.path), file.path)
  first = size = 0
  for number, each in enumerate(sizes, 1):
    size += each
    if size > _UNIT or number == len(sizes):
      yield range(first, number)
      first, size = number, 0


def name(unit: Unit, job: Job) -> str:
  """Names the unit by all that its content depends on."""
  files = [[n, file.size, file.version] for _, n, file in unit.files]
  groups = unit.row_groups and [unit.row_groups.start, unit.row_groups.stop]
  return _hash([job.key, files, groups])[:24]


def report(folder: pathlib.Path, unit_name: str) -> Report | None:
  """Says what is known of a unit; None: it is not done."""
  found = tasks.marked(folder / FOLDER / f'{unit_name}.json')
  return None if found is None else Report(**found)


def index(folder: pathlib.Path, unit_name: str) -> np.ndarray:
  """The documents of a unit that is done, of type `spool.INDEX`.

  On disk, with one file open for as long as the array is there.
  """
  path = folder / FOLDER / f'{unit_name}.index'
  if not path.stat().st_size:
    return np.empty(0, spool.INDEX)
  return np.memmap(path, spool.INDEX, 'r')


def files(
  folder: pathlib.Path, names: Sequence[str], suffix: str
) -> Callable[[int], np.ndarray]:
  """Gives the bytes of a file of each unit; those read last stay open."""

  @functools.lru_cache(readers.most_open())
  def opened(unit: int) -> np.ndarray:
    path = folder / FOLDER / f'{names[unit]}.{suffix}'
    if not path.stat().st_size:
      return np.empty(0, np.uint8)
    # Slices of a memmap are slower, for each is one again.
    return np.asarray(np.memmap(path, np.uint8, 'r'))

  return opened


def make(
  unit: Unit,
  job: Job,
  folder: pathlib.Path,
  progress: Callable[[int, int], None] | None = None,
) -> None:
  """Reads and encodes a unit, unless it is done.

  Raises:
    DataError: for wrong input.
  """
  unit_name = name(unit, job)
  if report(folder, unit_name):
    return
  root = folder / FOLDER
  source = read.Source(
    '',
    job.text_field,
    lambda: job.tokenizer.template,
    files={n: file for _, n, file in unit.files},
    row_groups=unit.row_groups,
    skip_bad=job.skip_bad,
    trim=trim.of(job.tokenizer, job.trim_tokens) if job.trim_tokens else None,
    folder=root,
  )
  writer = spool.Writer(root / f'{unit_name}.{os.getpid()}', job.dtype)
  clean = contamination.Filter(job.contaminated, source.skipped)
  with writer:
    for piece in tokenize.encode(
      clean.documents(source.documents()),
      {n: i for i, (_, n, _) in enumerate(unit.files)},
      job.held_out,
      job.tokenizer,
      job.engine,
    ):
      if piece.second and len(piece.ids) > job.window_tokens:
        file, line = piece.place
        reason = f'a pair of {len(piece.ids)} tokens, more than a window'
        source.skipped[f'{unit.files[file][1]}:{line}'] = reason
        continue
      writer.add(piece)
      if progress:
        progress(piece.begins, len(piece.ids))
    writer.close()
  content = Report(
    rows=source.rows.count,
    bad=source.rows.bad,
    contaminated=clean.count,
    num_skipped=len(source.skipped),
    skipped=dict(list(source.skipped.items())[:LISTED]),
    used=list(source.used),
    documents=writer.documents,
    tokens=writer.tokens,
    first_bad=source.rows.first_bad,
    pairs=writer.pairs,
  )
  for suffix in ('tokens', 'text', 'index'):
    os.rename(writer.path(suffix), root / f'{unit_name}.{suffix}')
  tasks.mark(root / f'{unit_name}.json', dataclasses.asdict(content))


def _hash(parts: list) -> str:
  return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
