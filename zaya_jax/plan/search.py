# SPDX-License-Identifier: Apache-2.0
"""--plan.search: which mesh, remat, parts and buckets are fastest, and fit.

Of each mesh and each --model.remat the fewest parts that fit are planned: more
parts send as much and hide less. Then the fastest get the bucket that suits
them. What the command line says of one of these is kept.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.config import fields
from zaya_jax.plan.cost import (
  auto,
  division,
  machine,
  memory,
  rates,
  timing,
)
from zaya_jax.plan.cost import collectives as collectives_lib

FILLS = 0.85  # Of the memory: plans have been 16 % too low.
_REMATS = ('none', 'cheap', 'block')
_MOST_PARTS = 16
_WIDEST = 8  # Devices along an axis beside `replica`: those of a node.
# MiB; 0: layers send their matrices as they are.
_BUCKETS = (0, 32, 128, 512, 2048)
SHOWN = 8
COMPILED = 3


def find(config: config_lib.Config) -> dict[str, Any]:
  """Ways to train, fastest first.

  Returns:
    tried, how many were planned; rows, each with flags, step and range in
    seconds, tokens_per_second, memory in bytes of a device; capacity.

  Raises:
    UsageError: if nothing fits, with what comes nearest.
  """
  speed = machine.rates_of(config)
  meshes = list(_meshes(config))
  if not meshes:
    division.make(config)  # Says what does not divide.
  tried, found, least = 0, [], math.inf
  for sizes in meshes:
    for remat in _open(config, 'model.remat', _REMATS):
      for each in _with_parts(config, sizes, remat):
        tried += 1
        layout = division.make(each)
        needs = memory.plan(each, layout, speed.chip.width).total
        least = min(least, needs)
        if needs <= FILLS * speed.chip.memory:
          found.append((_step(each, layout, speed), needs, each))
          break
  if not found:
    raise config_lib.UsageError(
      f'--plan.search: none of {tried} ways fits into {FILLS:.0%} of '
      f'{speed.chip.memory / 1e9:.3g} GB; the smallest needs '
      f'{least / 1e9:.3g} GB: raise --plan.devices, or lower --data.seq_len.'
    )
  found.sort(key=_order)
  best = [_bucketed(way, speed) for way in found[:SHOWN]]
  best.sort(key=_order)
  return {
    'tried': tried,
    'fit': len(found),
    'capacity': speed.chip.memory,
    'rows': [_row(config, *way) for way in best],
  }


def chosen(config: config_lib.Config, row: dict[str, Any]) -> config_lib.Config:
  """The config of a row of `find`."""
  return fields.changed(config, row['settings'])


def _order(way) -> tuple[float, float]:
  """The faster first, to a tenth of a percent; then the smaller."""
  times, needs, _ = way
  return round(math.log(times.step), 3), needs


def _step(config, layout, speed: rates.Rates) -> timing.Times:
  sent = collectives_lib.plan(config, layout, speed.chip, speed.machine)
  return timing.plan(config, layout, speed, sent)


def _bucketed(way, speed):
  """The same with the bucket that makes it fastest."""
  _, needs, config = way
  ways = []
  for size in _open(config, 'mesh.bucket_mib', _BUCKETS):
    each = fields.changed(config, {'mesh.bucket_mib': size})
    ways.append((_step(each, division.make(each), speed), needs, each))
  return min(ways, key=lambda way: way[0].step)


def _meshes(config) -> Iterator[dict[str, int]]:
  """Sizes of the axes that divide devices, batch, experts and rows."""
  powers = [2**k for k in range(int(math.log2(_WIDEST)) + 1)]
  axes = [
    _open(config, f'mesh.{axis}', powers)
    for axis in ('fsdp', 'expert', 'context')
  ]
  for fsdp, expert, context in itertools.product(*axes):
    inner = fsdp * expert * context
    if inner > _WIDEST * (1 if config.plan.devices > _WIDEST else 8):
      continue
    sizes = {'fsdp': fsdp, 'expert': expert, 'context': context}
    try:
      division.make(_changed(config, sizes, {'optim.accumulation': 1}))
    except config_lib.UsageError:
      continue
    yield sizes


def _with_parts(config, sizes, remat) -> Iterator[config_lib.Config]:
  """One mesh and remat, by the number of parts."""
  for parts in _open(config, 'optim.accumulation', range(1, _MOST_PARTS + 1)):
    try:
      each = _changed(
        config, sizes, {'model.remat': remat, 'optim.accumulation': parts}
      )
      division.make(each)
    except config_lib.UsageError:
      continue
    yield auto.of_plan(each)


def _open(config, flag, choices):
  """What may be tried of a setting: what was given, else all."""
  value = fields.value(config, flag)
  return [value] if flag in config.given else list(choices)


def _changed(config, sizes, settings) -> config_lib.Config:
  mesh = {f'mesh.{axis}': n for axis, n in sizes.items()}
  return fields.changed(config, {**mesh, **settings})


def _row(base, times, needs, config) -> dict[str, Any]:
  layout = division.make(config)
  settings = {
    **{f'mesh.{a}': n for a, n in layout.sizes.items()},
    'model.remat': config.model.remat,
    'optim.accumulation': config.optim.parts,
    'mesh.bucket_mib': config.mesh.bucket_mib,
  }
  shown = {**settings}
  del shown['mesh.replica']
  default = config_lib.Config()
  return {
    'settings': settings,
    'flags': ' '.join(
      f'--{flag}={value}'
      for flag, value in shown.items()
      if value != fields.value(default, flag)
      or value != fields.value(base, flag)
    ),
    'step': times.step,
    'range': times.range,
    'tokens_per_second': layout.step_tokens / times.step,
    'exposed': times.exposed,
    'memory': needs,
  }
