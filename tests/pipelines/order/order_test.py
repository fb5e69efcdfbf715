# SPDX-License-Identifier: Apache-2.0
"""Which window is which row: against plain lists, and pinned by goldens."""

import collections
import concurrent.futures
import json
import random
import threading
import time
from fractions import Fraction

import pytest

from pipelines import order
from pipelines.order import blocks, quotas, shuffle, stream
from tests.golden import make_order
from tests.support import naive_order

GROUP = 64  # Tokens, instead of 131,072.
LENGTHS = {16: (2, 4, 8, 16, 32, 64), 24: (4, 6, 8, 12, 24, 48)}


@pytest.fixture(autouse=True)
def small_groups(monkeypatch):
  monkeypatch.setattr(blocks, 'GROUP_TOKENS', GROUP)


class Schedule:
  """A random run: what it reads, and how often it is interrupted."""

  def __init__(self, seed):
    self.random = random.Random(seed)
    self.seed, self.per_block = seed, self.random.randint(1, 4)
    record = self.random.choice([16, 24])
    self.lengths = LENGTHS[record]
    self.extents = [
      order.Extent(self.random.randint(2, 900), record)
      for _ in range(self.random.randint(1, 3))
    ]
    self.stretches = [
      order.Stretch(self.random.choice([0, 1, 7, 24, 60, 130]), *self._way())
      for _ in range(self.random.randint(1, 5))
    ]
    if self.random.random() < 0.5:  # Only the batch size changes.
      at = self.random.randrange(len(self.stretches))
      self.stretches.insert(at, self.stretches[at])

  def _way(self):
    weights = [self.random.choice([0, 1, 2, 5]) for _ in self.extents]
    if not any(weights):
      weights[0] = 1
    return self.random.choice(self.lengths), tuple(map(Fraction, weights))

  def order(self, stretches):
    return order.Order(
      self.extents, stretches, self.seed, groups_per_block=self.per_block
    )

  def naive(self):
    count = sum(stretch.rows for stretch in self.stretches)
    return naive_order.rows(
      self.extents, self.stretches, self.seed, count, self.per_block
    )

  def trained(self):
    """Places of all rows, by processes that die and come back as others."""
    done, state = [], 0
    for i in range(len(self.stretches)):
      known = self.stretches[: i + 1]
      end = sum(stretch.rows for stretch in known)
      if self.random.random() < 0.5:  # The end is not known yet.
        endless = order.Stretch(None, known[-1].seq_len, known[-1].weights)
        known = [*known[:-1], endless]
      while state < end:
        rows = self.order(known)
        world = self.random.choice([1, 2, 3])
        batch = world * self.random.randint(1, 9)
        for _ in range(self.random.randint(1, 12)):  # Then it is killed.
          for process in range(world):
            here = order.rows(batch, process, world)
            here = range(state + here.start, min(state + here.stop, end))
            done += rows.places(here)
          state = min(state + batch, end)
          if self.random.random() < 0.1:  # The save before is the newest.
            state = max(0, state - batch)
            del done[state:]
    return done


def check(schedule):
  """Nothing is lost, repeated, or elsewhere than in the plain lists."""
  expected, sources = schedule.naive()
  assert schedule.trained() == expected
  rows = schedule.order(schedule.stretches)
  counts = collections.Counter(source for source, *_ in expected)
  assert rows.counts(0, len(expected)) == [
    counts[i] for i in range(len(schedule.extents))
  ]
  left_out = collections.defaultdict(list)
  for i in range(len(schedule.stretches)):
    for place in rows.left_out(i):
      record = schedule.extents[place.source].record_tokens
      first = place.record * record + place.offset
      left_out[place.source] += [
        (place.epoch, token) for token in range(first, first + place.tokens)
      ]
  for number, source in enumerate(sources):
    assert sorted(left_out[number]) == sorted(source.left_out)
    _check_epochs(number, source, expected, left_out[number])


def _check_epochs(number, source, places, left_out):
  """An epoch that is over has each token once, or says that it left it out."""
  tokens = collections.Counter(left_out)
  for who, epoch, record, offset, size in places:
    first = record * source.record + offset
    if who == number:
      tokens.update((epoch, token) for token in range(first, first + size))
  last = source.tokens - 1 if source.tokens % source.record else None
  if last is not None:
    for epoch in range(source.epoch + 1):
      tokens.pop((epoch, last), None)
  assert set(tokens.values()) <= {1}
  for epoch in range(source.epoch):
    assert all(
      (epoch, token) in tokens
      for token in range(source.tokens)
      if token != last
    )


@pytest.mark.parametrize('seed', range(40))
def test_rows_are_those_of_plain_lists(seed):
  check(Schedule(seed))


@pytest.mark.long
def test_rows_are_those_of_plain_lists_in_many_schedules():
  for seed in range(40, 2040):
    check(Schedule(seed))


def _off_by_one(monkeypatch):
  right = quotas._quotas
  monkeypatch.setattr(
    quotas, '_quotas', lambda w: (right(w)[0] + 1, *right(w)[1:])
  )
  quotas.of.cache_clear()


def _four_rounds(monkeypatch):
  right, key = order.Order._columns, shuffle.key

  def wrong(self, rows):
    with monkeypatch.context() as patch:
      patch.setattr(shuffle, 'key', lambda *of: key(*of)[:4])
      return right(self, rows)

  monkeypatch.setattr(order.Order, '_columns', wrong)


def _repeated(monkeypatch):
  right = order.Order.places

  def wrong(self, rows):
    return right(self, [row - (row == 3) for row in rows])

  monkeypatch.setattr(order.Order, 'places', wrong)


def _tokens_given_twice(monkeypatch):
  monkeypatch.setattr(stream, '_mark', lambda *_: None)


@pytest.mark.parametrize(
  'breaks', [_off_by_one, _four_rounds, _repeated, _tokens_given_twice]
)
def test_what_breaks_the_order_is_seen(monkeypatch, breaks):
  breaks(monkeypatch)
  with pytest.raises(AssertionError):
    for seed in range(12):
      check(Schedule(seed))
  monkeypatch.undo()
  quotas.of.cache_clear()


def _order(*stretches, tokens=5_000_000, seed=1, **how):
  made = [
    order.Stretch(rows, length, (Fraction(1),)) for rows, length in stretches
  ]
  return order.Order([order.Extent(tokens, 16)], made, seed, **how)


def test_same_length_goes_on_as_if_it_were_one_stretch():
  whole = _order((None, 8), groups_per_block=2, tokens=999)
  parts = _order(
    (7, 8), (40, 8), (0, 16), (None, 8), groups_per_block=2, tokens=999
  )
  assert parts.places(range(300)) == whole.places(range(300))


def test_what_follows_changes_nothing():
  open_ = _order((20, 8), (None, 16), groups_per_block=2, tokens=999)
  closed = _order((20, 8), (9, 16), (5, 64), groups_per_block=2, tokens=999)
  assert closed.places(range(29)) == open_.places(range(29))
  assert closed.rows == 34 and open_.rows is None
  with pytest.raises(IndexError, match='Row 34'):
    closed.places([34])


def test_stretches_of_equal_weights_have_one_pattern():
  extents = [order.Extent(999, 16)] * 2
  weights = Fraction(7), Fraction(3)
  one = order.Order(extents, [order.Stretch(None, 8, weights)], 0)
  cuts = [order.Stretch(3, 8, weights), order.Stretch(None, 8, weights)]
  assert order.Order(extents, cuts, 0).places(range(50)) == one.places(
    range(50)
  )


def test_rows_far_away_are_found_at_once():
  """12T tokens; the row before an epoch's end and the one after it."""
  rows = _order((None, 16), tokens=12 * 10**12)
  windows = 12 * 10**12 // 16
  last, first = rows.places([windows - 1, windows])
  assert (last.epoch, first.epoch) == (0, 1)
  assert rows.epochs(windows) == [1.0]
  assert rows.counts(0, windows) == [windows]


def test_threads_that_ask_together_get_the_same_rows(monkeypatch):
  stretches = [(100, 8), (50, 16), (50, 64), (None, 8)]
  expected = _order(*stretches, tokens=9999).places(range(200, 232))
  threads, true = 4, stream.Stream.after
  rows, all_here = _order(*stretches, tokens=9999), threading.Barrier(threads)

  def slow(self, count):
    time.sleep(0.01)  # So that others come in between.
    return true(self, count)

  def ask(_):
    all_here.wait()
    return rows.places(range(200, 232))

  monkeypatch.setattr(stream.Stream, 'after', slow)
  with concurrent.futures.ThreadPoolExecutor(threads) as pool:
    assert list(pool.map(ask, range(threads))) == [expected] * threads


def test_fingerprint_tells_orders_apart():
  base = _order((None, 16))
  assert base.fingerprint(5) == _order((9, 16), (None, 16)).fingerprint(5)
  others = [
    base.fingerprint(6),
    _order((None, 8)).fingerprint(5),
    _order((None, 16), seed=2).fingerprint(5),
    _order((None, 16), tokens=5_000_100).fingerprint(5),
  ]
  assert base.fingerprint(5) not in others


def test_epochs_by_hand():
  # 40 windows and 10; three rows of the first source for one of the other.
  extents = [order.Extent(640, 16), order.Extent(160, 16)]
  weights = Fraction(3), Fraction(1)
  rows = order.Order(extents, [order.Stretch(None, 16, weights)], 0)
  assert rows.epochs(0) == [0, 0]
  assert rows.epochs(80) == [1.5, 2.0]


@pytest.mark.parametrize(
  'stretches, sentence',
  [
    ([], 'at least one'),
    ([(None, 8), (3, 8)], 'Only the last'),
    ([(-1, 8)], '-1 rows'),
    ([(3, 10)], 'no windows of 10'),
    ([(3, 128)], 'no windows of 128'),
  ],
)
def test_wrong_stretches_are_refused(stretches, sentence):
  with pytest.raises(ValueError, match=sentence):
    _order(*stretches)


def test_processes_read_neighbouring_rows():
  assert list(order.rows(6, 1, 3)) == [2, 3]
  assert [r for i in range(3) for r in order.rows(6, i, 3)] == list(range(6))


def test_rows_are_pinned(monkeypatch):
  """Else every run that goes on loses and repeats windows."""
  monkeypatch.undo()
  stored = json.loads(make_order.FILE.read_text())
  assert make_order.describe() == stored
