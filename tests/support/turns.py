# SPDX-License-Identifier: Apache-2.0
"""Threads of which one runs at a time, in an order that a seed draws.

A thread gives the turn away where the code under test calls `Turns.give`. The
same seed gives the same order, as long as nothing else waits.
"""

import random
import threading
from collections.abc import Callable


class Crash(BaseException):
  """Ends a worker where it is; all that it tries afterwards crashes too."""


class Turns:
  """Workers, and whose turn it is.

  Args:
    seed: of the order.

  Attributes:
    random: draws the order; free for others between two turns.
  """

  def __init__(self, seed: int):
    self.random = random.Random(seed)
    self._mine = threading.local()
    self._workers: list[_Worker] = []
    self._back = threading.Semaphore(0)

  def add(self, work: Callable[[], None]) -> None:
    """Adds a worker that does `work`, from its first turn on."""
    worker = _Worker()

    def run():
      self._mine.worker = worker
      worker.go.acquire()
      try:
        work()
      except Crash:
        pass
      except BaseException as error:
        worker.error = error
      worker.is_done = True
      self._back.release()

    worker.thread = threading.Thread(target=run)
    worker.thread.start()
    self._workers.append(worker)

  def run(self, between: Callable[[], None], crash_share: float = 0.0) -> None:
    """Gives turns until all are done; raises what a worker raised.

    Args:
      between: is called before each turn.
      crash_share: the share of turns in which a worker crashes.
    """
    fault = None
    while alive := [worker for worker in self._workers if not worker.is_done]:
      try:
        if fault is None:
          between()
      except BaseException as error:
        fault = error
      worker = self.random.choice(alive)
      worker.is_crashed |= bool(fault) or self.random.random() < crash_share
      worker.go.release()
      self._back.acquire()
      fault = fault or worker.error
    for worker in self._workers:
      worker.thread.join()
    if fault:
      raise fault

  def give(self) -> None:
    """Lets others go on; nothing in a thread that is no worker."""
    worker = getattr(self._mine, 'worker', None)
    if worker is None:
      return
    if not worker.is_crashed:
      self._back.release()
      worker.go.acquire()
    if worker.is_crashed:
      raise Crash


class _Worker:
  thread: threading.Thread
  error: BaseException | None = None
  is_done = is_crashed = False

  def __init__(self):
    self.go = threading.Semaphore(0)
