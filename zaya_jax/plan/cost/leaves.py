# SPDX-License-Identifier: Apache-2.0
"""The arrays of a run, and where they are: no jax is needed."""

import dataclasses
import math

from zaya_jax import config as config_lib
from zaya_jax.model import shapes
from zaya_jax.optim import groups
from zaya_jax.parallel import placement
from zaya_jax.plan.cost import division


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaf:
  """One array of the parameters, and where it is.

  Attributes:
    name: its path.
    shape: whole.
    muon: whether Muon updates it.
    held: mesh axes that divide it.
    cut: axes that divide its optimizer state further.
    copied: axes along which that state has copies.
    dim: the dimension that these axes divide, but for `expert`; None: none.
    shards: devices among which it is divided.
    parts: devices among which its state is divided.
    frozen: bytes of an element that is not trained; 0: it is.
  """

  name: str
  shape: tuple[int, ...]
  muon: bool
  held: tuple[str, ...]
  cut: tuple[str, ...]
  copied: tuple[str, ...]
  dim: int | None
  shards: int
  parts: int
  frozen: int = 0

  @property
  def size(self) -> int:
    """Elements."""
    return math.prod(self.shape)

  @property
  def states(self) -> int:
    """States of its optimizer: Muon has one, AdamW two; in float32."""
    return 0 if self.frozen else 1 if self.muon else 2

  @property
  def seen(self) -> float:
    """Elements that a layer of one device sees, or FSDP's part of them."""
    return self.size / self.shards

  @property
  def nbytes(self) -> float:
    """Of these."""
    return (self.frozen or 4) * self.seen

  @property
  def part_bytes(self) -> float:
    """Of what one device keeps; as much of each state."""
    return (self.frozen or 4) * self.size / self.parts

  @property
  def is_large(self) -> bool:
    """Whether a stack is sent layer by layer where layers do not gather it."""
    stack = self.name.startswith('layers/')
    return stack and self.nbytes > placement.STACK_BYTES


def find(
  config: config_lib.Config, layout: division.Layout, width: int = 4
) -> list[Leaf]:
  """The parameters of a run, placed as `parallel.partition` places them.

  Of a run with --lora.rank they are frozen, and the factors of its adapter are
  there too.

  Args:
    config: of the run.
    layout: of the step.
    width: bytes of an element in matrix products.
  """
  optimizer, lora = config.optim.name, config.lora
  muon = lambda name: groups.of(name, optimizer=optimizer) == 'muon'
  model = shapes.parameters(config.model)
  if not lora.rank:
    return [_leaf(n, shape, muon(n), layout) for n, shape in model.items()]
  multiplied = {
    f'layers/{x}' for names in shapes.ADAPTED.values() for x in names
  }
  found = [
    _leaf(n, shape, False, layout, width if n in multiplied else 4)
    for n, shape in model.items()
  ]
  adapters = shapes.adapters(config.model, lora)
  return found + [_leaf(n, s, False, layout) for n, s in adapters.items()]


def _leaf(name, shape, muon, layout, frozen=0) -> Leaf:
  before = placement.param_dims(name, shape, layout.sizes)
  after = placement.part_dims(name, shape, layout.sizes)
  held, both = placement.axes_of(before), placement.axes_of(after)
  order = lambda axes: tuple(a for a in division.AXES if a in axes)
  live = {a for a in division.AXES if layout.sizes[a] > 1}
  divided = (d for d, axes in enumerate(after) if axes not in (None, 'expert'))
  return Leaf(
    name=name,
    shape=shape,
    muon=muon,
    held=order(held),
    cut=order(both - held),
    copied=order(live - both),
    dim=next(divided, None),
    shards=layout.size(order(held)),
    parts=layout.size(order(both)),
    frozen=frozen,
  )
