# SPDX-License-Identifier: Apache-2.0
"""Times the engines of one operation, and its peers, on one set of inputs."""

import functools
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
  args, kwargs = case.arguments(np.random.default_rng(0), jnp.dtype(dtype))
  args = jax.tree.map(jnp.asarray, args)
  named = dispatch.named().get(operation.name, 'auto')
  runs = {
    engine.name: operation.run
    for engine in operation.engines
    if named in ('auto', engine.name)
  }
  runs |= peers.PEERS.get(operation.name, {})
  passes = ('forward', 'both') if case.gradients else ('forward',)
  for name, run in runs.items():
    for which, direction in enumerate(passes):
      row = {
        'op': operation.name,
        'case': case.name,
        'engine': name,
        'pass': direction,
      }
      work = case.flops[which], case.bytes[which]
      engine = name if run is operation.run else 'auto'
      with dispatch.use(**{operation.name: engine}):
        yield row | _measure(
          functools.partial(run, **kwargs),
          args,
          case.gradients if direction == 'both' else None,
          repeats,
          *work,
        )


def _measure(run, args, gradients, repeats, flops, bytes_):
  try:
    program = lambda *args: run(*args)
    if gradients is not None:
      program, args = _with_gradients(run, gradients, args)
    (low, seconds, high), temporary = timing.measure(program, args, repeats)
  except dispatch.UnsupportedError as error:
    return {'skipped': str(error)}
  except jax.errors.JaxRuntimeError as error:  # Of memory, most likely.
    return {'skipped': str(error).splitlines()[0]}
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


def _with_gradients(
  run: Callable[..., Any], which: tuple[int, ...], args: tuple[Any, ...]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
  """Value and gradients of some arguments, and what that is called with."""

  def both(cotangent, *args):
    out, vjp = case_lib.vjp(run, which, args)
    return out, vjp(cotangent)

  # Data, as what comes back from the layers behind: XLA cannot fold it.
  rng = np.random.default_rng(1)
  cotangent = jax.tree.map(
    lambda a: jnp.asarray(rng.standard_normal(a.shape, np.float32), a.dtype),
    jax.eval_shape(run, *args),
  )
  return both, (cotangent, *args)


def _limit(flops, bytes_) -> float | None:
  """Seconds that the chip needs at least, None where it is not known."""
  if dispatch.platform() == 'cpu':
    return None
  kind = jax.devices()[0].device_kind.upper()
  for chip in chips.CHIPS.values():
    if chip.name in kind:
      return max(flops / chip.rate, bytes_ / chip.bandwidth) or None
  return None
