# SPDX-License-Identifier: Apache-2.0
"""The meaning of `ops.muon_momentum`, and its engine in plain XLA."""

import jax
import jax.numpy as jnp


def muon_momentum(
  momenta, grads, *, decay, nesterov, dtype, scale, apply
) -> tuple[list[jax.Array], list[jax.Array]]:
  """See `ops.muon_momentum`."""
  grads = [g.astype(m.dtype) for m, g in zip(momenta, grads, strict=True)]
  grads = [scale * g for g in grads]
  new = [decay * m + g for m, g in zip(momenta, grads, strict=True)]
  ahead = new
  if nesterov:
    ahead = [g + decay * m for m, g in zip(new, grads, strict=True)]
  kept = new
  if apply is not None:
    kept = [jnp.where(apply, *pair) for pair in zip(new, momenta, strict=True)]
  # What follows reads it more than once: without this, XLA would make it anew
  # each time, from the old momentum, which it would copy for that.
  return kept, jax.lax.optimization_barrier([a.astype(dtype) for a in ahead])
