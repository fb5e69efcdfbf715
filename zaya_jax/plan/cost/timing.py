# SPDX-License-Identifier: Apache-2.0
"""The time of a step: its parts, and the network.

A part whose operation was measured on such a machine takes what that gives
(`fused`). Any other takes the longer of its FLOPs at the rate of large products
and its bytes at the bandwidth of the memory: what the machine allows, not a
prediction.
"""

import dataclasses

from zaya_jax import config as config_lib
from zaya_jax.model import flops as flops_lib
from zaya_jax.plan.cost import collectives as collectives_lib
from zaya_jax.plan.cost import (
  division,
  estimate,
  fused,
  memory,
  newton_schulz,
)
from zaya_jax.plan.cost import (
  rates as rates_lib,
)

PASSES = {'forward': 1 / 3, 'backward': 2 / 3}  # Shares of their time.
_SCORE_PASSES = 8  # Reads and writes of attention's scores, both ways.
_KEPT_PASSES = 4  # Of activations: write and read, forward and backward.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
  """A part of a step, on one device; the rest as `estimate.Estimate`."""

  name: str
  flops: float
  bytes: float
  seconds: float
  low: float
  high: float
  source: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Times:
  """A step, in the order in which it passes.

  Attributes:
    parts: of the forward and the backward pass.
    update: parts of the optimizer.
    exposed: seconds of collectives that nothing hides.
    hidden: seconds of collectives behind a pass, by its name.
    range: seconds of the step at best and at worst.
  """

  parts: list[Part]
  update: list[Part]
  exposed: float
  hidden: dict[str, float]
  range: tuple[float, float]

  @property
  def compute(self) -> float:
    """Seconds of the forward and the backward pass."""
    return sum(part.seconds for part in self.parts)

  @property
  def step(self) -> float:
    """Seconds of a step."""
    update = sum(part.seconds for part in self.update)
    return self.compute + self.exposed + update


def plan(
  config: config_lib.Config,
  layout: division.Layout,
  rates: rates_lib.Rates,
  collectives: list[collectives_lib.Collective],
) -> Times:
  """The times of one step."""
  parts = _passes(config, layout, rates)
  update = _update(config, layout, rates)

  def exposed(bound):
    """Seconds hidden behind each pass, and those of all other messages."""
    compute = sum(getattr(part, bound) for part in parts)
    hidden = {
      name: min(_behind(collectives, name, bound), share * compute)
      for name, share in PASSES.items()
    }
    sent = sum(getattr(c, bound) for c in collectives)
    return hidden, sent - sum(hidden.values())

  whole = lambda bound: (
    sum(getattr(part, bound) for part in (*parts, *update)) + exposed(bound)[1]
  )
  hidden, rest = exposed('seconds')
  return Times(
    parts=parts,
    update=update,
    exposed=rest,
    hidden=hidden,
    range=(whole('low'), whole('high')),
  )


def _behind(collectives, name, bound) -> float:
  """Seconds that can run behind a pass: the last call of it has no more work.

  The first that a forward pass waits for is as long.
  """
  found = [c for c in collectives if c.hidden == name]
  last = max((getattr(c, bound) / c.count for c in found), default=0.0)
  return sum(getattr(c, bound) for c in found) - last


def executed(model: config_lib.ModelConfig, seq_len: int) -> dict[str, float]:
  """FLOPs of a token as computed: what is made anew counts again."""
  counted = flops_lib.per_token(model, seq_len)
  again = 1 / 3 if model.remat == 'block' else 0.0  # One more forward pass.
  blocks = min(4, max(1, seq_len // 128))
  return {
    'projections': counted.projections * (1 + again),
    'convolutions': counted.convolutions * (1 + again),
    # Backward makes the scores anew; blocks of queries see up to their end.
    'attention': counted.attention * (1 + again + 1 / 6) * (1 + 1 / blocks),
    'router': counted.router * (1 + again),
    # Backward makes the hidden units anew: two of three matrices.
    'experts': counted.experts * (1 + again + 2 / 9),
    'head': counted.head,
  }


def _passes(config, layout, rates) -> list[Part]:
  chip, known = rates.chip, fused.Parts(config, layout, rates)
  model, leaves = config.model, division.leaves(config, layout)
  tokens = layout.tokens * layout.parts
  flops = executed(model, layout.seq_len)
  passes = (4 if model.remat == 'block' else 3) * layout.parts
  reads = lambda name: (
    passes
    * sum(
      (4 + 2 * chip.width) * leaf.size
      for leaf in leaves
      if leaf.name.startswith(name)
    )
  )
  # Of all queries with all keys.
  scores = 4.0 * model.num_heads * tokens * layout.seq_len
  # Each chunk of tokens reads the head twice and its gradient, which it writes.
  chunks = tokens / memory.chunk_tokens(layout.tokens, model.vocab_size)
  head = model.vocab_size * model.d_model * (8 + 2 * chip.width)
  kept = memory.layer_activations(model, chip.width) * tokens
  read = {
    'projections': reads('layers/attn'),
    'attention': _SCORE_PASSES * scores * model.num_layers * 0.625,
    'router': reads('layers/router'),
    'experts': reads('layers/experts') / layout.sizes['expert'],
    'head': chunks * head,
  }
  elementwise = _KEPT_PASSES * kept * model.num_layers
  work = {name: (f * tokens, read.get(name, 0.0)) for name, f in flops.items()}
  work['elementwise'] = (0.0, elementwise)
  return [
    _part(rates, name, *both, known.find(name)) for name, both in work.items()
  ]


def _update(config, layout, rates) -> list[Part]:
  leaves, known = (
    division.leaves(config, layout),
    fused.Parts(config, layout, rates),
  )
  # Reads and writes in float32: gradient, states, update of a device's share;
  # and parameters, which are read and written.
  moved = 11 * sum(leaf.part_bytes for leaf in leaves if not leaf.frozen)
  iterations = config.optim.newton_schulz_steps
  stacks = newton_schulz.stacks(config, layout, leaves)
  flops = newton_schulz.busiest(stacks, iterations)
  return [
    _part(rates, 'Newton-Schulz', flops, 0.0, known.newton_schulz()),
    _part(rates, 'update', 0.0, moved, known.update()),
  ]


def _part(
  rates: rates_lib.Rates,
  name: str,
  flops: float,
  moved: float,
  measured: estimate.Estimate | None = None,
) -> Part:
  took = measured or rates.roofline(flops, moved)
  return Part(name=name, flops=flops, bytes=moved, **vars(took))
