# SPDX-License-Identifier: Apache-2.0
"""Collectives by message size and number of devices.

A program makes its collective many times, each time of the same message, which
an optimization barrier ties to the result before: none can be left out or
overlap, and the result is right after any number of times. XLA for GPUs lets an
all-reduce overwrite its message, and would copy one that is needed again: there
each sums the result before, and one more call of the message is checked.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from zaya_jax import config as config_lib
from zaya_jax.bench.machine import kinds, pattern
from zaya_jax.bench.sweep import clock, program, room, saturation
from zaya_jax.bench.sweep import frame as frame_lib
from zaya_jax.runtime import processes

UNIT = 'GB/s'
WORDS = '{case} of {size:,} bytes over {devices} devices'
SMALLEST = 1024
_WIDTH = 4  # Bytes of an element: float32, as gradients are summed.
# The message, the result, the result before, and what XLA makes beside them.
_COPIES = 4


def cases(config: config_lib.Config) -> tuple[str, ...]:
  """The collectives."""
  del config
  return tuple(kinds.KINDS)


class Group:
  """The first devices, in a ring; in a process that has none nothing runs.

  Args:
    devices: of all processes.
    agree: of the seconds that each process has taken, those that all go on
      with; default: those of process 0.
  """

  def __init__(
    self, devices: Sequence[jax.Device], agree: clock.Agree | None = None
  ):
    self.size, self._agree = len(devices), agree or _first_says
    self.mesh = jax.make_mesh(
      (self.size,),
      ('d',),
      axis_types=(jax.sharding.AxisType.Auto,),
      devices=devices,
    )
    self._pattern = pattern.Pattern(self.mesh)
    here = processes.process()
    self.takes_part = any(d.process_index == here for d in devices)

  def exact(self, size: int) -> int:
    """The nearest size that each device can send a part of to each other."""
    whole = self.size * _WIDTH
    return max(1, round(size / whole)) * whole

  @functools.cached_property
  def launch_s(self) -> float:
    """Seconds of a program without a collective, as all agree."""
    mine = 0.0
    if self.takes_part:
      nothing = kinds.Kind(call=lambda x, n: x, factor=float, terms=None)
      mine = clock.launch(self._program(nothing, self.size, 1)[0])
    return self._agree(mine)

  def measure(
    self, name: str, size: int, expected_s: float | None, repeats: int
  ) -> clock.Timed:
    """Times a collective and checks what it has given.

    Args:
      name: of `kinds.KINDS`.
      size: of the message in bytes, of those of `exact`.
      expected_s: its seconds, where something is known.
      repeats: the most samples.

    Raises:
      WrongError: if an element of the result is wrong.
    """
    kind, elements, get = kinds.KINDS[name], size // _WIDTH, None

    def make(calls):
      nonlocal get
      get = None  # The arrays of the program before.
      if not self.takes_part:
        return lambda: None
      sent = kind.sends(elements, self.size)
      run, get = self._program(kind, sent, calls)
      return run

    timed = clock.measure(
      make,
      repeats=repeats,
      launch_s=self.launch_s,
      expected_s=expected_s,
      agree=self._agree,
    )
    if self.takes_part and kind.in_place:
      get = None
      once = dataclasses.replace(kind, in_place=False)
      run, get = self._program(once, elements, 1)
      run()
    if get:
      what = f'{name} of {size:,} bytes over {self.size} devices'
      self._pattern.check(what, get(), kind.terms(self.size, elements))
    return timed

  def compile(self, kind: kinds.Kind, sent: int, calls: int) -> tuple[Any, int]:
    """The program of many calls, and the elements that a device receives.

    The program takes messages, and results of which it takes the memory; of a
    kind that is in place the results are the first messages.

    Args:
      kind: of collective.
      sent: elements of a device's message.
      calls: in the program.
    """
    one = lambda x: kind.call(x[0], self.size)[None]
    mapped = jax.shard_map(
      one,
      mesh=self.mesh,
      in_specs=P('d'),
      out_specs=P('d'),
      check_vma=False,
    )

    def many(x, y):
      if kind.in_place:
        return jax.lax.fori_loop(0, calls, lambda _, y: one(y), y)
      return program.many(one, calls)((x,), y)

    place = NamedSharding(self.mesh, P('d'))
    x = jax.ShapeDtypeStruct((self.size, sent), np.float32, sharding=place)
    y = jax.ShapeDtypeStruct(
      jax.eval_shape(mapped, x).shape, np.float32, sharding=place
    )
    whole = jax.shard_map(
      many,
      mesh=self.mesh,
      in_specs=(P('d'), P('d')),
      out_specs=P('d'),
      check_vma=False,
    )
    lowered = jax.jit(whole, donate_argnums=1).lower(x, y)
    return lowered.compile(), y.shape[1]

  def _program(self, kind, sent, calls):
    """Functions that run the program, and that give its last result."""
    compiled, received = self.compile(kind, sent, calls)
    bases = pattern.base(self.size)[:, None]
    x = self._pattern.fill(pattern.terms(bases), sent)
    # Nothing that a right result holds.
    y = self._pattern.fill(pattern.terms(0 * bases - 1, 0), received)

    def run():
      nonlocal y
      y = jax.block_until_ready(compiled(x, y))

    return run, lambda: y


def _first_says(mine: float) -> float:
  return processes.first_says(lambda: mine)


def counts(devices: int) -> list[int]:
  """How many devices to measure: all first, then two, the others, all but one.

  Powers of two; of eight, seven too, which is what is left of a node.
  """
  powers = [2**k for k in range(1, devices.bit_length()) if 2**k < devices]
  return [devices, *powers, *([7] if devices == 8 else [])]


def sizes(largest: int, memory: float) -> list[int]:
  """The ladder of message sizes that fit.

  Args:
    largest: in bytes.
    memory: bytes that are free on a device.
  """
  # A power of two, that a command which goes on finds the same.
  fits = 2 ** int(math.log2(memory / _COPIES))
  most = min(largest, fits)
  return saturation.ladder(SMALLEST, most)


def run(frame: frame_lib.Frame, config: config_lib.Config) -> None:
  """Measures all collectives on all numbers of devices.

  Raises:
    UsageError: if there is one device, and nothing else to measure.
  """
  devices = jax.devices()
  if len(devices) < 2 and len(config.bench.measurements) > 1:
    frame.notes.append('There is one device, and so no collective.')
    return
  if len(devices) < 2:
    raise config_lib.UsageError(
      '--bench.op=collectives needs two devices and there is one; on a CPU '
      'XLA_FLAGS=--xla_force_host_platform_device_count=8 makes virtual ones.'
    )
  ladder = sizes(config.bench.max_bytes, room.free())
  names = [name for name in kinds.KINDS if frame.wants(name)]
  if devices[0].platform == 'cpu' and 'broadcast' in names:
    frame.notes.append('broadcast: JAX has none for CPUs.')
    names.remove('broadcast')
  found = counts(len(devices))
  frame.expect(len(found) * len(names))
  for count in found:
    group = Group(devices[:count])
    for name in names:
      _curve(frame, group, name, ladder)


def _curve(frame, group, name, ladder) -> None:
  factor = kinds.KINDS[name].factor(group.size)
  frame.curve(
    name,
    group.size,
    ladder,
    work=lambda size: factor * size,
    measure=functools.partial(group.measure, name, repeats=frame.repeats),
    exact=group.exact,
  )
