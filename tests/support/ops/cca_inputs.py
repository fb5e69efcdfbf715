# SPDX-License-Identifier: Apache-2.0
"""Inputs of CCA's prologue, for tests of its engines."""

import jax.numpy as jnp
import numpy as np

from ops.cca import cases


def arguments(name='small'):
  """Of a case of `ops.cca.cases`, float32."""
  case = next(c for c in cases.CASES if c.name == name)
  args, _ = case.arguments(np.random.default_rng(0), np.dtype('float32'))
  return [None if a is None else jnp.asarray(a) for a in args]
