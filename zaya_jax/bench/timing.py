# SPDX-License-Identifier: Apache-2.0
"""How long a function of arrays takes on the default device."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax

_BATCH_S = 0.02  # Calls that are timed together: launching them is hidden.


def measure(
  f: Callable[..., Any], args: tuple[Any, ...], repeats: int
) -> tuple[list[float], int]:
  """Compiles `f`, runs it once, and times `repeats` batches of calls.

  Args:
    f: a function that `jax.jit` takes.
    args: its inputs, on the device.
    repeats: how many times are taken, at least one.

  Returns:
    Seconds of a call: the first quartile, the median and the third; and bytes
    of the compiled program beside inputs and outputs.
  """
  compiled = jax.jit(f).lower(*args).compile()
  jax.block_until_ready(compiled(*args))
  once = _seconds(compiled, args, 1)
  batch = max(1, int(_BATCH_S / max(once, 1e-6)))
  times = [_seconds(compiled, args, batch) for _ in range(repeats)]
  quartiles = statistics.quantiles(times, n=4) if repeats > 1 else times * 3
  return quartiles, compiled.memory_analysis().temp_size_in_bytes


def _seconds(compiled, args, batch):
  start = time.perf_counter()
  for _ in range(batch):
    out = compiled(*args)
  jax.block_until_ready(out)
  return (time.perf_counter() - start) / batch
