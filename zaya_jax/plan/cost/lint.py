# SPDX-License-Identifier: Apache-2.0
"""Sizes that MI300X likes, after what Zyphra and AMD published on ZAYA1."""

import dataclasses
import math

from zaya_jax import config as config_lib
from zaya_jax.plan.cost import collectives as collectives_lib
from zaya_jax.plan.cost import division
from zaya_jax.runtime import chips as chips_lib

_POWER = 64  # Powers of two beyond it bring nothing more.
_TILE = 256  # Rows and columns of a tile of a large product.
_UNITS = 304  # Compute units: tiles that run at a time.
_FULL = 0.8  # Of the units, below which a product is worth resizing.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
  """One rule and whether it holds."""

  rule: str
  value: str
  good: bool
  advice: str = ''


def check(
  config: config_lib.Config,
  layout: division.Layout,
  chip: chips_lib.Chip,
  collectives: list[collectives_lib.Collective],
) -> list[Finding]:
  """All rules, those that hold too."""
  model, data = config.model, config.data
  return [
    _multiple('vocabulary', '--model.vocab_size', model.vocab_size),
    _multiple(
      'micro-batch x sequence',
      f'--data.batch_size={data.batch_size} x --data.seq_len',
      layout.tokens,
    ),
    _multiple('head width', '--model.head_dim', model.head_dim),
    _multiple('residual width', '--model.d_model', model.d_model),
    _multiple('router width', '--model.d_router', model.d_router),
    _multiple('expert width', '--model.d_expert', model.d_expert, _TILE),
    _waves(config, layout),
    *(_whole_node(c, chip) for c in collectives if c.bytes >= 2**20),
  ]


def _multiple(what: str, flag: str, value: int, of: int = _POWER) -> Finding:
  """Whether `value` has all the powers of two that matter."""
  power = math.gcd(value, of)
  return Finding(
    rule=f'{what}: a multiple of {of}',
    value=f'{value:,}',
    good=power == of,
    advice=f'{flag} gives only {power}; {-(-value // of) * of:,} would do.',
  )


def _waves(config, layout) -> Finding:
  """How evenly the first product of the experts fills the compute units."""
  model, owners = config.model, layout.sizes['expert']
  here = model.num_experts // owners
  rows = layout.tokens * owners / model.num_experts  # Of an expert.
  tiles = here * math.ceil(rows / _TILE)
  tiles *= math.ceil(2 * model.d_expert / _TILE)
  useful = here * rows * 2 * model.d_expert / _TILE**2
  used = useful / (_UNITS * math.ceil(tiles / _UNITS))
  return Finding(
    rule=f'experts: tiles of {_TILE} x {_TILE} fill {_UNITS} compute units',
    value=f'{used:.0%} of {math.ceil(tiles / _UNITS)} waves',
    good=used >= _FULL,
    advice='More tokens per device (--data.batch_size up, '
    '--optim.accumulation down) or another --model.d_expert.',
  )


def _whole_node(collective, chip) -> Finding:
  """A device has seven links: a smaller group leaves some of them idle."""
  axes = ' x '.join(collective.axes)
  return Finding(
    rule=f'{collective.what} ({collective.kind} over {axes}): all '
    f'{chip.node} of a node take part',
    value=f'{collective.local} of {chip.node}',
    good=collective.local == chip.node,
    advice=f'Only {collective.local - 1} of {chip.node - 1} links of a device '
    f'are in use; --mesh.{collective.axes[-1]}={chip.node} as the innermost '
    'axis would use all.',
  )
