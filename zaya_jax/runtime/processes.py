# SPDX-License-Identifier: Apache-2.0
"""Which process of a run this is, and what all agree on between steps.

They agree through jax's key-value store, never through the devices.
"""

import contextlib
import itertools
import json
from collections.abc import Callable
from typing import Any

import jax
from jax._src import distributed as jax_distributed

_STOP = 'zaya/stop'
FOREVER_MS = 2**31 - 1  # Lost processes are found by their heartbeat.
_turns = itertools.count()


def process() -> int:
  """The number of this process, from 0."""
  return jax_distributed.global_state.process_id


def processes() -> int:
  """The number of processes of this run."""
  return jax_distributed.global_state.num_processes


def client() -> Any:
  """The key-value store of all processes; None where there is one."""
  return jax_distributed.global_state.client


def first_says(compute: Callable[[], Any]) -> Any:
  """What process 0 computes; all others wait for it.

  Args:
    compute: gives something that JSON can hold.
  """
  if processes() == 1:
    return compute()
  key = f'zaya/says/{next(_turns)}'
  if process() == 0:
    said = compute()
    client().key_value_set(key, json.dumps(said))
    return said
  return json.loads(client().blocking_key_value_get(key, FOREVER_MS))


def largest(mine: float) -> float:
  """The largest number that a process names; all wait for all."""
  if processes() == 1:
    return mine
  key = f'zaya/largest/{next(_turns)}'
  client().key_value_set(f'{key}/{process()}', json.dumps(mine))
  # One process alone reads them all.
  of = lambda i: client().blocking_key_value_get(f'{key}/{i}', FOREVER_MS)
  return first_says(lambda: max(json.loads(of(i)) for i in range(processes())))


def all_say(said: Any) -> list[Any]:
  """What each process says, by their numbers; all wait for all.

  Args:
    said: something that JSON can hold.
  """
  if processes() == 1:
    return [said]
  key = f'zaya/all/{next(_turns)}'
  client().key_value_set(f'{key}/{process()}', json.dumps(said))
  return [
    json.loads(client().blocking_key_value_get(f'{key}/{i}', FOREVER_MS))
    for i in range(processes())
  ]


def barrier(name: str) -> None:
  """Waits for all processes, for as long as they live."""
  if processes() > 1:
    client().wait_at_barrier(f'zaya/{name}/{next(_turns)}', FOREVER_MS)


def stop_at(step: int, name: str) -> str:
  """Whether all processes stop after `step`: the signal's name, or ''.

  Each calls it after each step. One that has got a signal in step s names s +
  2: it has not dispatched s + 1 by then, and nobody can be done with s + 2
  before it has, as losses are summed over all.

  Args:
    step: steps dispatched.
    name: of the signal that this process has got; '': none.
  """
  if processes() == 1:
    return name
  found = _try_get(_STOP)
  if name and found is None:
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # Another was first.
      client().key_value_set(_STOP, json.dumps([step + 2, name]))
    found = _try_get(_STOP)
  when, name = json.loads(found) if found else (step + 1, '')
  return name if step >= when else ''


def _try_get(key: str) -> str | None:
  try:
    return client().key_value_try_get(key)
  except jax.errors.JaxRuntimeError as error:
    if 'NOT_FOUND' in str(error):
      return None
    raise
