# SPDX-License-Identifier: Apache-2.0
"""How long a function of arrays takes on the default device."""

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax

_BATCH_S = 0.02  # Calls that are timed together: launching them is hidden.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
  """What was measured.

  Attributes:
    median_s: seconds of a call, the median.
    quartiles_s: seconds, the first and the third quartile.
    temporary_bytes: of the compiled program, beside inputs and outputs.
  """

  median_s: float
  quartiles_s: tuple[float, float]
  temporary_bytes: int


def measure(
  f: Callable[..., Any], args: tuple[Any, ...], repeats: int
) -> Timing:
  """Compiles `f`, runs it once, and times `repeats` batches of calls.

  Args:
    f: a function that `jax.jit` takes.
    args: its inputs, on the device.
    repeats: how many times are taken, at least one.
  """
  compiled = jax.jit(f).lower(*args).compile()
  jax.block_until_ready(compiled(*args))
  once = _seconds(compiled, args, 1)
  batch = max(1, int(_BATCH_S / max(once, 1e-6)))
  times = [_seconds(compiled, args, batch) for _ in range(repeats)]
  low, median, high = (
    statistics.quantiles(times, n=4) if len(times) > 1 else times * 3
  )
  return Timing(
    median_s=median,
    quartiles_s=(low, high),
    temporary_bytes=compiled.memory_analysis().temp_size_in_bytes,
  )


def _seconds(compiled, args, batch):
  start = time.perf_counter()
  for _ in range(batch):
    out = compiled(*args)
  jax.block_until_ready(out)
  return (time.perf_counter() - start) / batch
