# SPDX-License-Identifier: Apache-2.0
"""Opens the ledger of a run that begins or goes on.

The checkpoint decides. Lines behind its head are of steps that are taken anew:
they are cut off and kept in `ledger_rewinds.jsonl`. Lines that it knows must be
there, each as it was.
"""

import contextlib
import itertools
import json
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

from zaya_jax.checkpoint import errors
from zaya_jax.data.ledger import book as book_lib
from zaya_jax.data.ledger import chain
from zaya_jax.runtime import durable, processes

# A ledger that its owner gives up has this name; so nobody does by accident.
LOST = f'{chain.NAME}.lost'
_NONE: dict[str, Any] = {'lines': 0, 'head': '', 'waiting': []}


def open_book(
  run_dir: str,
  terms: book_lib.Terms,
  *,
  known: dict[str, Any] | None,
  row: int,
  step: int,
  reads: dict[str, Any],
  tell: Callable[[str], None],
) -> book_lib.Book:
  """The ledger of a run, cut to what its checkpoint knows; all call it.

  Args:
    run_dir: the run directory.
    terms: of the rows to come.
    known: 'ledger' in the meta of the checkpoint; None: there is none.
    row: the position in the data that the checkpoint holds.
    step: of the checkpoint; 0: the run begins.
    reads: what a line that opens says beside these: run, seed, sources.
    tell: called with sentences for people.

  Raises:
    LedgerError: if lines that the checkpoint knows are missing or changed.
  """
  path = pathlib.Path(run_dir, chain.NAME)

  def prepare():
    try:
      return _prepare(path, known, row, step)
    except chain.LedgerError as error:
      lost = path.with_name(LOST)
      how = f'mv {path} {lost}' if path.exists() else f'touch {lost}'
      what = str(error).removesuffix('.')
      return {'wrong': f'{what}, or have another one begin here: {how}.'}

  found = processes.first_says(prepare)
  if 'wrong' in found:
    raise chain.LedgerError(found['wrong'])
  for note in found['notes']:
    tell(note)
  head = (known or _NONE) if not found['lost'] else _NONE
  waiting = [line.encode() for line in head['waiting']]
  book = book_lib.Book(
    run_dir,
    terms,
    lines=head['lines'],
    head=head['head'],
    waiting=waiting[len(waiting) - head['lines'] + found['there'] :],
    size=found['size'],
    tell=tell,
  )
  opens = json.loads(json.dumps(reads))
  if found['lost']:
    opens['lost'] = found['lost']
  if found['opened'] != {'ledger': chain.FORMAT, **opens}:
    book.add({'ledger': chain.FORMAT, 'row': row, 'step': step, **opens})
  book.write()
  if found['lost'] and not processes.process():
    _put_away(path.with_name(LOST), step)  # It is wanted until this is written.
  return book


def _prepare(path, known, row, step) -> dict[str, Any]:
  """What process 0 does with the file; what all must know of it.

  Returns:
    'there', how many lines the file has now, and their 'size'; 'opened', what
    the newest line that opens says but for its place; 'lost', the head of a
    ledger that was given up; 'notes'.
  """
  notes, lost = [], None
  if known and _is_given_up(path, known):
    lost = {name: known[name] for name in ('lines', 'head')}
    notes.append(f'{path.name} begins again at step {step}: it was given up')
    known = None
  elif not known and step:
    notes.append(
      f'{path.name} begins at step {step}: the run is older than ledgers'
    )
  head = known or _NONE
  lines, rest = [], b''
  if path.exists() or head['lines'] > len(head['waiting']):
    lines, rest = chain.read(path)
  waiting = [line.encode() for line in head['waiting']]
  first = head['lines'] - len(waiting)
  # Some that waited may have been written since, or others in their place.
  keep = head['lines']
  while keep > first and (
    keep > len(lines) or lines[keep - 1] != waiting[keep - 1 - first]
  ):
    keep -= 1
  whole = [*lines[:keep], *waiting[keep - first :]]
  chain.check(path, whole, head)
  if lines[keep:] or rest:
    notes += _cut(path, lines, rest, keep, row, step)
  opens = next((x for x in reversed(whole) if x.startswith(b'{"ledger"')), None)
  opened = json.loads(opens) if opens else {}
  for name in ('row', 'step', 'previous'):
    opened.pop(name, None)
  return {
    'there': keep,
    'size': sum(map(len, whole[:keep])),
    'opened': opened,
    'lost': lost,
    'notes': notes,
  }


def _is_given_up(path: pathlib.Path, known: dict[str, Any]) -> bool:
  """Whether another ledger is to begin, or has begun without a save since."""
  if not path.exists():
    return path.with_name(LOST).exists()
  try:
    opens = chain.parse(path, chain.read(path)[0][:1])
  except chain.LedgerError:
    return False
  head = {name: known[name] for name in ('lines', 'head')}
  return any(line.get('lost') == head for line in opens)


def _put_away(gone: pathlib.Path, step: int) -> None:
  """Gives a ledger that was given up a name that nothing else has."""
  names = itertools.chain([''], (f'-{n}' for n in itertools.count(2)))
  places = (gone.with_name(f'{LOST}-{step}{name}') for name in names)
  if gone.exists():
    gone.rename(next(place for place in places if not place.exists()))


def _cut(path, lines, rest, keep, row, step) -> list[str]:
  """Keeps lines of steps that are taken anew elsewhere; what to tell."""
  tail = [line.decode(errors='replace') for line in lines[keep:]]
  tail += [rest.decode(errors='replace')] if rest else []
  record = {'time': time.time(), 'step': step, 'row': row, 'kept': keep}
  text = json.dumps({**record, 'cut': tail}) + '\n'
  kept, file = (
    f'in {chain.REWINDS}',
    durable.Lines(path.with_name(chain.REWINDS)),
  )
  try:
    with contextlib.closing(file):
      file.write(text.encode())
      file.sync()
  except OSError as error:  # The lines are of steps that will be taken anew.
    kept = f'nowhere: {errors.cause(error)}'
  os.truncate(path, sum(map(len, lines[:keep])))
  with path.open('rb') as cut:
    os.fsync(cut.fileno())
  return [
    f'{path.name}: {len(tail)} lines behind step {step} are cut, kept {kept}'
  ]
