# SPDX-License-Identifier: Apache-2.0
"""Ledgers of runs that begin, go on, go back, or have lost theirs."""

import json

import pytest

from tests.support import disk
from tests.zaya_jax.data.ledger import book_test
from zaya_jax.data.ledger import chain, opening

READS = {'run': 'a' * 32, 'seed': 0, 'sources': [{'manifest': 'm'}]}
push, rows_of = book_test.push, book_test.rows_of


def open_at(folder, known=None, step=0, reads=READS):
  said = []
  book = opening.open_book(
    str(folder),
    book_test.TERMS,
    known=known,
    row=4 * step,
    step=step,
    reads=reads,
    tell=said.append,
  )
  book.said = said
  return book


def after(folder, *steps):
  """A run that was saved after each of these steps; the heads."""
  book, done, heads = open_at(folder), 0, []
  for last in steps:
    while done < last:
      done += 1
      push(book, done)
    heads.append(book.head(write=True))
  return heads


def ends(folder):
  return [row['steps'][1] for row in rows_of(folder) if 'steps' in row]


def test_a_run_opens_its_ledger(tmp_path):
  after(tmp_path, 2)
  first, _ = rows_of(tmp_path)
  assert first == {
    'ledger': 1, 'row': 0, 'step': 0, **READS, 'previous': '',
  }  # fmt: skip


def test_going_on_adds_no_line_unless_something_else_is_read(tmp_path):
  [head] = after(tmp_path, 2)
  book = open_at(tmp_path, head, 2)
  push(book, 3)
  head = book.head(write=True)
  assert (ends(tmp_path), book.said) == ([2, 3], [])
  assert sum('ledger' in row for row in rows_of(tmp_path)) == 1
  other = {**READS, 'sources': [{'manifest': 'other'}]}
  book = open_at(tmp_path, head, 3, other)
  last = rows_of(tmp_path)[-1]
  assert (last['row'], last['step']) == (12, 3)
  assert last['sources'] == [{'manifest': 'other'}]
  # And back from there: that line is cut like any other.
  open_at(tmp_path, head, 3)
  assert 'rows' in rows_of(tmp_path)[-1]


def test_lines_behind_the_checkpoint_are_cut_and_kept(tmp_path):
  heads = after(tmp_path, 2, 4, 6)
  lines, _ = chain.read(tmp_path / chain.NAME)
  with (tmp_path / chain.NAME).open('ab') as file:
    file.write(b'{"rows":[24,')
  book = open_at(tmp_path, heads[0], 2)
  assert ends(tmp_path) == [2]
  [said] = book.said
  assert '3 lines behind step 2 are cut' in said
  [record] = map(
    json.loads, (tmp_path / chain.REWINDS).read_text().splitlines()
  )
  assert record['cut'] == [*(x.decode() for x in lines[2:]), '{"rows":[24,']
  assert (record['step'], record['row'], record['kept']) == (2, 8, 2)
  push(book, 3)
  book.head(write=True)
  assert ends(tmp_path) == [2, 3]


def test_a_run_that_begins_anew_cuts_all(tmp_path):
  after(tmp_path, 2)
  book = open_at(tmp_path)
  assert ends(tmp_path) == []
  assert len(rows_of(tmp_path)) == 1
  assert '2 lines behind step 0 are cut' in book.said[0]


def test_a_rewind_that_cannot_be_kept_is_told(tmp_path):
  heads = after(tmp_path, 2, 4)
  with disk.full(10):
    book = open_at(tmp_path, heads[0], 2)
  assert 'kept nowhere: ' in book.said[0]
  assert ends(tmp_path) == [2]


def test_waiting_lines_of_a_checkpoint_are_written(tmp_path):
  after(tmp_path, 2)
  book = open_at(tmp_path, after(tmp_path, 2)[0], 2)
  push(book, 3)
  push(book, 4)
  copy = book.head(write=False)
  for already in (False, True):  # The file may have them by now.
    book = open_at(tmp_path, copy, 4)
    assert ends(tmp_path) == [2, 4], already
    assert len(book.said) == 0
  push(book, 5)
  book.head(write=True)
  open_at(tmp_path, copy, 4)
  assert ends(tmp_path) == [2, 4]


def test_lines_that_wait_still_wait_on_a_disk_that_is_still_full(tmp_path):
  [head] = after(tmp_path, 2)
  book = open_at(tmp_path, head, 2)
  size = (tmp_path / chain.NAME).stat().st_size
  with disk.full(size + 10):
    push(book, 3)
    head = book.head(write=True)
    book = open_at(tmp_path, head, 3)
    push(book, 4)
    head = book.head(write=True)
  assert len(head['waiting']) == 2
  open_at(tmp_path, head, 4)
  assert ends(tmp_path) == [2, 3, 4]


def broken(folder, known, step):
  with pytest.raises(chain.LedgerError) as error:
    open_at(folder, known, step)
  assert error.value.exit_code == 3
  return str(error.value)


def test_ledgers_that_are_not_what_they_were_are_refused(tmp_path):
  heads = after(tmp_path, 2, 4)
  path = tmp_path / chain.NAME
  whole = path.read_bytes()
  lines = whole.splitlines(keepends=True)
  path.write_bytes(b''.join(lines[:2]))
  assert 'line 3, is missing' in broken(tmp_path, heads[1], 4)
  path.write_bytes(whole.replace(b'"counted":40', b'"counted":41', 1))
  said = broken(tmp_path, heads[1], 4)
  assert 'line 2, was changed' in said
  assert f'mv {path} {path}.lost' in said
  path.unlink()
  assert 'No such file' in broken(tmp_path, heads[1], 4)
  path.write_bytes(whole)
  assert open_at(tmp_path, heads[1], 4).said == []


def test_a_ledger_that_is_given_up_begins_again_and_says_so(tmp_path):
  heads = after(tmp_path, 2, 4)
  path = tmp_path / chain.NAME
  path.rename(tmp_path / opening.LOST)
  book = open_at(tmp_path, heads[1], 4)
  assert book.said == ['ledger.jsonl begins again at step 4: it was given up']
  [first] = rows_of(tmp_path)
  assert (first['row'], first['lost']['head']) == (16, heads[1]['head'])
  push(book, 5)
  head = book.head(write=True)
  path.unlink()  # Nobody has given this one up.
  assert 'No such file' in broken(tmp_path, head, 5)


@pytest.mark.parametrize('when', ['before a save', 'before it is put away'])
def test_a_run_that_is_killed_behind_giving_up_goes_on(
  tmp_path, monkeypatch, when
):
  heads = after(tmp_path, 2, 4)
  path, lost = tmp_path / chain.NAME, tmp_path / opening.LOST
  content = path.read_bytes()
  path.rename(lost)
  if when == 'before it is put away':
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
      patch.setattr(opening.pathlib.Path, 'rename', _kill)
      open_at(tmp_path, heads[1], 4)
    assert lost.exists()
  else:
    push(open_at(tmp_path, heads[1], 4), 5)
  book = open_at(tmp_path, heads[1], 4)
  assert book.said[0].endswith('begins again at step 4: it was given up')
  push(book, 5)
  head = book.head(write=True)
  assert [row.get('step') for row in rows_of(tmp_path)] == [4, None]
  assert (tmp_path / f'{opening.LOST}-4').read_bytes() == content
  assert open_at(tmp_path, head, 5).said == []


def _kill(*_):
  raise KeyboardInterrupt


def test_a_ledger_that_is_given_up_overwrites_none_of_before(tmp_path):
  heads = after(tmp_path, 2, 4)
  path, lost = tmp_path / chain.NAME, tmp_path / opening.LOST
  path.rename(lost)
  open_at(tmp_path, heads[1], 4)
  whole = path.read_bytes()
  path.rename(lost)
  open_at(tmp_path, heads[1], 4)
  kept = sorted(tmp_path.glob(f'{opening.LOST}-*'))
  assert [x.name[len(opening.LOST) :] for x in kept] == ['-4', '-4-2']
  assert kept[1].read_bytes() == whole and len(kept[0].read_bytes())


def test_a_run_older_than_ledgers_says_so(tmp_path):
  book = open_at(tmp_path, None, 7)
  assert book.said == [
    'ledger.jsonl begins at step 7: the run is older than ledgers'
  ]
  [first] = rows_of(tmp_path)
  assert (first['row'], first['step']) == (28, 7)
