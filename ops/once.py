# SPDX-License-Identifier: Apache-2.0
"""What a loop over layers keeps for the backward pass."""

from typing import Any

import jax

from ops import dispatch


def once(made: Any) -> Any:
  """Results of a matrix product or a kernel, to be used instead of them.

  XLA:CUDA (of jax 0.11.2) has a product or a kernel write right into the stack
  of a loop, and runs it once more for whoever else reads the result: attention,
  CCA, the experts' first product and the projections all ran twice. Behind a
  barrier they run once, and what is saved is copied. XLA:ROCm (of jax 0.10.2)
  runs each once by itself: a compiled step is held to that
  (`zaya_jax.plan.compile.calls`).

  Args:
    made: arrays, in any tree.
  """
  if dispatch.platform() != 'cuda':
    return made
  return jax.lax.optimization_barrier(made)
