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
from collections.abc import Callable, Iterator

import jax

from zaya_jax.config import exit_codes
from zaya_jax.runtime import processes, session


class HungError(RuntimeError):
  """A measurement that did not end in time."""

  exit_code = exit_codes.STOPPED


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
    if processes.processes() > 1:
      processes.client().key_value_set(f'{key}/{processes.process()}', '')
    timer = threading.Timer(self._seconds, self._expire, [what, key])
    timer.daemon = True
    timer.start()
    try:
      yield
    finally:
      timer.cancel()

  def _expire(self, what: str, key: str) -> None:
    late = [str(p) for p in range(processes.processes()) if not _is_in(key, p)]
    who = f'process {", ".join(late)} has not begun it' if late else (
      'all processes have begun it'
    )  # fmt: skip
    self._end(
      HungError(
        f'{what} did not end within {self._seconds:g} s in process '
        f'{processes.process()} of {processes.processes()} ({who}); see what '
        'its devices and links say, then repeat the command.'
      )
    )


def _is_in(key, process) -> bool:
  if processes.processes() == 1:
    return True
  try:
    processes.client().key_value_try_get(f'{key}/{process}')
  except jax.errors.JaxRuntimeError:
    return False
  return True


def _end(error: HungError) -> None:
  if processes.processes() > 1:
    session.fail(error)
  # The main thread waits in XLA, which no exception ends.
  print(f'zaya_jax: error: {error}', file=sys.stderr, flush=True)
  os._exit(error.exit_code)
