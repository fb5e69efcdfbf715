# SPDX-License-Identifier: Apache-2.0
"""--plan.parameters: which sizes of a model train and decode fastest.

Every shape of a grid gets as many layers as its parameters allow. Of those that
use at least as many of them for a token as the model of the flags, and decode
in time, the ones stay of which no other both trains and decodes faster. Speed
decides alone: what a shape learns from a token is not known here.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.config import fields
from zaya_jax.model import flops as flops_lib
from zaya_jax.plan.cost import (
  auto,
  decoding,
  division,
  machine,
  memory,
  timing,
)
from zaya_jax.plan.cost import collectives as collectives_lib

# The grid. Multiples of 256 fill tiles; heads are of --model.head_dim.
GRID: dict[str, tuple[Any, ...]] = {
  'd_model': (512, 768, 1024, 1536, 2048, 2560, 3072, 4096),
  'heads': (0.25, 0.5, 1.0),  # Channels of all queries, of the width.
  'd_expert': (0.5, 1.0, 1.5, 2.0),  # Of the width.
  'num_experts': (8, 16, 32, 64),
}
_ASPECT = (24, 96)  # Width over layers; ZAYA1-8B has 51.
_TILE = 256
_NEAR = 0.95  # Of the parameters, and of those of a token.


def find(config: config_lib.Config) -> dict[str, Any]:
  """Sizes, those that train fastest first.

  Returns:
    tried and fit, numbers of shapes; active, the least parameters of a token;
    rows, each with flags, parameters, active, tokens_per_second of a device,
    mfu, decode_ms with its range, memory.

  Raises:
    UsageError: if --plan.parameters is no number, or nothing is left.
  """
  budget = fields.count(config.plan.parameters)
  if not budget:
    raise config_lib.UsageError(
      f'--plan.parameters={config.plan.parameters} must be a whole number '
      'above 0, or as 8B (k, M, B, T).'
    )
  least = _NEAR * flops_lib.parameters(config.model).active
  tried, rows = 0, []
  for model in _shapes(config.model, budget):
    tried += 1
    if flops_lib.parameters(model).active < least:
      continue
    row = _row(dataclasses.replace(config, model=model))
    limit = config.plan.latency_ms
    if row and (not limit or row['decode_ms'] <= limit):
      rows.append(row)
  if not rows:
    raise config_lib.UsageError(
      f'--plan.parameters={config.plan.parameters}: none of {tried} shapes has '
      f'{least:,.0f} active parameters, fits into the memory, and decodes '
      f'within --plan.latency_ms={config.plan.latency_ms:g}; raise that, or '
      'lower the sizes of --model.*.'
    )
  speed = lambda row: (row['tokens_per_second'], -row['decode_ms'])
  rows.sort(key=speed, reverse=True)
  front = []
  for row in rows:
    if not front or row['decode_ms'] < front[-1]['decode_ms']:
      front.append(row)
  return {'tried': tried, 'fit': len(rows), 'active': least, 'rows': front}


def _shapes(
  base: config_lib.ModelConfig, budget: int
) -> Iterator[config_lib.ModelConfig]:
  """Models of the grid with nearly `budget` parameters."""
  for width, heads, expert, count in itertools.product(*GRID.values()):
    query = round(width * heads / base.head_dim)
    d_expert = round(width * expert / _TILE) * _TILE
    if query < 1 or d_expert < _TILE:
      continue
    kv = next(n for n in (2, 1) if query % n == 0)
    model = dataclasses.replace(
      base, d_model=width, num_heads=query, num_kv_heads=kv, d_expert=d_expert,
      num_experts=count, num_layers=1, sliding_layers=(),
    )  # fmt: skip
    one, two = (
      flops_lib.parameters(dataclasses.replace(model, num_layers=n)).total
      for n in (1, 2)
    )
    layers = 1 + int((budget - one) // (two - one))
    if layers < 1 or not _ASPECT[0] <= width / layers <= _ASPECT[1]:
      continue
    model = dataclasses.replace(model, num_layers=layers)
    if flops_lib.parameters(model).total >= _NEAR * budget:
      yield model


def _row(config) -> dict[str, Any] | None:
  """What a shape costs; None if the mesh or the memory do not suit it."""
  try:
    config = auto.of_plan(config)
    layout = division.make(config)
  except config_lib.UsageError:
    return None
  rates = machine.rates_of(config)
  needs = memory.plan(config, layout, rates.chip.width).total
  if needs > rates.chip.memory:
    return None
  sent = collectives_lib.plan(config, layout, rates.chip, rates.machine)
  times = timing.plan(config, layout, rates, sent)
  token = decoding.token(config.model, rates, config.data.seq_len)
  model, per_device = config.model, layout.step_tokens / layout.devices
  counted = flops_lib.per_token(model, config.data.seq_len).total
  count = flops_lib.parameters(model)
  names = (
    'num_layers', 'd_model', 'num_heads', 'num_kv_heads', 'd_expert',
    'num_experts',
  )  # fmt: skip
  return {
    'flags': ' '.join(f'--model.{n}={getattr(model, n)}' for n in names),
    'parameters': count.total,
    'active': count.active,
    'tokens_per_second': per_device / times.step,
    'mfu': counted * per_device / times.step / rates.chip.peak,
    'decode_ms': 1e3 * token.seconds,
    'decode_range_ms': [1e3 * token.low, 1e3 * token.high],
    'memory': needs,
  }
