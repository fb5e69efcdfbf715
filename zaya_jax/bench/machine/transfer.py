# SPDX-License-Identifier: Apache-2.0
"""Copies between host and device, of ordinary and of pinned memory.

Ordinary memory is that of NumPy, which is copied once more on the host; pinned
memory the device reads by itself. On a CPU a device may use NumPy's memory as
it is: then nothing is moved.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from zaya_jax import config as config_lib
from zaya_jax.bench.sweep import clock, room, saturation
from zaya_jax.bench.sweep import frame as frame_lib

UNIT = 'GB/s'
WORDS = '{case} of {size:,} bytes'
SMALLEST = 2**12
_COPIES = 4
CASES = ('to device', 'to host', 'pinned to device', 'to pinned host')


def cases(config: config_lib.Config) -> tuple[str, ...]:
  """Directions and kinds of memory."""
  del config
  return CASES


def run(frame: frame_lib.Frame, config: config_lib.Config) -> None:
  """Measures each direction by size."""
  fits = 2 ** int(math.log2(room.free() / _COPIES))
  most = min(config.bench.max_bytes, fits)
  sizes = saturation.ladder(SMALLEST, max(SMALLEST, most))
  wanted = [case for case in CASES if frame.wants(case)]
  device = jax.devices()[0]
  if all(m.kind != 'pinned_host' for m in device.addressable_memories()):
    frame.notes.append(f'{device} has no pinned memory of the host.')
    wanted = [case for case in wanted if 'pinned' not in case]
  frame.expect(len(wanted))
  for case in wanted:
    frame.curve(
      case,
      1,
      sizes,
      work=lambda size: size,
      measure=functools.partial(measure, case, repeats=frame.repeats),
    )


def measure(
  case: str, size: int, expected_s: float | None, repeats: int
) -> clock.Timed:
  """Times copies of `size` bytes, one after another.

  Raises:
    WrongError: if what arrives is not what was sent.
  """
  sent = np.resize(np.arange(251, dtype=np.uint8), size)
  copy = _copy(case, sent)

  def make(calls):
    def run():
      for _ in range(calls):
        copy()

    return run

  timed = clock.measure(make, repeats=repeats, expected_s=expected_s)
  if not np.array_equal(np.asarray(copy()), sent):
    raise frame_lib.WrongError(
      f'{size:,} bytes {case} came changed: {jax.devices()[0]} or its link is '
      'bad, take the node out.'
    )
  return timed


def _copy(case: str, sent: np.ndarray) -> Callable[[], jax.Array | np.ndarray]:
  """A function that copies once and waits for it."""
  device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  to = lambda array, place: jax.block_until_ready(jax.device_put(array, place))
  if case == 'to device':
    return lambda: to(sent, device)
  there = to(jnp.asarray(sent), device)
  if case == 'to host':
    # An array remembers its values once they are here; a new one does not.
    make = jax.make_array_from_single_device_arrays
    return lambda: np.asarray(make(there.shape, device, [there]))
  pinned = device.with_memory_kind('pinned_host')
  if case == 'to pinned host':
    return lambda: to(there, pinned)
  here = to(there, pinned)
  return lambda: to(here, device)
