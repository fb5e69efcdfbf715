# SPDX-License-Identifier: Apache-2.0
"""What slots are to do next, kept on the host until the next step.

Many texts begin and end between two steps. Each change as a program of its own,
and each of its numbers as an array that `jnp` makes, would be some hundred
programs; together they are one, and NumPy's arrays go with its arguments.
"""

from typing import Any

import numpy as np

_KINDS = {
  'tokens': np.int32,
  'left': np.int32,
  'temperature': np.float32,
  'top_p': np.float32,
  'seed': np.uint32,
  'scored': bool,
  'no_repeat': np.int32,
}


class Said:
  """What was said of slots since it was taken last.

  Args:
    count: S, slots.
    size: tokens of each.
  """

  def __init__(self, count: int, size: int):
    self._count, self._size = count, size
    self._by_slot: dict[int, tuple[np.ndarray | None, dict[str, Any]]] = {}

  def put(self, slot: int, seen: np.ndarray | None, **values: Any) -> None:
    """Says all of a slot; what was said of it before counts no more.

    Args:
      slot: which.
      seen: [L] int32, tokens that may not repeat; None: any may.
      **values: a number for each of 'tokens', 'left', 'temperature', 'top_p',
        'seed', 'scored' and 'no_repeat'.
    """
    self._by_slot[slot] = seen, values

  def take(self) -> dict[str, np.ndarray]:
    """What `programs.settle` takes; nothing if nothing was said."""
    said, self._by_slot = self._by_slot, {}
    if not said:
      return {}
    found = {k: np.zeros(self._count, kind) for k, kind in _KINDS.items()}
    found['changed'] = np.zeros(self._count, bool)
    for slot, (seen, values) in said.items():
      for name, value in values.items():
        found[name][slot] = value
      found['changed'][slot] = True
      if seen is not None:
        if 'seen' not in found:
          found['seen'] = np.full((self._count, self._size), -1, np.int32)
        found['seen'][slot, : len(seen)] = seen
    return found
