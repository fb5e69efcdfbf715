# SPDX-License-Identifier: Apache-2.0
"""Records that were read last, up to a number of bytes."""

import collections
import threading
from collections.abc import Callable, Hashable

import numpy as np


class Cache:
  """Arrays by key; threads may share it.

  Args:
    most_bytes: of all arrays. One that is larger is not kept.
  """

  def __init__(self, most_bytes: int):
    self._most, self._bytes = most_bytes, 0
    self._arrays: collections.OrderedDict[Hashable, np.ndarray] = (
      collections.OrderedDict()
    )
    self._lock = threading.Lock()

  def get(self, key: Hashable, read: Callable[[], np.ndarray]) -> np.ndarray:
    """The array of this key; `read` gives it where it is not kept."""
    with self._lock:
      found = self._arrays.get(key)
      if found is not None:
        self._arrays.move_to_end(key)
        return found
    found = read()
    with self._lock:
      if key not in self._arrays and found.nbytes <= self._most:
        self._arrays[key] = found
        self._bytes += found.nbytes
        while self._bytes > self._most:
          _, gone = self._arrays.popitem(last=False)
          self._bytes -= gone.nbytes
    return found
