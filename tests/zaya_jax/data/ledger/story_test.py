# SPDX-License-Identifier: Apache-2.0
"""Lines that open a ledger: what they may change, and what they must not."""

from fractions import Fraction

import numpy as np
import pytest

from pipelines import order
from zaya_jax.data.ledger import book, chain, opening, story, totals


def reads(weights, record_tokens=256, phases=(('', None),)):
  """What opens the ledger of a run of two sources."""
  return {
    'run': 'r', 'order': order.VERSION, 'seed': 0,
    'sources': [
      {'name': x, 'directory': x, 'manifest': 'm', 'tokens': 10**6,
       'record_tokens': record_tokens}
      for x in 'ab'
    ],
    'stretches': [
      {'phase': phase, 'rows': rows, 'seq_len': 16, 'weights': weights.split()}
      for phase, rows in phases
    ],
  }  # fmt: skip


def go_on(folder, weights, known, step, phases=(('', None),)):
  """Three steps of four rows; the head of the ledger then."""
  shares = tuple(map(Fraction, weights.split()))
  extents = [order.Extent(10**6, 256)] * 2
  stretches = [order.Stretch(rows, 16, shares) for _, rows in phases]
  rows = order.Order(extents, stretches, 0)
  phase = phases[rows.stretch(4 * step)][0]
  made = opening.open_book(
    str(folder),
    book.Terms(phase=phase, counts=rows.counts),
    known=known,
    row=4 * step,
    step=step,
    reads=reads(weights, phases=phases),
    tell=lambda note: None,
  )
  for i in range(step, step + 3):
    sums = np.array([1, 2, 64, 64], np.uint32)
    made.push(i + 1, (4 * i, 4 * i + 4), sums, {'optim/bad_steps': 0})
  return made.head(write=True)


def test_weights_may_be_written_in_another_way(tmp_path):
  head = go_on(tmp_path, '3 1', None, 0)
  go_on(tmp_path, '0.75 0.25', head, 3)
  assert story.read(str(tmp_path)).now == 24


def test_other_shares_of_the_past_are_refused(tmp_path):
  head = go_on(tmp_path, '3 1', None, 0)
  go_on(tmp_path, '3 2', head, 3)
  with pytest.raises(chain.LedgerError, match='line 3, has another order'):
    story.read(str(tmp_path))


def test_a_plain_run_may_become_phases(tmp_path):
  """Its rows count for the phases that they are in now."""
  head = go_on(tmp_path, '3 1', None, 0)
  phases = ('one', 8), ('two', 4), ('three', 100)
  go_on(tmp_path, '3 1', head, 3, phases)
  told = story.read(str(tmp_path))
  assert {line.phase for line in told.lines} == {'', 'three'}
  assert told.reads.phases == ('one', 'two', 'three')
  found = {}
  for row in totals.by_phase(told):
    assert row['tokens'] == 16 * row['rows']
    found[row['phase'], row['source']] = row['rows']
  assert found == {
    ('one', 'a'): 6, ('one', 'b'): 2, ('two', 'a'): 3, ('two', 'b'): 1,
    ('three', 'a'): 9, ('three', 'b'): 3,
  }  # fmt: skip


@pytest.mark.parametrize(
  'phases', [(('other', 12), ('more', 100)), (('', None),)]
)
def test_phases_keep_their_names(tmp_path, phases):
  head = go_on(tmp_path, '3 1', None, 0, (('one', 12), ('two', 100)))
  go_on(tmp_path, '3 1', head, 3, phases)
  with pytest.raises(chain.LedgerError, match='has another order'):
    story.read(str(tmp_path))


@pytest.mark.parametrize(
  'opened', [reads('1 1', record_tokens=0), reads('1/0 1'), reads('0 0')]
)
def test_sizes_and_weights_that_are_none_are_named(tmp_path, opened):
  line = {'ledger': chain.FORMAT, 'row': 0, 'step': 0, **opened}
  first = chain.encode(line, '')
  more = {'rows': [0, 4], 'steps': [0, 1], 'phase': '', 'outcome': 'trained',
          'sources': [2, 2], 'tokens': 1, 'counted': 1, 'digest': '0' * 16,
          'each': '0' * 16}  # fmt: skip
  second = chain.encode(more, chain.link(first))
  (tmp_path / chain.NAME).write_bytes(first + second)
  with pytest.raises(chain.LedgerError, match=r'line [12], is wrong') as error:
    story.read(str(tmp_path))
  assert error.value.exit_code == 3
