# SPDX-License-Identifier: Apache-2.0
"""`ledger.jsonl`: lines of JSON, each with the hash of the one before.

The first line opens the ledger: whose it is, and what is read. So does a line
behind which something else is read. All others say what became of some rows.
The hash of the last line, the head, is in the meta of each checkpoint, which is
sealed: whoever changes, cuts or adds a line would have to change them all.
"""

import hashlib
import itertools
import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

from zaya_jax.checkpoint import errors

NAME = 'ledger.jsonl'
# What was cut off when a run went on from an older checkpoint.
REWINDS = 'ledger_rewinds.jsonl'
FORMAT = 1
OUTCOMES = ('trained', 'refused', 'left_out')

_THEN = 'put back what was there'


class LedgerError(errors.CheckpointError):
  """A ledger that is not what it was, or that is wrong; exit code 3."""


def encode(content: dict[str, Any], previous: str) -> bytes:
  """A line, its end included."""
  line = {**content, 'previous': previous}
  return (json.dumps(line, separators=(',', ':')) + '\n').encode()


def link(line: bytes) -> str:
  """The hash of a line, as the next one and the meta of checkpoints hold it."""
  return hashlib.sha256(line).hexdigest()


def read(path: pathlib.Path) -> tuple[list[bytes], bytes]:
  """The lines of a ledger, and what a killed process has left of the next.

  Raises:
    LedgerError: if there is none, or it cannot be read.
  """
  try:
    *lines, rest = path.read_bytes().split(b'\n')
  except OSError as error:
    raise LedgerError(
      f'{path} cannot be read: {errors.cause(error)}; {_THEN}.'
    ) from error
  return [line + b'\n' for line in lines], rest


def parse(path: pathlib.Path, lines: Iterable[bytes]) -> list[dict[str, Any]]:
  """What lines say, each of which must hold the hash of the one before.

  Raises:
    LedgerError: naming the first line that is wrong.
  """
  found, previous = [], ''
  for number, line in enumerate(lines, 1):
    try:
      row = json.loads(line)
      known = row['previous']
      kind = 'outcome' in row or row['ledger']
    except (ValueError, KeyError, TypeError, RecursionError) as error:
      raise broken(path, number, 'is no line of a ledger') from error
    if known != previous or not kind:
      raise _changed(path, number)
    previous = link(line)
    found.append(row)
  return found


def check(
  path: pathlib.Path, lines: Sequence[bytes], head: dict[str, Any]
) -> None:
  """Compares lines with the head that a checkpoint holds.

  Args:
    path: of the ledger.
    lines: as many as `head` counts or more.
    head: 'lines', how many there are, and 'head', the hash of the last.

  Raises:
    LedgerError: naming the first line that was changed, or the one from which
      on all are missing.
  """
  count = head['lines']
  if len(lines) < count:
    raise broken(
      path,
      len(lines) + 1,
      f'is missing: there are {len(lines):,} lines, and its checkpoint says '
      f'{count:,}',
    )
  last = link(lines[count - 1]) if count else ''
  if last == head['head'] and links(lines[:count]):
    return
  parse(path, lines[:count])  # Names the line.
  raise broken(path, count, 'is not the one that its checkpoint holds')


def links(lines: Sequence[bytes]) -> bool:
  """Whether each line holds the hash of the one before; nothing is parsed."""
  ends = [b'"previous":"%b"}\n' % link(x).encode() for x in lines[:-1]]
  return all(
    line.endswith(end)
    for line, end in zip(lines, itertools.chain([_FIRST], ends), strict=False)
  )


_FIRST = b'"previous":""}\n'


def broken(path: pathlib.Path, number: int, what: str) -> LedgerError:
  """A line that is wrong, and how."""
  return LedgerError(f'{path}, line {number:,}, {what}; {_THEN}.')


def _changed(path, number) -> LedgerError:
  """The hash that line `number` holds is not that of the line before."""
  if number == 1:
    return broken(path, 1, 'is not the first of a ledger')
  return broken(
    path,
    number - 1,
    f'was changed, or lines are missing behind it: line {number:,} holds '
    'another hash',
  )
