# SPDX-License-Identifier: Apache-2.0
"""A collective that does not end is named, and the command ends.

XLA's own limit (--distributed.collective_timeout_s) ends a process, too, but
knows neither the message nor who is missing.
"""

import contextlib
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

import jax

from zaya_jax.config import exit_codes
from zaya_jax.runtime import processes, session

_SPREAD_S = 2.0  # In which all processes that live have noticed.


class HungError(RuntimeError):
  """A measurement that did not end in time.

  Attributes:
    missing: the processes that have not begun it or do not answer.
  """

  exit_code = exit_codes.STOPPED
  missing: tuple[int, ...] = ()


class Limit:
  """Seconds that a single measurement may take.

  Args:
    seconds: of each.
    end: is told what has hung, in a thread of its own, and ends the process.
  """

  def __init__(
    self, seconds: float, end: Callable[[HungError], None] | None = None
  ):
    self._seconds, self._end = seconds, end or _end
    self._turns = itertools.count()

  @contextlib.contextmanager
  def within(self, what: str) -> Iterator[None]:
    """Inside, `what` is measured: all processes enter it together."""
    key = f'zaya/bench/{next(self._turns)}'
    _post(key)
    timer = threading.Timer(self._seconds, self._expire, [what, key])
    timer.daemon = True
    timer.start()
    try:
      yield
    finally:
      timer.cancel()

  def _expire(self, what: str, key: str) -> None:
    _post(f'{key}/late')
    if processes.processes() > 1:
      time.sleep(_SPREAD_S)
    missing, why = _who(key)
    error = HungError(
      f'{what} did not end within {self._seconds:g} s in process '
      f'{processes.process()} of {processes.processes()} ({why}); see '
      'what its devices and links say, then repeat the command.'
    )
    error.missing = missing
    self._end(error)


def _who(key: str) -> tuple[tuple[int, ...], str]:
  """The processes that have not come so far, or do not answer; in words."""
  if absent := _absent(key):
    return absent, f'process {_listed(absent)} has not begun it'
  if silent := _absent(f'{key}/late'):
    return silent, f'process {_listed(silent)} does not answer'
  return (), 'all processes wait for their devices'


def _post(key: str) -> None:
  if processes.processes() > 1:
    processes.client().key_value_set(f'{key}/{processes.process()}', '')


def _absent(key: str) -> tuple[int, ...]:
  """The processes that have not posted a key."""
  return tuple(
    p
    for p in range(processes.processes())
    if p != processes.process() and not _is_there(f'{key}/{p}')
  )


def _listed(numbers: tuple[int, ...]) -> str:
  return ', '.join(map(str, numbers))


def _is_there(key: str) -> bool:
  try:
    processes.client().key_value_try_get(key)
  except jax.errors.JaxRuntimeError:
    return False
  return True


def _end(error: HungError) -> None:
  if processes.processes() > 1:
    session.fail(error)
  # The main thread waits in XLA, which no exception ends.
  print(f'zaya_jax: error: {error}', file=sys.stderr, flush=True)
  os._exit(error.exit_code)
