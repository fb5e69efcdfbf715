# SPDX-License-Identifier: Apache-2.0
"""How long ranks may live without an answer of the supervisor."""

import pytest

from zaya_jax.aegis.agent import deadman


@pytest.fixture
def dead(monkeypatch):
  """A dead man at a clock, whose thread does not start."""
  made = deadman.DeadMan(lambda: None)
  made.now, made.threads = 100.0, []
  monkeypatch.setattr(deadman.time, 'monotonic', lambda: made.now)
  thread = type('Thread', (), {'start': lambda _: made.threads.append(1)})
  monkeypatch.setattr(deadman.threading, 'Thread', lambda **_: thread())
  return made


def test_answer_holds_from_when_its_report_was_sent(dead):
  dead.sending(1)
  dead.now = 107.0
  dead.sending(2)
  dead.now = 109.0
  dead.answered(1, 20.0)
  assert dead._until == 120.0
  dead.answered(2, 20.0)
  assert dead._until == 127.0
  assert len(dead.threads) == 1


def test_answer_to_nothing_is_none(dead):
  dead.sending(1)
  dead.answered(7, 20.0)
  dead.answered(1, 20.0)  # Seven has been answered: one is forgotten.
  assert dead._until is None


def test_ranks_end_when_the_time_is_up(dead, monkeypatch):
  done = []
  dead._kill = lambda: done.append('kill')
  monkeypatch.setattr(deadman.os, '_exit', lambda code: done.append(code))

  def sleep(seconds):
    dead.now += seconds
    if dead.now < 130:
      dead._until = 135.0  # An answer came meanwhile.

  monkeypatch.setattr(deadman.time, 'sleep', sleep)
  dead._until = 120.0
  dead._run()
  assert done == ['kill', 75] and dead.now == 135.0
