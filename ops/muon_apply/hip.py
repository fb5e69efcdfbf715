# SPDX-License-Identifier: Apache-2.0
"""All tensors in one launch: ops/native/muon_update.hip."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ops import native

DIRECTIONS = ('bfloat16', 'float16', 'float32')


def unsupported(
  params: Sequence[jax.Array], directions: Sequence[jax.Array], **_
) -> str | None:
  """Why it cannot run."""
  if reason := native.unavailable('muon_apply'):
    return reason
  if any(p.dtype != jnp.float32 for p in params):
    return 'the parameters are not float32'
  if len({o.dtype for o in directions}) > 1 or any(
    o.dtype.name not in DIRECTIONS for o in directions
  ):
    return 'the directions are not of one 16-bit type, or all float32'
  return None


def muon_apply(
  params: Sequence[jax.Array],
  directions: Sequence[jax.Array],
  *,
  lr: jax.Array,
  weight_decay: float,
  scales: Sequence[float],
) -> list[jax.Array]:
  """See `ops.muon_apply`."""
  if not params:
    return []
  return native.call(
    'muon_apply',
    [jax.ShapeDtypeStruct(p.shape, p.dtype) for p in params],
    jnp.asarray(lr, jnp.float32),
    *params,
    *directions,
    aliases={i + 1: i for i in range(len(params))},
    weight_decay=np.float32(weight_decay),
    scales=np.asarray(scales, np.float32),
  )
