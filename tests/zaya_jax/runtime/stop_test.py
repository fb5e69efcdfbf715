# SPDX-License-Identifier: Apache-2.0
"""Signals ask once and insist the second time."""

import signal
import threading

import pytest

from zaya_jax.runtime import stop

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture(autouse=True)
def handlers():
  """What is installed before a test is installed after it."""
  before = {number: signal.getsignal(number) for number in SIGNALS}
  yield before
  assert {number: signal.getsignal(number) for number in SIGNALS} == before


@pytest.mark.parametrize('number', SIGNALS)
def test_first_signal_is_remembered_and_the_second_interrupts(number):
  with stop.StopSignal() as asked:
    assert not asked and asked.name == ''
    signal.raise_signal(number)
    assert asked and asked.name == number.name
    with pytest.raises(KeyboardInterrupt):
      signal.raise_signal(number)


def test_second_signal_may_be_another_one():
  with stop.StopSignal() as asked:
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
      signal.raise_signal(signal.SIGINT)
    assert asked.name == 'SIGTERM'


def test_handlers_come_back_after_an_error():
  with pytest.raises(ZeroDivisionError):
    with stop.StopSignal():
      raise ZeroDivisionError


def test_another_thread_installs_nothing(handlers):
  seen = []

  def run():
    with stop.StopSignal():
      seen.extend(signal.getsignal(number) for number in SIGNALS)

  thread = threading.Thread(target=run)
  thread.start()
  thread.join()
  assert seen == list(handlers.values())
