# SPDX-License-Identifier: Apache-2.0
"""A whole ledger, and all that can be said of it without a token.

Its lines are as they were written, as far as the newest checkpoint vouches for
them; the rows that they tell of follow each other without a hole; each line has
as many rows of each source as the order gives it.
"""

import dataclasses
import os
import pathlib
from typing import Any

from zaya_jax.checkpoint import errors, folders, meta, seal
from zaya_jax.data.ledger import book, chain, digest, terms

_DIGITS = 16  # Of a digest.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
  """What became of some rows.

  Attributes:
    number: of the line, from 1.
    rows: from the first to before the last.
    steps: steps done before the first and after the last.
    phase: of the recipe.
    outcome: of `chain.OUTCOMES`.
    sources: rows of each.
    tokens: that were given to the model.
    counted: that count in the loss.
    each: digests of the steps.
    reads: what the run read.
  """

  number: int
  rows: tuple[int, int]
  steps: tuple[int, int]
  phase: str
  outcome: str
  sources: tuple[int, ...]
  tokens: int
  counted: int
  each: tuple[str, ...]
  reads: terms.Reads

  @property
  def seq_len(self) -> int:
    """Tokens of a row."""
    order = self.reads.order
    return order.stretches[order.stretch(self.rows[0])].seq_len

  @property
  def batch_size(self) -> int:
    """Rows of a step."""
    return (self.rows[1] - self.rows[0]) // max(
      1, self.steps[1] - self.steps[0]
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Story:
  """What a ledger tells.

  Attributes:
    path: of the file.
    lines: in their order.
    first: (row, step) with which the ledger begins.
    sealed: the step of the newest checkpoint; None: there is none.
    sealed_lines: how many of the file's lines it vouches for.
    count: of all lines, those that open the ledger too.
    torn: bytes behind the last line, of one that is being written.
    reads: what the run reads now.
  """

  path: pathlib.Path
  lines: tuple[Line, ...]
  first: tuple[int, int]
  sealed: int | None
  sealed_lines: int
  count: int
  torn: int
  reads: terms.Reads

  @property
  def now(self) -> int:
    """The first row that the ledger does not tell of."""
    return self.lines[-1].rows[1] if self.lines else self.first[0]


def read(run_dir: str) -> Story:
  """Reads a ledger and checks all that needs no shards.

  Raises:
    LedgerError: naming the first line that is wrong.
    CheckpointError: if the newest checkpoint is damaged.
  """
  path = pathlib.Path(run_dir, chain.NAME)
  step, about = newest(run_dir)  # First: the file only grows.
  head = about.get(book.META)
  if not path.exists() and not (head and head['waiting']):
    told = 'its checkpoints know of none: the run is older than ledgers'
    if head:
      told = f'checkpoint {step} knows of {head["lines"]:,} lines'
    raise chain.LedgerError(f'{path} does not exist; {told}.')
  lines, rest = chain.read(path) if path.exists() else ([], b'')
  if head:
    waiting = [line.encode() for line in head['waiting']]
    if len(lines) < head['lines']:  # The rest is in the checkpoint alone.
      lines = lines[: head['lines'] - len(waiting)] + waiting
    chain.check(path, lines, head)
  rows = chain.parse(path, lines)
  found = _Reader(path)
  for number, row in enumerate(rows, 1):
    try:
      found.add(number, row)
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
      raise chain.broken(path, number, f'is wrong: {error!r}') from error
    if head and number == head['lines'] and found.row != about['data_index']:
      raise chain.broken(
        path,
        number,
        f'ends with row {found.row:,}, and checkpoint {step} goes on with row '
        f'{about["data_index"]:,}',
      )
  if found.reads is None:
    raise chain.LedgerError(f'{path} is empty.')
  return Story(
    path=path,
    lines=tuple(found.lines),
    first=found.first,
    sealed=step,
    sealed_lines=head['lines'] if head else 0,
    count=len(rows),
    torn=len(rest),
    reads=found.reads,
  )


class _Reader:
  """Takes lines one by one; each must go on where the one before stopped."""

  def __init__(self, path: pathlib.Path):
    self.lines: list[Line] = []
    self.reads: terms.Reads | None = None
    self.row, self.step, self.first = 0, 0, (0, 0)
    self._path, self._opened = path, {}

  def add(self, number: int, row: dict[str, Any]) -> None:
    if 'ledger' in row:
      return self._open(number, row)
    self._check(number, self.reads is not None, 'comes before what opens it')
    assert self.reads
    line = Line(
      number=number,
      rows=_pair(row['rows']),
      steps=_pair(row['steps']),
      phase=row['phase'],
      outcome=row['outcome'],
      sources=tuple(row['sources']),
      tokens=row['tokens'],
      counted=row['counted'],
      each=_cut(row['each']),
      reads=self.reads,
    )
    self._compare(line, row['digest'])
    self.lines.append(line)
    self.row, self.step = line.rows[1], line.steps[1]

  def _open(self, number, row) -> None:
    place = row['row'], row['step']
    self._check(number, row['ledger'] == chain.FORMAT, 'has another format')
    if self.reads is None:
      self.row, self.step = self.first = place
    self._check(
      number,
      place == (self.row, self.step),
      f'opens at row {place[0]:,}, and the rows before end with {self.row:,}',
    )
    reads = terms.Reads.parse(row)
    if self.reads is not None:
      self._check(
        number,
        row['run'] == self._opened['run'],
        'is of another run',
      )
      named = any(self.reads.phases)
      self._check(
        number,
        terms.past_of(row, reads, self.row, named)
        == terms.past_of(self._opened, self.reads, self.row, named),
        f'has another order of the rows before {self.row:,}',
      )
    self.reads, self._opened = reads, row

  def _compare(self, line, whole) -> None:
    """Compares a line with the one before, the order and itself."""
    (start, stop), (before, after) = line.rows, line.steps
    order = line.reads.order
    stretch = order.stretch(start)
    steps, count = after - before, stop - start
    left_out = line.outcome == 'left_out'
    seq_len = order.stretches[stretch].seq_len
    most = 0 if left_out else count * seq_len
    for good, what in (
      (line.outcome in chain.OUTCOMES, f'has outcome {line.outcome!r}'),
      (
        start == self.row,
        f'begins with row {start:,}, and the rows before end with {self.row:,}',
      ),
      (
        before == self.step,
        f'begins after step {before:,}, and {self.step:,} steps come before',
      ),
      (count > 0, 'has no rows'),
      (
        steps == 0 if left_out else steps > 0 and count % steps == 0,
        f'has {count:,} rows in {steps:,} steps',
      ),
      (len(line.each) == steps, f'has {len(line.each)} digests'),
      (digest.add(list(line.each)) == whole, 'has a digest that is no sum'),
      (
        0 <= line.tokens <= most and 0 <= line.counted <= most,
        f'has {line.tokens:,} tokens, {line.counted:,} counted, in {most:,} '
        'places',
      ),
      (
        order.stretch(stop - 1) == stretch
        or order.stretches[order.stretch(stop - 1)].seq_len == seq_len,
        'crosses a change of the sequence length',
      ),
      (
        {line.reads.phases[stretch], line.reads.phases[order.stretch(stop - 1)]}
        == {line.phase},
        f'is of phase {line.phase!r}, and its rows are not',
      ),
      (
        list(line.sources) == order.counts(start, stop),
        f'has {list(line.sources)} rows of its sources, and the order gives '
        f'{order.counts(start, stop)}',
      ),
    ):
      self._check(line.number, good, what)

  def _check(self, number: int, good: bool, what: str) -> None:
    if not good:
      raise chain.broken(self._path, number, what)


def newest(run_dir: str) -> tuple[int | None, dict[str, Any]]:
  """Step and meta of the newest checkpoint, as it was sealed."""
  root = folders.root(run_dir)
  names = folders.numbered(root)
  if not names:
    return None, {}
  directory = os.path.join(root, names[0])
  body = folders.check(directory, contents=False)
  # Its other files may be large, and prove nothing here.
  name = f'{folders.META}/metadata'
  if seal.digest(directory, [name])[name] != body['files'].get(name):
    raise errors.damaged(directory, f'{name} has changed')
  return int(names[0]), meta.read(directory)


def _pair(values) -> tuple[int, int]:
  first, last = values
  if type(first) is not int or type(last) is not int:
    raise ValueError(f'{values} are no two numbers')
  return first, last


def _cut(text: str) -> tuple[str, ...]:
  found = [text[i : i + _DIGITS] for i in range(0, len(text), _DIGITS)]
  if any(len(x) != _DIGITS for x in found):
    raise ValueError('a digest is cut')
  return tuple(found)
