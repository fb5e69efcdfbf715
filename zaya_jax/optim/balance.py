# SPDX-License-Identifier: Apache-2.0
"""The balancing bias of the router: a controller, not a loss.

Once per step, from the counts of the whole global batch: the gradient of the
bias of expert e is its share of the tokens minus 1/E, and Adam consumes it
(arXiv 2605.05365, equation 5). The skip class has no share to hold; its bias
stays where it is.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zaya_jax import config as config_lib


def make_balancer(
  config: config_lib.OptimConfig,
) -> optax.GradientTransformation:
  """Adam without weight decay, one learning rate for the whole run."""
  return optax.adam(config.balance_lr, b1=0.9, b2=0.999, eps=1e-8)


def bias_gradient(load_NX: jax.Array, num_experts: int) -> jax.Array:
  """The gradient of the balancing bias.

  Args:
    load_NX: [N, X] float32 tokens that chose each class, over the global batch.
    num_experts: E; a class behind the experts gets 0.

  Returns:
    [N, X] float32: share of the routed tokens minus 1/E, summing to zero.
  """
  routed_NE = load_NX[:, :num_experts]
  total_N1 = jnp.maximum(jnp.sum(routed_NE, axis=1, keepdims=True), 1.0)
  share_NE = routed_NE / total_N1 - 1.0 / num_experts
  pad = load_NX.shape[1] - num_experts
  return jnp.pad(share_NE, ((0, 0), (0, pad)))


def update(
  balancer: optax.GradientTransformation,
  buffers: dict[str, Any],
  state: optax.OptState,
  load_NX: jax.Array,
  num_experts: int,
) -> tuple[dict[str, Any], optax.OptState]:
  """The buffers and the controller's state after one step."""
  gradient = bias_gradient(load_NX, num_experts)
  grads = jax.tree.map(lambda _: gradient, buffers)
  updates, state = balancer.update(grads, state, buffers)
  return optax.apply_updates(buffers, updates), state
