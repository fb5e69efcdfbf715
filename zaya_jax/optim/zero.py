# SPDX-License-Identifier: Apache-2.0
"""ZeRO-1 (Rajbhandari et al., 2020): optimizer states divided among devices.

Each device keeps a part of every state, gets the sum of the gradients of that
part alone, and computes its part of the update. The updates are gathered to
where the parameters are: whole everywhere, or divided over the axis fsdp. On
one device this is the optimizer itself.
"""

import optax

from zaya_jax import mesh


def partition(
  optimizer: optax.GradientTransformation,
) -> optax.GradientTransformation:
  """The optimizer with its state divided over the data axes of the mesh."""

  def init(params):
    return optimizer.init(mesh.scatter(params))

  def update(grads, state, params=None):
    updates, state = optimizer.update(
      mesh.scatter(grads), state, mesh.scatter(params)
    )
    return mesh.reshard_like(updates, grads), state

  return optax.GradientTransformation(init, update)
