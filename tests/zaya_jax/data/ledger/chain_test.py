# SPDX-License-Identifier: Apache-2.0
"""The chain of a ledger: every edit of it is noticed, and its line named."""

import json
import pathlib
import random

import pytest

from zaya_jax.data.ledger import chain

PATH = pathlib.Path('run/ledger.jsonl')


def make(count=9):
  lines, head = [], ''
  for i in range(count):
    row = {'rows': [8 * i, 8 * i + 8], 'outcome': 'trained'}
    lines.append(chain.encode(row if i else {'ledger': 1}, head))
    head = chain.link(lines[-1])
  return lines, {'lines': count, 'head': head}


def test_whole_ledgers_are_taken():
  lines, head = make()
  chain.check(PATH, lines, head)
  rows = chain.parse(PATH, lines)
  assert [row['rows'] for row in rows[1:3]] == [[8, 16], [16, 24]]
  # What has been written since the checkpoint is not its concern.
  chain.check(PATH, [*lines, b'anything'], head)
  chain.check(PATH, [], {'lines': 0, 'head': ''})


@pytest.mark.parametrize('number', [1, 4, 9])
def test_line_that_was_changed_is_named(number):
  lines, head = make()
  lines[number - 1] = lines[number - 1].replace(b'"', b"'", 1)
  with pytest.raises(chain.LedgerError, match=f'line {number}, ') as error:
    chain.check(PATH, lines, head)
  assert error.value.exit_code == 3


def test_line_that_was_made_anew_is_named():
  lines, head = make()
  row = json.loads(lines[4])
  previous = row.pop('previous')
  lines[4] = chain.encode({**row, 'rows': [32, 41]}, previous)
  with pytest.raises(chain.LedgerError, match='line 5, was changed.*line 6'):
    chain.check(PATH, lines, head)


def test_chain_that_was_made_anew_lacks_the_head():
  lines, head = make()
  other, _ = make(8)
  with pytest.raises(chain.LedgerError, match='line 9, is missing: .*8 lines'):
    chain.check(PATH, other, head)
  other.append(chain.encode({'outcome': 'refused'}, chain.link(other[-1])))
  with pytest.raises(chain.LedgerError, match='line 9, is not the one'):
    chain.check(PATH, other, head)


def test_no_random_edit_is_taken():
  lines, head = make()
  whole, rng = b''.join(lines), random.Random(0)
  for _ in range(300):
    harmed = bytearray(whole)
    at = rng.randrange(len(harmed))
    kind = rng.randrange(4)
    if kind == 0:
      harmed[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
      del harmed[at : at + rng.randint(1, 300)]
    elif kind == 2:
      harmed[at:at] = rng.randbytes(rng.randint(1, 9))
    else:
      one, two = sorted(rng.sample(range(len(lines)), 2))
      swapped = list(lines)
      swapped[one], swapped[two] = swapped[two], swapped[one]
      harmed = b''.join(swapped)
    found = [line + b'\n' for line in bytes(harmed).split(b'\n')[:-1]]
    if bytes(harmed).startswith(whole):
      continue  # Behind the head.
    with pytest.raises(chain.LedgerError):
      chain.check(PATH, found, head)


def test_files_are_read_to_their_last_whole_line(tmp_path):
  path, (lines, _) = tmp_path / 'ledger.jsonl', make()
  path.write_bytes(b''.join(lines) + b'{"rows":[')
  assert chain.read(path) == (lines, b'{"rows":[')
  with pytest.raises(chain.LedgerError, match='cannot be read: No such file'):
    chain.read(tmp_path / 'none')
