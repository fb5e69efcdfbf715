# SPDX-License-Identifier: Apache-2.0
"""The optimizer of a run: clipping, Muon and AdamW by group, one schedule."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from ops import dispatch
from zaya_jax import config as config_lib
from zaya_jax.config.recipe import segments
from zaya_jax.optim import balance, muon, schedule
from zaya_jax.optim import groups as groups_lib


class Optimizer(NamedTuple):
  """What changes the arrays of a state, once their gradients are known."""

  params: optax.GradientTransformationExtraArgs
  buffers: optax.GradientTransformation  # The balancing bias.
  rate: optax.Schedule  # Of the parameters, by the updates done.
  by_step: bool = False  # The rate counts steps, refused ones too.

  def rate_of(self, step: jax.Array, refused: jax.Array) -> jax.Array:
    """The rate after so many steps, of which some were refused."""
    return self.rate(step if self.by_step else step - refused)


def make_optimizer(
  config: config_lib.OptimConfig,
  num_steps: int,
  segment: segments.Segment | None = None,
) -> Optimizer:
  """All that is made of `--optim.*`, for a run of so many steps.

  Args:
    config: of the optimizer.
    num_steps: of the run.
    segment: of a recipe, which has a learning rate of its own.
  """
  by_step = bool(segment and segment.rate)
  if by_step:
    rate = schedule.of_segment(segment)
  else:
    rate = schedule.make_schedule(config, num_steps)
  return Optimizer(
    _of_params(config, rate, by_step),
    balance.make_balancer(config),
    rate,
    by_step,
  )


def of_run(config: config_lib.Config) -> Optimizer:
  """The optimizer of a run, or of a segment of its recipe."""
  return make_optimizer(
    config.optim, config.num_steps, segments.current(config)
  )


def _of_params(config, schedule, by_step):
  """Muon for hidden matrices and AdamW for the rest (see `groups`).

  Both share the learning rate and decoupled weight decay; norms, scales,
  biases and the depthwise convolution are not decayed. Updates of Muon have
  the type in which devices send them to each other: bfloat16, unless its
  iteration is float32. `update` takes `apply`, see `muon.select`, and `step`,
  which a rate `by_step` is a function of.
  """
  adam = optax.scale_by_adam(config.beta1, config.beta2, config.adam_eps)
  decay = optax.add_decayed_weights(config.weight_decay)
  dtype = config.newton_schulz_dtype
  if dtype == 'auto':
    dtype = 'float32' if dispatch.platform() == 'cpu' else 'bfloat16'
  # Not float16, whose range momentum may leave.
  sent = jnp.dtype('float32' if dtype == 'float32' else 'bfloat16')
  orthogonal = muon.scale_by_muon(
    momentum=config.momentum,
    nesterov=config.nesterov,
    split=('gate_up',) if config.muon_split_gate_up else (),
    message_dtype=sent,
    steps=config.newton_schulz_steps,
    coefficients=config.newton_schulz_coefficients,
    gram=config.newton_schulz_gram == 'true',
    dtype=jnp.dtype(dtype),
  )
  groups = {
    'muon': optax.chain(orthogonal, decay),
    'decay': optax.chain(adam, decay),
    'plain': adam,
  }
  label = lambda params: groups_lib.label(params, optimizer=config.name)
  rate = optax.scale_by_learning_rate(schedule)

  def descend(updates, state, params=None, *, step=None, **_):
    counted = state._replace(count=step) if by_step else state
    updates, _ = rate.update(updates, counted, params)
    state = state._replace(count=optax.safe_increment(state.count))
    rounded = lambda u, kind: u.astype(sent) if kind == 'muon' else u
    return jax.tree.map(rounded, updates, label(updates)), state

  def clip(grads, state, params=None, *, scale, **_):
    del params
    # Muon multiplies in its own pass over the gradients.
    one = lambda g, kind: g if kind == 'muon' else g * scale.astype(g.dtype)
    return jax.tree.map(one, grads, label(grads)), state

  steps = optax.chain(
    optax.GradientTransformationExtraArgs(lambda _: optax.EmptyState(), clip),
    optax.partition(groups, label),
    optax.GradientTransformationExtraArgs(rate.init, descend),
  )

  def update(grads, state, params=None, **extra):
    factor = _clips(grads, config.clip_norm)
    return steps.update(grads, state, params, scale=factor, **extra)

  return optax.GradientTransformationExtraArgs(steps.init, update)


def _clips(grads, most):
  """What brings the norm of all gradients to `most`, if it is beyond that."""
  if not most:
    return jnp.float32(1)
  norm = optax.tree.norm(grads)
  return jnp.where(norm < most, 1, most / norm)
