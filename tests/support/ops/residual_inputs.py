# SPDX-License-Identifier: Apache-2.0
"""Inputs of the residual merge, for tests of its engines."""

import jax
import jax.numpy as jnp
import numpy as np

from ops.residual_rms_norm import cases

CASE = next(c for c in cases.CASES if c.name == '3x1x5x96')


def arguments():
  """Of an awkward case: arrays, options."""
  args, kwargs = CASE.arguments(np.random.default_rng(0), np.dtype('float32'))
  return [jnp.asarray(a) for a in args], kwargs


def outputs_and_gradients(run, args, kwargs):
  """Both results, then the gradients of all arguments."""

  @jax.jit  # Traced anew for each call: a test may have changed `run`.
  def both(args):
    out, vjp = jax.vjp(lambda *args: run(*args, **kwargs), *args)
    rng = np.random.default_rng(1)
    draw = lambda a: jnp.asarray(rng.standard_normal(a.shape), a.dtype)
    return [*out, *vjp(jax.tree.map(draw, out))]

  return both(args)


def differ(found, wanted):
  """Indices of what differs by more than rounding."""
  pairs = enumerate(zip(found, wanted, strict=True))
  far = lambda a, b: not np.allclose(a, b, rtol=0, atol=1e-4 * np.abs(b).max())
  return {i for i, (a, b) in pairs if far(a, b)}
