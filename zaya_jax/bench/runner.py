# SPDX-License-Identifier: Apache-2.0
"""Times the engines of one operation, and its peers, on one set of inputs."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ops import case as case_lib
from ops import dispatch, registry
from zaya_jax.bench import peers, timing
from zaya_jax.runtime import chips


def rows(
  operation: registry.Operation, case: case_lib.Case, dtype: str, repeats: int
) -> Iterator[dict[str, Any]]:
  """One row for each engine and peer, forward and with gradients.

  Of an operation whose engine is named (--ops.*) that engine alone.

  Yields:
    op, case, engine, pass ('forward', 'both'), and either 'skipped', the reason
    in words, or ms, the quartiles low_ms and high_ms, tflops, gbps, of_limit
    (of the time that the chip needs at least; None where that is unknown), and
    temporary_mb.
  """
  named = dispatch.named().get(operation.name, 'auto')
  runs = [
    engine.name
    for engine in operation.engines
    if named in ('auto', engine.name)
  ]
  peer = peers.PEERS.get(operation.name, {})
  passes = ('forward', 'both') if case.gradients else ('forward',)
  for name in (*runs, *peer):
    for which, direction in enumerate(passes):
      row = {
        'op': operation.name,
        'case': case.name,
        'engine': name,
        'pass': direction,
      }
      try:
        timed = time_one(
          operation, case, name, direction, dtype, repeats, peer.get(name)
        )
        yield row | _row(*timed, case.flops[which], case.bytes[which])
      except SkippedError as error:
        yield row | {'skipped': str(error)}


class SkippedError(RuntimeError):
  """An engine that cannot run, or fails to; the reason."""


def time_one(
  operation: registry.Operation,
  case: case_lib.Case,
  engine: str,
  direction: str,
  dtype: str,
  repeats: int,
  run: Callable[..., Any] | None = None,
) -> tuple[tuple[float, float, float], int]:
  """Times one engine, or a peer, on one set of inputs.

  Args:
    operation: of `ops`.
    case: its inputs.
    engine: its name; a peer's, too.
    direction: 'forward', or 'both' with gradients.
    dtype: of what has the compute type.
    repeats: timed calls.
    run: the peer; None: the operation itself.

  Returns:
    Seconds of the quartiles, and bytes of temporary memory.

  Raises:
    SkippedError: if it cannot run here.
  """
  args, kwargs = case.arguments(np.random.default_rng(0), jnp.dtype(dtype))
  args = jax.tree.map(jnp.asarray, args)
  named, call = 'auto' if run else engine, run or operation.run

  def program(*args):
    return call(*args, **kwargs)

  with dispatch.use(**{operation.name: named}):
    try:
      if direction == 'both':
        program, args = case_lib.with_gradients(program, case.gradients, args)
      (low, seconds, high), temporary = timing.measure(program, args, repeats)
      return (low, seconds, high), temporary
    except dispatch.UnsupportedError as error:
      raise SkippedError(str(error)) from error
    except jax.errors.JaxRuntimeError as error:  # Of memory, most likely.
      raise SkippedError(str(error).splitlines()[0]) from error


def _row(quartiles, temporary, flops, bytes_) -> dict[str, Any]:
  low, seconds, high = quartiles
  limit = _limit(flops, bytes_)
  return {
    'ms': seconds * 1e3,
    'low_ms': low * 1e3,
    'high_ms': high * 1e3,
    'tflops': flops / seconds / 1e12,
    'gbps': bytes_ / seconds / 1e9,
    'of_limit': limit / seconds if limit else None,
    'temporary_mb': temporary / 1e6,
  }


def _limit(flops, bytes_) -> float | None:
  """Seconds that the chip needs at least, None where it is not known."""
  if dispatch.platform() == 'cpu':
    return None
  kind = jax.devices()[0].device_kind.upper()
  for chip in chips.CHIPS.values():
    if chip.name in kind:
      return max(flops / chip.rate, bytes_ / chip.bandwidth) or None
  return None
