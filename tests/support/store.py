# SPDX-License-Identifier: Apache-2.0
"""Threads in place of the processes of a run, with a key-value store."""

import concurrent.futures
import itertools
import threading
from collections.abc import Callable
from typing import Any

import jax

from zaya_jax.runtime import processes

_PATIENCE_S = 30.0


class Store:
  """As jax's, with keys that are written once and barriers of all."""

  def __init__(self, count: int):
    self.values: dict[str, str] = {}
    self._count, self._changed = count, threading.Condition()
    self._at: dict[str, int] = {}

  def key_value_set(self, key: str, value: str) -> None:
    with self._changed:
      if key in self.values:
        raise jax.errors.JaxRuntimeError(f'ALREADY_EXISTS: {key}')
      self.values[key] = value
      self._changed.notify_all()

  def key_value_try_get(self, key: str) -> str:
    if key not in self.values:
      raise jax.errors.JaxRuntimeError(f'NOT_FOUND: {key}')
    return self.values[key]

  def blocking_key_value_get(self, key: str, wait_ms: int) -> str:
    with self._changed:
      self._wait(lambda: key in self.values, wait_ms)
      return self.values[key]

  def key_value_dir_get(self, folder: str) -> list[tuple[str, str]]:
    found = self.values.items()
    return [(k, v) for k, v in found if k.startswith(folder)][::-1]

  def key_value_delete(self, key: str) -> None:
    below = key.rstrip('/') + '/'
    for name in [k for k in self.values if k == key or k.startswith(below)]:
      del self.values[name]

  def wait_at_barrier(self, name: str, wait_ms: int) -> None:
    with self._changed:
      self._at[name] = self._at.get(name, 0) + 1
      self._changed.notify_all()
      self._wait(lambda: self._at[name] == self._count, wait_ms)

  def _wait(self, ready: Callable[[], bool], wait_ms: int) -> None:
    if not self._changed.wait_for(ready, min(wait_ms / 1000, _PATIENCE_S)):
      raise jax.errors.JaxRuntimeError('DEADLINE_EXCEEDED')


def run(
  monkeypatch: Any,
  count: int,
  body: Callable[[int], Any],
  store: Store | None = None,
) -> list[Any]:
  """What `body` returns, or raises, in each of `count` processes."""
  store, own = store or Store(count), threading.local()

  class Turns:
    """Those of each process."""

    def __next__(self):
      return next(own.turns)

  monkeypatch.setattr(processes, 'client', lambda: store)
  monkeypatch.setattr(processes, 'processes', lambda: count)
  monkeypatch.setattr(processes, 'process', lambda: own.number)
  monkeypatch.setattr(processes, '_turns', Turns())

  def one(number):
    own.number, own.turns = number, itertools.count()
    try:
      return body(number)
    except jax.errors.JaxRuntimeError as error:
      return error

  with concurrent.futures.ThreadPoolExecutor(count) as pool:
    return list(pool.map(one, range(count)))
