# SPDX-License-Identifier: Apache-2.0
"""The balancing bias of the router: a controller, not a loss.

Once per step, from the whole global batch. Two rules move the bias by a step
of fixed size, `--optim.balance_lr`: Adam on the share of the tokens of an
expert minus 1/E (arXiv 2605.05365, equation 5), and the sign of that (arXiv
2408.15664). Where the step is larger than the differences between the
probabilities, as in a router that has just been initialized, the bias alone
decides, and one expert takes all tokens; where it is smaller than what training
moves them by, the bias comes too late. The rule 'quantile' has no such size: it
moves each bias to where the tokens of this step, or some of them, would have
spread evenly (`shift`).

The skip class has no share to hold; its bias stays where it is.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zaya_jax import config as config_lib

_ROUNDS = 4
# Of `shift` the bias goes all at first, when training moves probabilities most,
# and after so many steps a share that falls like one over the steps: what
# differs between the tokens of two steps is noise, and is averaged.
_FAST, _SLOWEST = 100, 0.25


def make_balancer(
  config: config_lib.OptimConfig,
) -> optax.GradientTransformationExtraArgs:
  """What moves the bias, by `--optim.balance`.

  Its state is that of Adam without weight decay, whatever the rule: so a run
  can go on with another one. `update` takes `shift`, [N, X].
  """
  adam = optax.adam(config.balance_lr, b1=0.9, b2=0.999, eps=1e-8)

  def update(grads, state, params=None, *, shift, **_):
    updates, state = adam.update(grads, state, params)
    if config.balance == 'sign':
      updates = jax.tree.map(lambda g: -config.balance_lr * jnp.sign(g), grads)
    elif config.balance == 'quantile' and config.balance_lr:
      part = jnp.clip(_FAST / state[0].count, _SLOWEST, 1.0)
      updates = jax.tree.map(lambda _: part * shift, grads)
    elif config.balance == 'loss':
      updates = jax.tree.map(jnp.zeros_like, grads)
    return updates, state

  return optax.GradientTransformationExtraArgs(adam.init, update)


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


def shift(biased_SX: jax.Array, num_experts: int) -> jax.Array:
  """By how much the bias of each expert should move, for an even load.

  An expert would get its share, a token in E, if its bias fell by the margin
  over the best other class that this share of the tokens exceeds, and if no
  other bias moved; half way on to the margin of the next token, so that none is
  at the edge, where rounding would choose. All move, so each goes half of its
  way in a round. There is no unit and no rate: it is right at any scale of the
  probabilities. What all biases have in common changes no choice among experts
  and is taken off.

  Args:
    biased_SX: [S, X] probabilities with their bias; -inf where a token does
      not count.
    num_experts: E.

  Returns:
    [X] float32; 0 of what is no expert, and where no token counts.
  """
  x = biased_SX.shape[1]
  real_S1 = jnp.isfinite(biased_SX[:, :1])
  index = jnp.minimum(jnp.sum(real_S1) // num_experts, len(biased_SX) - 1)
  biased_SX = jnp.where(real_S1, biased_SX, 0)

  def round_(_, moved_X):
    margin_SX = margins(biased_SX + moved_X[None])
    margin_SX = jnp.where(real_S1, margin_SX, -jnp.inf)
    ranked_ES = jnp.sort(margin_SX.T[:num_experts], axis=1, descending=True)
    edge_E = (
      jnp.take(ranked_ES, jnp.maximum(index - 1, 0), axis=1)
      + jnp.take(ranked_ES, index, axis=1)
    ) / 2
    half_E = jnp.where(jnp.isfinite(edge_E), edge_E / 2, 0)
    half_E -= jnp.mean(half_E)
    return moved_X - jnp.pad(half_E, (0, x - num_experts))

  return jax.lax.fori_loop(0, _ROUNDS, round_, jnp.zeros(x))


def margins(biased_SX: jax.Array) -> jax.Array:
  """[S, X] how far each class is ahead of the best of the others."""
  x = biased_SX.shape[1]
  hit_SX = jnp.argmax(biased_SX, axis=1)[:, None] == jnp.arange(x)[None]
  best = lambda among_SX: jnp.max(
    biased_SX, axis=1, keepdims=True, where=among_SX, initial=-jnp.inf
  )
  return biased_SX - jnp.where(hit_SX, best(~hit_SX), best(hit_SX))


def update(
  balancer: optax.GradientTransformationExtraArgs,
  buffers: dict[str, Any],
  state: optax.OptState,
  load: Any,
  num_experts: int,
  *,
  centered: bool = False,
) -> tuple[dict[str, Any], optax.OptState]:
  """The buffers and the controller's state after one step.

  Args:
    balancer: of `make_balancer`.
    buffers: with one balancing bias, [N, X].
    state: of the balancer.
    load: of the global batch, a `model.router.Load` of [N, ...].
    num_experts: E.
    centered: whether the biases of the experts of a layer get mean zero.
  """
  gradient = bias_gradient(load.tokens, num_experts)
  shift_NX = jnp.zeros_like(gradient)
  if load.sample.size:
    shift_NX = jax.vmap(lambda sample: shift(sample, num_experts))(load.sample)
  grads = jax.tree.map(lambda _: gradient, buffers)
  updates, state = balancer.update(grads, state, buffers, shift=shift_NX)
  buffers = optax.apply_updates(buffers, updates)
  if centered:
    buffers = jax.tree.map(lambda b: _center(b, num_experts), buffers)
  return buffers, state


def _center(bias_NX, num_experts):
  experts = jnp.arange(bias_NX.shape[1]) < num_experts
  mean_N1 = jnp.mean(bias_NX[:, :num_experts], axis=1, keepdims=True)
  return bias_NX - jnp.where(experts[None], mean_N1, 0)
