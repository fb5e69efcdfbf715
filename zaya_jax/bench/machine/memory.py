# SPDX-License-Identifier: Apache-2.0
"""Bandwidth of the memory of a device, by the kernels of BabelStream.

Deakin et al. 2018, "Evaluating attainable memory bandwidth of parallel
programming models via BabelStream". Bytes are those that a kernel reads and
writes: two arrays by copy and scale, three by add and triad. The size is that
of one array.
"""

import functools
import math
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from zaya_jax import config as config_lib
from zaya_jax.bench.sweep import clock, program, room, saturation
from zaya_jax.bench.sweep import frame as frame_lib

UNIT = 'GB/s'
WORDS = '{case} of {size:,} bytes'
SMALLEST = 2**20
# XLA loads vectors where the number of elements is a multiple of theirs: an odd
# size between powers of two took twice as long on an H200.
_WHOLE = 2**12
_ARRAYS = 4  # Two that are read, the result, and the result before.
# The scalar is an input: XLA may not know that it is 1, and copy nothing.
_KERNELS: Mapping[str, tuple[int, Callable[..., jax.Array], float]] = {
  'copy': (2, lambda a, b, s: a + s, 0.0),
  'scale': (2, lambda a, b, s: s * a, 0.4),
  'add': (3, lambda a, b, s: a + b, 0.0),
  'triad': (3, lambda a, b, s: a + s * b, 0.4),
}


def cases(config: config_lib.Config) -> tuple[str, ...]:
  """The kernels."""
  del config
  return tuple(_KERNELS)


def work(case: str, size: int) -> int:
  """Bytes that a kernel reads and writes, with arrays of `size` bytes."""
  return _KERNELS[case][0] * size


def run(frame: frame_lib.Frame, config: config_lib.Config) -> None:
  """Measures each kernel by the size of its arrays.

  Raises:
    WrongError: if a result is wrong.
  """
  fits = 2 ** int(math.log2(room.free() / _ARRAYS))
  most = min(config.bench.max_bytes, fits)
  sizes = saturation.ladder(SMALLEST, max(SMALLEST, most))
  wanted = [case for case in _KERNELS if frame.wants(case)]
  frame.expect(len(wanted))
  for case in wanted:
    frame.curve(
      case,
      1,
      sizes,
      work=functools.partial(work, case),
      measure=functools.partial(measure, case, repeats=frame.repeats),
      exact=lambda size: size // _WHOLE * _WHOLE,
      cached=True,
    )


def measure(
  case: str, size: int, expected_s: float | None, repeats: int
) -> clock.Timed:
  """Times a kernel on float32 arrays of `size` bytes.

  Raises:
    WrongError: if a result is wrong.
  """
  _, kernel, scalar = _KERNELS[case]
  a, b = (jnp.full(size // 4, value, jnp.float32) for value in (1.5, 0.25))
  s = jnp.float32(scalar)
  timed, found = program.measure(kernel, (a, b, s), repeats, expected_s)
  wanted = kernel(np.float32(1.5), np.float32(0.25), np.float32(scalar))
  if not bool(jnp.all(jnp.abs(found - wanted) < 1e-6)):
    raise frame_lib.WrongError(
      f'{case} of {size:,} bytes gave wrong values; the memory of '
      f'{jax.devices()[0]} is bad, take the node out.'
    )
  return timed
