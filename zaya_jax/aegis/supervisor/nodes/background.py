# SPDX-License-Identifier: Apache-2.0
"""Calls that may block, in threads that nobody has to wait for."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar('Result')


async def run(
  function: Callable[..., Result], *args: Any, limit_s: float
) -> Result:
  """Calls a function in a thread of its own.

  Raises:
    TimeoutError: if it has not returned in time; it is left alone then.
  """
  loop = asyncio.get_running_loop()
  answer: asyncio.Future[Result] = loop.create_future()

  def give(result: Any, error: BaseException | None) -> None:
    if answer.done():
      return
    if error is None:
      answer.set_result(result)
    else:
      answer.set_exception(error)

  def call() -> None:
    result, error = None, None
    try:
      result = function(*args)
    except BaseException as caught:
      error = caught
    with contextlib.suppress(RuntimeError):  # The loop has ended.
      loop.call_soon_threadsafe(give, result, error)

  # Not of an executor, whose threads are waited for when the program ends.
  threading.Thread(target=call, daemon=True).start()
  return await asyncio.wait_for(answer, limit_s)


def start(
  function: Callable[..., Result], *args: Any, limit_s: float
) -> 'asyncio.Task[Result]':
  """As `run`, as a task; a run that ends need not ask how it went."""
  task = asyncio.create_task(run(function, *args, limit_s=limit_s))
  task.add_done_callback(lambda done: done.cancelled() or done.exception())
  return task
