# SPDX-License-Identifier: Apache-2.0
"""A tracker that is slow, absent or broken costs rows, never time or a run."""

import threading

import pytest

from zaya_jax import config
from zaya_jax.metrics.trackers import feed


class Tracker:
  """Keeps what it is told; waits and fails as it is told."""

  def __init__(self):
    self.told, self.closed = [], False
    self.go = threading.Event()
    self.go.set()
    self.error = None

  def scalars(self, values, step):
    self.go.wait()
    if self.error:
      raise self.error
    self.told.append((step, values))

  def text(self, name, words, step):
    self.told.append((step, name, words))

  def close(self):
    self.closed = True


def test_all_is_handed_on_in_order_and_then_closed():
  tracker = Tracker()
  made = feed.Feed(lambda: tracker)
  values = {'train/loss': 2.0}
  made.scalars(values, 1)
  values['train/loss'] = 1.0  # The caller's row is the caller's.
  made.text('sample', 'def', 2)
  made.scalars(values, 3)
  made.close()
  assert tracker.closed
  assert tracker.told == [
    (1, {'train/loss': 2.0}),
    (2, 'sample', 'def'),
    (3, {'train/loss': 1.0}),
  ]


def test_a_wrong_setting_ends_the_start_and_another_failure_does_not():
  def refuse():
    raise config.UsageError('no key')

  with pytest.raises(config.UsageError, match='no key'):
    feed.Feed(refuse)

  def fail():
    raise RuntimeError('no network\nand a long story')

  made = feed.Feed(fail)
  with pytest.raises(OSError, match='^no network$'):
    made.scalars({}, 1)
  made.close()


def test_who_was_not_there_is_asked_again(monkeypatch):
  monkeypatch.setattr(feed, '_AGAIN_S', 0.0)
  tracker, answers = Tracker(), [RuntimeError('no network'), None]

  def make():
    if error := answers.pop(0):
      raise error
    return tracker

  made = feed.Feed(make)
  with pytest.raises(OSError):
    made.scalars({}, 1)
  made.scalars({}, 2)
  made.close()
  assert tracker.told[-1] == (2, {}) and not answers


def test_a_failure_is_told_at_the_next_row_once():
  tracker = Tracker()
  tracker.error = ValueError('bad name')
  made = feed.Feed(lambda: tracker)
  made.scalars({}, 1)
  while made._wrong is None:
    pass
  tracker.error = None
  with pytest.raises(OSError, match='bad name'):
    made.scalars({}, 2)
  made.scalars({}, 3)
  made.close()
  assert [step for step, _ in tracker.told] == [2, 3]


def test_a_tracker_that_hangs_takes_a_bounded_number_of_rows(monkeypatch):
  monkeypatch.setattr(feed, '_MOST', 3)
  tracker = Tracker()
  tracker.go.clear()
  made = feed.Feed(lambda: tracker)
  with pytest.raises(OSError, match='3 rows wait for it'):
    for step in range(9):
      made.scalars({}, step)
  with pytest.raises(OSError, match='rows wait|did not end within 0.05 s'):
    made.close(within_s=0.05)
  assert not tracker.closed
  tracker.go.set()


def test_what_is_lost_at_the_end_is_told():
  tracker = Tracker()
  tracker.error = ValueError('bad name')
  made = feed.Feed(lambda: tracker)
  made.scalars({}, 1)
  with pytest.raises(OSError, match='^bad name$'):
    made.close()
