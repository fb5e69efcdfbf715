# SPDX-License-Identifier: Apache-2.0
"""What processes agree on between steps, with threads in their place."""

import pytest

from tests.support import store as store_lib
from zaya_jax.runtime import processes


def test_all_hear_what_the_first_computes(monkeypatch):
  computed = []

  def body(number):
    def compute():
      computed.append(number)
      return {'from': number}

    return processes.first_says(compute)

  assert store_lib.run(monkeypatch, 3, body) == [{'from': 0}] * 3
  assert computed == [0]


def test_all_hear_all_by_their_numbers(monkeypatch):
  found = store_lib.run(
    monkeypatch, 11, lambda i: processes.all_say([i, 'word'])
  )
  assert found == [[[i, 'word'] for i in range(11)]] * 11


@pytest.mark.parametrize('first', [0, 1])
def test_all_stop_two_steps_after_the_first_signal(monkeypatch, first):
  store = store_lib.Store(2)

  def stops(step, number, name):
    def body(mine):
      return processes.stop_at(step, name if mine == number else '')

    return store_lib.run(monkeypatch, 2, body, store)

  assert stops(4, first, '') == ['', '']
  assert stops(5, first, 'SIGTERM')[first] == ''
  # A later signal of another process changes nothing.
  assert stops(6, 1 - first, 'SIGINT') == ['', '']
  assert stops(7, first, 'SIGTERM') == ['SIGTERM', 'SIGTERM']


def test_one_process_asks_nobody():
  assert processes.first_says(lambda: 3) == 3
  assert processes.all_say('x') == ['x']
  assert processes.stop_at(1, 'SIGINT') == 'SIGINT'
  assert processes.stop_at(1, '') == ''
  processes.barrier('alone')
