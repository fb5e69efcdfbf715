# SPDX-License-Identifier: Apache-2.0
"""What the planner knows of each chip; docs/planning.md names the sources."""

import dataclasses

from zaya_jax.model import flops


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
  """One kind of device and the machine around it; rates are per second.

  Attributes:
    name: as `flops.peak_tflops` knows it.
    peak: FLOP/s of dense products by the data sheet.
    achievable: share of `peak` that large products reach.
    memory: bytes.
    bandwidth: bytes read or written, as a streaming kernel reaches them.
    link: bytes that one device sends to its node, to one peer if `mesh`.
    mesh: whether each pair of devices of a node has its own link: then a device
      sends the faster, the more peers take part.
    nic: bytes that one device sends to other nodes.
    node: devices of a node.
    width: bytes of an element in matrix products.
  """

  name: str
  peak: float
  achievable: float
  memory: float
  bandwidth: float
  link: float
  mesh: bool = False
  nic: float = 50e9
  node: int = 8
  width: int = 2

  @property
  def rate(self) -> float:
    """FLOP/s that large products reach."""
    return self.peak * self.achievable

  def local_rate(self, members: int) -> float:
    """Bytes per second that a device sends to `members` - 1 of its node."""
    return self.link * (max(members - 1, 1) if self.mesh else 1)


def _gpu(name: str, **known) -> Chip:
  return Chip(name=name, peak=flops.peak_tflops(name) * 1e12, **known)


CHIPS = {
  'mi300x': _gpu(
    'MI300X',
    achievable=0.56,
    memory=192e9,
    bandwidth=4.33e12,
    link=64e9,
    mesh=True,
  ),
  'h200': _gpu(
    'H200', achievable=0.70, memory=141e9, bandwidth=4.35e12, link=450e9
  ),
  'h100': _gpu(
    'H100', achievable=0.70, memory=80e9, bandwidth=3.036e12, link=450e9
  ),
  # Two cores of a laptop.
  'cpu': Chip(
    name='CPU',
    peak=0.1e12,
    achievable=0.5,
    memory=16e9,
    bandwidth=20e9,
    link=5e9,
    nic=0.125e9,
    width=4,
  ),
}
