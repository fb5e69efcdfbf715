# SPDX-License-Identifier: Apache-2.0
"""The way in which this run computes its steps, on the devices that it has."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ops import dispatch
from ops.hopper import ahead
from zaya_jax import config as config_lib
from zaya_jax.model import layers
from zaya_jax.plan.cost import auto
from zaya_jax.runtime import processes

# Of the memory, beyond which a program hardly finds its temporaries in a piece.
_FILLED = 0.97
# Channels of a head that the kernels for Hopper GPUs take too.
_FAST_HEAD = 128


class Ways:
  """What `plan.cost.auto` found for a run; the first way is taken.

  Args:
    config: of the run.
    mesh: of its devices.

  Raises:
    UsageError: if the run is far too large for its devices.
  """

  def __init__(self, config: config_lib.Config, mesh: jax.sharding.Mesh):
    self._width = layers.compute_dtype(config.model).itemsize
    self._devices = mesh.local_devices
    self._capacity = _capacity(self._devices)
    plan = dataclasses.replace(config.plan, devices=mesh.size)
    self._platform = dispatch.platform()
    self._ways = auto.ways(
      dataclasses.replace(config, plan=plan),
      self._platform,
      self._capacity,
      self._width,
    )
    self._decides = auto.is_open(config)
    if self._decides and self._knows:
      auto.check_fits(self._ways, self._capacity, self._width)

  @property
  def _knows(self) -> bool:
    """Whether the devices say how much memory they have; a CPU does not."""
    return self._capacity < float('inf')

  def apply(self, config: config_lib.Config) -> config_lib.Config:
    """The config with nothing left to decide."""
    return self._ways[0].apply(config)

  def notes(self) -> list[str]:
    """What was chosen, and what a head without fast kernels costs."""
    if not self._knows:
      return []
    found = []
    if self._decides:
      found = [f'auto: {self._ways[0].line(self._capacity)}']
    channels = self._ways[0].config.model.head_dim
    if channels != _FAST_HEAD and self._platform == 'cuda':
      found.append(
        f'--model.head_dim={channels}: CCA and attention have their fastest '
        f'kernels for {_FAST_HEAD} channels alone, and those in Triton for '
        'powers of two from 64 on (attention from 16 on); heads of 32 took 1.3 '
        'times as long a step (docs/performance.md)'
      )
    return found

  def compile(
    self,
    make: Callable[[config_lib.Config], Any],
    config: config_lib.Config,
    arguments: tuple[Any, ...],
    note: Callable[[str], None],
  ) -> jax.stages.Compiled:
    """The program of the first way that fits as compiled, beside `arguments`.

    Args:
      make: config -> jitted function.
      config: of the run.
      arguments: of that function, with which it is compiled.
      note: told of each way that does not fit.

    Raises:
      UsageError: if none is left.
    """
    while True:
      with ahead.compiling():
        program = make(self.apply(config)).lower(*arguments).compile()
      took = compiled_bytes(program)
      room = not self._knows or self._has_room(program)
      if not self._knows or room and took <= _FILLED * self._capacity:
        return program
      size = f'{took / 1e9:.3g} of {self._capacity / 1e9:.3g} GB'
      why = '' if room else ', its temporaries in one piece that is not free'
      way, left = auto.next_way(self._ways, took, _FILLED * self._capacity)
      if way is None and room and took <= self._capacity:
        return program
      if way is None:
        raise config_lib.UsageError(
          f'The compiled step needs {size} a device{why}; lower '
          f'--data.batch_size={config.data.batch_size} or --data.seq_len='
          f'{config.data.seq_len}, or raise --optim.accumulation='
          f'{self._ways[0].config.optim.parts}.'
        )
      self._ways = left
      note(
        f'the compiled step needs {size}{why}; now {way.line(self._capacity)}'
      )

  def _has_room(self, program: jax.stages.Compiled) -> bool:
    """Whether all devices of the run now have room for its temporaries.

    XLA takes them in one piece, beside what is there already; a step that is
    refused its piece would end the run.
    """
    size = program.memory_analysis()
    room = size is None or all(
      _reserve(device, size.temp_size_in_bytes) for device in self._devices
    )
    return all(processes.all_say(room))


def _reserve(device: jax.Device, num_bytes: int) -> bool:
  """Whether so much memory can be had in one piece; it is given back."""
  try:
    jnp.zeros(num_bytes // 4, jnp.int32, device=device).block_until_ready()
  except jax.errors.JaxRuntimeError as error:
    if 'RESOURCE_EXHAUSTED' not in str(error):
      raise
    return False
  return True


def compiled_bytes(program: jax.stages.Compiled) -> int:
  """Bytes that a program takes on one device; what it is given counts."""
  size = program.memory_analysis()
  if size is None:  # A platform that does not say.
    return 0
  held = size.argument_size_in_bytes + size.output_size_in_bytes
  return held - size.alias_size_in_bytes + size.temp_size_in_bytes


def _capacity(devices: Sequence[jax.Device]) -> float:
  """Bytes that each device of a run has; inf: they do not say."""
  sizes = [
    (device.memory_stats() or {}).get('bytes_limit', 0) for device in devices
  ]
  return min(processes.all_say(min(sizes, default=0))) or float('inf')
