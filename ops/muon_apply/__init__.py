# SPDX-License-Identifier: Apache-2.0
"""The step of many matrices along their directions, with weight decay."""

from collections.abc import Sequence

import jax

from ops import dispatch
from ops.muon_apply import hip, reference

# As in `ops.muon_momentum`: XLA already passes over each tensor once.
ENGINES = (
  dispatch.Engine('hip', hip.muon_apply, hip.unsupported, ('rocm',)),
  dispatch.Engine('xla', reference.muon_apply),
)


def muon_apply(
  params: Sequence[jax.Array],
  directions: Sequence[jax.Array],
  *,
  lr: jax.Array,
  weight_decay: float,
  scales: Sequence[float],
) -> list[jax.Array]:
  """`p - lr * (scale * o + weight_decay * p)` of every tensor.

  Args:
    params: float32, of any shapes.
    directions: o, of the same shapes, in any floating type.
    lr: scalar, may be traced.
    weight_decay: decoupled.
    scales: of each direction.

  Returns:
    The new parameters, in the types of `params`.

  Raises:
    ValueError: if shapes or counts differ.
  """
  params, directions = list(params), list(directions)
  if [p.shape for p in params] != [o.shape for o in directions]:
    raise ValueError('muon_apply: params and directions differ in shape.')
  if len(scales) != len(params):
    raise ValueError(
      f'muon_apply: {len(scales)} scales for {len(params)} parameters.'
    )
  options = {'lr': lr, 'weight_decay': weight_decay, 'scales': tuple(scales)}
  run = dispatch.select('muon_apply', ENGINES, params, directions, **options)
  with jax.named_scope('muon_apply'):
    return run(params, directions, **options)
