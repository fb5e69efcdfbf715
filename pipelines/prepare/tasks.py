# SPDX-License-Identifier: Apache-2.0
"""Runs tasks in this process or in several; what is done is marked on disk."""

import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import process
from typing import Any, TypeVar

from pipelines import errors

_Task = TypeVar('_Task')


def mark(path: pathlib.Path, content: dict[str, Any]) -> None:
  """Says on disk that a task is done, and with what."""
  partial = path.with_name(f'{path.name}.{os.getpid()}')
  with open(partial, 'w', encoding='utf-8') as file:
    json.dump(content, file)
    file.flush()
    os.fsync(file.fileno())
  os.rename(partial, path)


def marked(path: pathlib.Path) -> dict[str, Any] | None:
  """What `mark` wrote; None: the task is not done."""
  try:
    return json.loads(path.read_bytes())
  except (FileNotFoundError, ValueError):
    return None


def run(
  function: Callable[..., None],
  tasks: Sequence[_Task],
  *common: Any,
  workers: int = 1,
) -> Iterator[_Task]:
  """Calls `function(task, *common)` for each task; yields those that are done.

  The first task that fails ends it, once those that run have ended.

  Args:
    function: of a module; what it makes must not depend on the order.
    tasks: in the order in which they begin.
    common: sent to each worker once.
    workers: processes; 1: this one.

  Raises:
    DataError: of the first task that failed, or if a worker was killed.
  """
  if workers == 1 or len(tasks) < 2:
    for task in tasks:
      function(task, *common)
      yield task
    return
  with concurrent.futures.ProcessPoolExecutor(
    min(workers, len(tasks)),
    _context(),
    _begin,
    (function, common),
  ) as pool:
    futures = {pool.submit(_call, task): task for task in tasks}
    try:
      for future in concurrent.futures.as_completed(futures):
        future.result()
        yield futures[future]
    except process.BrokenProcessPool as error:
      raise errors.DataError(
        'A worker was killed, for want of memory perhaps; the same command '
        'goes on where it was, --data.workers=N with fewer of them.',
        errors.UNUSABLE,
      ) from error
    finally:
      pool.shutdown(wait=True, cancel_futures=True)


def _context() -> multiprocessing.context.BaseContext:
  """Forks of a process that has imported what is needed, and nothing else.

  A fork of this one would copy the locks that its threads hold.
  """
  context = multiprocessing.get_context('forkserver')
  context.set_forkserver_preload([__package__])
  return context


_work: list[Callable[[Any], None]] = []


def _begin(function: Callable[..., None], common: Iterable[Any]) -> None:
  """Makes a process a worker, which ends when the one that began it does."""
  # Each worker is one core: the libraries' own threads would be too many.
  os.environ['TOKENIZERS_PARALLELISM'] = 'false'
  parent = multiprocessing.parent_process()

  def watch() -> None:
    parent.join()
    os._exit(1)

  threading.Thread(target=watch, daemon=True).start()
  _work[:] = [lambda task: function(task, *common)]


def _call(task: Any) -> None:
  _work[0](task)
