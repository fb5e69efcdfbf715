# SPDX-License-Identifier: Apache-2.0
"""All tensors in one launch: ops/native/muon_momentum.hip."""

import jax
import jax.numpy as jnp
import numpy as np

from ops import native

GRADS, AHEAD = ('bfloat16', 'float32'), ('bfloat16', 'float16', 'float32')


def unsupported(momenta, grads, *, dtype, **_) -> str | None:
  """Why it cannot run."""
  if reason := native.unavailable('muon_momentum'):
    return reason
  if any(m.dtype != jnp.float32 for m in momenta):
    return 'the momenta are not float32'
  if len({g.dtype for g in grads}) > 1 or any(
    g.dtype.name not in GRADS for g in grads
  ):
    return 'the gradients are not all bfloat16, or all float32'
  return None if jnp.dtype(dtype).name in AHEAD else f'it writes no {dtype}'


def muon_momentum(
  momenta, grads, *, decay, nesterov, dtype, scale, apply
) -> tuple[list[jax.Array], list[jax.Array]]:
  """See `ops.muon_momentum`."""
  n = len(momenta)
  if not n:
    return [], []
  out = native.call(
    'muon_momentum',
    [jax.ShapeDtypeStruct(m.shape, m.dtype) for m in momenta]
    + [jax.ShapeDtypeStruct(m.shape, dtype) for m in momenta],
    jnp.asarray(scale, jnp.float32),
    jnp.asarray(True if apply is None else apply, jnp.int32),
    *momenta,
    *grads,
    aliases={i + 2: i for i in range(n)},
    decay=np.float32(decay),
    nesterov=np.int32(nesterov),
  )
  return out[:n], out[n:]
