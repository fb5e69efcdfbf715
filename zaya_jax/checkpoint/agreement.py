# SPDX-License-Identifier: Apache-2.0
"""What the processes of a run agree on while a checkpoint is written or read.

Through jax's key-value store, never through the devices, which compute on: so
it may be called in any thread, where each call has a name of its own.
"""

import collections
import json
from collections.abc import Callable
from typing import Any

from zaya_jax.runtime import processes

_KEPT = 64  # Decisions that stay to be read: all have read older ones.
_decided: collections.deque[str] = collections.deque()


def reach(
  name: str,
  value: Any,
  decide: Callable[[list[Any]], Any],
  timeout_s: float = processes.FOREVER_MS / 1000,
) -> Any:
  """What process 0 decides of what each process has; the same in all.

  Args:
    name: the same in all processes, and used once in a run.
    value: something that JSON can hold.
    decide: makes something that JSON can hold of the values by process; only
      process 0 calls it.
    timeout_s: how long the others may take, and then the decision.

  Raises:
    JaxRuntimeError: if one does not come in time.
  """
  if processes.processes() == 1:
    return decide([value])
  key, wait = f'zaya/{name}', int(timeout_s * 1000)
  client = processes.client()
  client.key_value_set(f'{key}/{processes.process():08d}', json.dumps(value))
  client.wait_at_barrier(f'{key}/all', wait)
  if processes.process():
    return json.loads(client.blocking_key_value_get(f'{key}:decided', wait))
  said = sorted(client.key_value_dir_get(f'{key}/'))
  client.key_value_delete(f'{key}/')
  decision = decide([json.loads(text) for _, text in said])
  client.key_value_set(f'{key}:decided', json.dumps(decision))
  _decided.append(f'{key}:decided')
  if len(_decided) > _KEPT:
    client.key_value_delete(_decided.popleft())
  return decision


def first(values: list[Any]) -> Any:
  """Decides for the first value that is not None."""
  return next((value for value in values if value is not None), None)
