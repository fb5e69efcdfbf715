# SPDX-License-Identifier: Apache-2.0
"""The lines of a run, without the run."""

import json

import numpy as np
import pytest

from tests.support import disk
from zaya_jax.checkpoint.reading import ownership
from zaya_jax.data.ledger import book as book_lib
from zaya_jax.data.ledger import chain, digest
from zaya_jax.runtime import fence

TERMS = book_lib.Terms(phase='one', counts=lambda a, b: [b - a, 0])


def start(folder, **changes):
  said = []
  given = {'lines': 0, 'head': '', **changes}
  book = book_lib.Book(str(folder), TERMS, tell=said.append, **given)
  book.said = said
  return book


def push(book, step, refused=False, size=4):
  rows = size * (step - 1), size * step
  measured = {'optim/bad_steps': np.int32(refused)}
  book.push(
    step, rows, np.array([step, 2**32 - 1, 30, 20], np.uint32), measured
  )


def rows_of(folder):
  lines, rest = chain.read(folder / chain.NAME)
  assert not rest
  return chain.parse(folder / chain.NAME, lines)


def test_a_save_ends_a_line(tmp_path):
  book = start(tmp_path)
  for step in (1, 2, 3):
    push(book, step)
  head = book.head(write=True)
  push(book, 4)
  assert book.head(write=True)['lines'] == 2
  one, two = rows_of(tmp_path)
  assert (one['rows'], one['steps']) == ([0, 12], [0, 3])
  assert (one['phase'], one['outcome'], one['sources']) == (
    'one', 'trained', [12, 0],
  )  # fmt: skip
  assert (one['tokens'], one['counted']) == (90, 60)
  assert one['digest'] == digest.to_hex(6, -3)
  assert one['each'] == ''.join(digest.to_hex(s, -1) for s in (1, 2, 3))
  assert (two['rows'], two['steps']) == ([12, 16], [3, 4])
  lines, _ = chain.read(tmp_path / chain.NAME)
  assert head == {'lines': 1, 'head': chain.link(lines[0]), 'waiting': []}


def test_refused_steps_and_rows_left_out_have_lines_of_their_own(tmp_path):
  book = start(tmp_path)
  for step, refused in enumerate([0, 1, 1, 0], 1):
    push(book, step, bool(refused))
  # An incident is on disk at once: of the step that has just ended nothing is.
  assert [row['steps'] for row in rows_of(tmp_path)] == [[0, 1]]
  push(book, 5)
  assert [row['steps'] for row in rows_of(tmp_path)] == [[0, 1], [1, 3]]
  book.head(write=True)
  book.leave_out(5, (20, 28))
  found = rows_of(tmp_path)
  assert [row['outcome'] for row in found] == [
    'trained', 'refused', 'trained', 'left_out',
  ]  # fmt: skip
  assert [row['rows'] for row in found] == [[0, 4], [4, 12], [12, 20], [20, 28]]
  assert (found[3]['steps'], found[3]['tokens']) == ([5, 5], 0)
  book.leave_out(5, (28, 30), 'before')  # The rest of the phase before.
  assert [row['phase'] for row in rows_of(tmp_path)][3:] == ['one', 'before']


def test_fast_copies_hold_lines_themselves(tmp_path):
  book = start(tmp_path)
  push(book, 1)
  copy = book.head(write=False)
  assert not (tmp_path / chain.NAME).exists()
  assert [json.loads(x)['steps'] for x in copy['waiting']] == [[0, 1]]
  assert copy['head'] == chain.link(copy['waiting'][0].encode())
  push(book, 2)
  assert book.head(write=True) == {
    'lines': 1,
    'head': chain.link((tmp_path / chain.NAME).read_bytes()),
    'waiting': [],
  }
  assert rows_of(tmp_path)[0]['steps'] == [0, 2]  # The line went on.


def test_on_a_full_disk_checkpoints_hold_the_lines(tmp_path):
  book = start(tmp_path)
  push(book, 1)
  book.head(write=True)
  size = (tmp_path / chain.NAME).stat().st_size
  with disk.full(size + 10):
    for step in (2, 3):
      push(book, step)
      head = book.head(write=True)
  assert (tmp_path / chain.NAME).stat().st_size == size
  assert (head['lines'], len(head['waiting'])) == (3, 2)
  [said] = book.said
  assert said.startswith('ledger.jsonl is paused (')
  push(book, 4)
  head = book.head(write=True)
  assert book.said[1:] == ['ledger.jsonl is written again']
  assert [row['steps'][1] for row in rows_of(tmp_path)] == [1, 2, 3, 4]
  lines, _ = chain.read(tmp_path / chain.NAME)
  chain.check(tmp_path, lines, head)
  assert head['waiting'] == []


def test_who_was_given_up_writes_nothing(tmp_path, monkeypatch):
  def given_up():
    raise fence.FencedError('generation 1 was given up')

  book = start(tmp_path)
  push(book, 1)
  book.head(write=True)
  content = (tmp_path / chain.NAME).read_bytes()
  monkeypatch.setattr(ownership, 'check_fence', given_up)
  push(book, 2)
  with pytest.raises(fence.FencedError):
    book.head(write=True)
  assert (tmp_path / chain.NAME).read_bytes() == content
  monkeypatch.undo()
  # What a zombie has written all the same goes with the next line.
  with (tmp_path / chain.NAME).open('ab') as file:
    file.write(b'{"rows":[0,4]}\n')
  book.head(write=True)
  assert [row['steps'] for row in rows_of(tmp_path)] == [[0, 1], [1, 2]]


def test_file_that_somebody_cuts_is_not_gone_on_with(tmp_path):
  book = start(tmp_path)
  push(book, 1)
  book.head(write=True)
  (tmp_path / chain.NAME).write_bytes(b'')
  push(book, 2)
  assert len(book.head(write=True)['waiting']) == 1
  assert 'shorter than it was' in book.said[0]
