# SPDX-License-Identifier: Apache-2.0
"""Measurements that are made up: points, machines that are formulas."""

from zaya_jax.bench.machine import file
from zaya_jax.bench.sweep import record

# Bytes per second of a message by its size.
MACHINES = {
  'latency and bandwidth': lambda size: size / (20e-6 + size / 400e9),
  'slow latency': lambda size: size / (2e-3 + size / 10e9),
  # A library that changes its protocol, as NCCL does.
  'steps': lambda size: (
    size / (5e-6 + size / 40e9)
    if size < 2**18
    else size / (30e-6 + size / 390e9)
  ),
  'falls again': lambda size: size / (20e-6 + size / 4e11 + (size / 4e13) ** 2),
}


def brute_force(rate, smallest=2**10, largest=2**30):
  """The knee among all sizes in steps of 0.3 %."""
  sizes = [smallest]
  while sizes[-1] < largest:
    sizes.append(min(largest, max(sizes[-1] + 1, round(sizes[-1] * 1.003))))
  best = max(map(rate, sizes))
  return next(size for size in sizes if rate(size) >= 0.9 * best)


def point(size, seconds, case='all-reduce', devices=8, work=None):
  """A point whose quartiles are its median."""
  return record.Point(
    case=case,
    devices=devices,
    size=size,
    work=size if work is None else work,
    seconds=seconds,
    low=seconds,
    high=seconds,
    samples=1,
    calls=1,
  )


def machine(**sections):
  """A machine file with these points, by section."""
  return file.Machine(
    chip='X', platform='gpu', devices=1, processes=1,
    sections={
      name: file.Section(
        unit='GB/s', date='', versions={}, points=tuple(points)
      )
      for name, points in sections.items()
    },
  )  # fmt: skip
