# SPDX-License-Identifier: Apache-2.0
"""Momentum of many matrices, and where Newton-Schulz is to start."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from ops import dispatch
from ops.muon_momentum import hip, reference

# XLA makes one kernel of each tensor's arithmetic, one pass over its memory; a
# kernel for all tensors at once saves launches only.
ENGINES = (
  dispatch.Engine('hip', hip.muon_momentum, hip.unsupported, ('rocm',)),
  dispatch.Engine('xla', reference.muon_momentum),
)


def muon_momentum(
  momenta: Sequence[jax.Array],
  grads: Sequence[jax.Array],
  *,
  decay: float,
  nesterov: bool = True,
  dtype: jnp.dtype = jnp.float32,
  scale: jax.Array | float = 1.0,
  apply: jax.Array | None = None,
) -> tuple[list[jax.Array], list[jax.Array]]:
  """`m <- decay * m + g`, and `g + decay * m` of the new momentum.

  The gradients are multiplied by `scale` first. It and `apply` are numbers of a
  step, which a kernel reads: done outside of it, each would be passes over all
  of the tensors.

  Args:
    momenta: float32, of any shapes.
    grads: of the same shapes, float32 or bfloat16.
    decay: of the momentum.
    nesterov: whether to look ahead; else the second result is the new momentum.
    dtype: of the second result.
    scale: of the gradients, scalar: what clips them.
    apply: bool scalar; if it is false the momenta stay what they are, and the
      second result means nothing. None: true.

  Returns:
    The new momenta, float32, and what to orthogonalize, in `dtype`.

  Raises:
    ValueError: if the shapes differ.
  """
  momenta, grads = list(momenta), list(grads)
  if [m.shape for m in momenta] != [g.shape for g in grads]:
    raise ValueError('muon_momentum: momenta and grads differ in shape.')
  options = {
    'decay': decay,
    'nesterov': nesterov,
    'dtype': jnp.dtype(dtype),
    'scale': scale,
    'apply': apply,
  }
  run = dispatch.select('muon_momentum', ENGINES, momenta, grads, **options)
  with jax.named_scope('muon_momentum'):
    return run(momenta, grads, **options)
