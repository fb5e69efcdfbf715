# SPDX-License-Identifier: Apache-2.0
"""How a step is divided: devices by axis, tokens by device."""

import dataclasses
import itertools
import math

from zaya_jax import config as config_lib
from zaya_jax.config.checks import division
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
