# SPDX-License-Identifier: Apache-2.0
"""The meaning of `ops.muon_apply`, and its engine in plain XLA."""

from collections.abc import Sequence

import jax


def muon_apply(
  params: Sequence[jax.Array],
  directions: Sequence[jax.Array],
  *,
  lr: jax.Array,
  weight_decay: float,
  scales: Sequence[float],
) -> list[jax.Array]:
  """See `ops.muon_apply`."""

  def new(p, o, scale):
    step = lr * (scale * o.astype(p.dtype) + weight_decay * p)
    return p - step.astype(p.dtype)

  return [
    new(p, o, s) for p, o, s in zip(params, directions, scales, strict=True)
  ]
