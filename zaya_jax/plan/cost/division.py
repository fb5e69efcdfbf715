# SPDX-License-Identifier: Apache-2.0
"""How a step is divided: devices by axis, tokens and arrays by device."""

import dataclasses
import itertools
import math

from zaya_jax import config as config_lib
from zaya_jax.config.checks import division
from zaya_jax.model import shapes
from zaya_jax.optim import groups
from zaya_jax.parallel import placement

AXES = placement.AXES


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
  """The division of one step.

  Attributes:
    sizes: devices along each of `AXES`.
    parts: parts of a step, one after another (--optim.accumulation).
    rows: of a part, on one device.
    columns: tokens of a row on one device.
    seq_len: tokens of a whole row.
  """

  sizes: dict[str, int]
  parts: int
  rows: int
  columns: int
  seq_len: int

  @property
  def devices(self) -> int:
    """Of the whole mesh."""
    return math.prod(self.sizes.values())

  @property
  def tokens(self) -> int:
    """Of a part, on one device."""
    return self.rows * self.columns

  @property
  def step_tokens(self) -> int:
    """Of a step, on all devices."""
    return self.tokens * self.parts * self.devices

  def size(self, axes: tuple[str, ...]) -> int:
    """Devices of a group along `axes`."""
    return math.prod(self.sizes[axis] for axis in axes)

  def local(self, axes: tuple[str, ...], node: int) -> int:
    """How many devices of a group along `axes` share a node of `node`."""
    stride, steps = 1, []
    for axis in reversed(AXES):
      if axis in axes:
        steps.append(range(0, stride * self.sizes[axis], stride))
      stride *= self.sizes[axis]
    return sum(sum(place) < node for place in itertools.product(*steps))


def make(config: config_lib.Config) -> Layout:
  """The layout of --plan.devices devices.

  Raises:
    UsageError: if axes, batch, or sequence cannot be divided so.
  """
  devices, data = config.plan.devices, config.data
  sizes = {axis: getattr(config.mesh, axis, 1) for axis in AXES}
  inner = math.prod(sizes[axis] for axis in AXES[1:])
  sizes['replica'] = sizes['replica'] or max(devices // inner, 1)
  if math.prod(sizes.values()) != devices:
    shown = ' x '.join(f'--mesh.{a}={n}' for a, n in sizes.items() if n > 1)
    raise config_lib.UsageError(
      f'--plan.devices={devices} is not {shown or "--mesh.replica=1"}; make '
      'it their product, or set --mesh.replica=0 for all that is left.'
    )
  division.check(config, sizes, config.model.num_experts)
  parts = config.optim.parts
  across = math.prod(sizes[axis] for axis in placement.ROWS)
  return Layout(
    sizes=sizes,
    parts=parts,
    rows=data.batch_size // (across * parts),
    columns=data.seq_len // sizes['context'],
    seq_len=data.seq_len,
  )


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


def leaves(
  config: config_lib.Config, layout: Layout, width: int = 4
) -> list[Leaf]:
  """The parameters of a run, placed as `parallel.partition` places them.

  Of a run with --lora.rank they are frozen, of few bits with --quant, and the
  factors of its adapter are there too.

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
  found = []
  for name, shape in model.items():
    if kind := shapes.kind_in_run(config, name):
      parts = shapes.packed_arrays(name, shape, kind)
      for part, (size, dtype) in parts.items():
        path = f'{name}/{part}'
        found.append(_leaf(path, size, False, layout, dtype.itemsize))
      continue
    frozen = width if name in shapes.MULTIPLIED else 4
    found.append(_leaf(name, shape, False, layout, frozen))
  adapters = shapes.adapters(config.model, lora)
  return found + [_leaf(n, s, False, layout) for n, s in adapters.items()]


def reference(
  config: config_lib.Config, layout: Layout, width: int = 4
) -> list[Leaf]:
  """The frozen copy of all parameters that --dpo.beta compares them with.

  An adapter has none: its base is compared with.

  Args:
    config: of the run.
    layout: of the step.
    width: bytes of an element in matrix products.
  """
  if not config.dpo.beta or config.lora.rank:
    return []
  frozen = lambda name: width if name in shapes.MULTIPLIED else 4
  model = shapes.parameters(config.model).items()
  return [_leaf(n, shape, False, layout, frozen(n)) for n, shape in model]


def _leaf(name, shape, muon, layout, frozen=0) -> Leaf:
  before = placement.param_dims(name, shape, layout.sizes)
  after = placement.part_dims(name, shape, layout.sizes)
  held, both = placement.axes_of(before), placement.axes_of(after)
  order = lambda axes: tuple(a for a in AXES if a in axes)
  live = {a for a in AXES if layout.sizes[a] > 1}
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
