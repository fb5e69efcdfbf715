# SPDX-License-Identifier: Apache-2.0
"""One process decides, all know it, and nothing is left in the store."""

import time

import jax
import pytest

from tests.support import store as store_lib
from zaya_jax.checkpoint import agreement


def test_first_process_decides_of_all_values_in_their_order(monkeypatch):
  asked = []

  def decide(values):
    asked.append(values)
    return {'sum': sum(values)}

  found = store_lib.run(
    monkeypatch, 3, lambda i: agreement.reach('sum', 10**i, decide)
  )
  assert found == [{'sum': 111}] * 3
  assert asked == [[1, 10, 100]]


def test_store_keeps_no_values_and_few_decisions(monkeypatch):
  monkeypatch.setattr(agreement, '_KEPT', 4)
  store = store_lib.Store(2)

  def body(number):
    return [agreement.reach(f'turn/{i}', number, len) for i in range(9)]

  assert store_lib.run(monkeypatch, 2, body, store) == [[2] * 9] * 2
  assert sorted(store.values) == [f'zaya/turn/{i}:decided' for i in range(5, 9)]


def test_who_misses_another_is_told_in_time(monkeypatch):
  def body(number):
    if number == 2:
      return 'away'
    return agreement.reach('meeting', number, max, timeout_s=0.2)

  started = time.monotonic()
  found = store_lib.run(monkeypatch, 3, body)
  assert time.monotonic() - started < 10
  assert [type(x) for x in found[:2]] == [jax.errors.JaxRuntimeError] * 2


def test_one_process_decides_alone():
  assert agreement.reach('alone', (1, 2), lambda said: said) == [(1, 2)]


@pytest.mark.parametrize(
  'values, expected',
  [([None, None], None), ([None, 0, 3], 0), ([['a'], None], ['a'])],
)
def test_first_that_is_not_none_is_taken(values, expected):
  assert agreement.first(values) == expected
