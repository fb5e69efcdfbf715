# SPDX-License-Identifier: Apache-2.0
"""The groups together: what each gets, clipping, decay, the schedule."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ops
from tests.support import close, tiny
from zaya_jax import config as config_lib
from zaya_jax.optim import groups, muon, optimizer, schedule

STEPS = 10


@pytest.fixture(scope='module')
def params():
  return tiny.arrays(tiny.config())[0]


@pytest.fixture(scope='module')
def grads():
  # Of the shapes of the parameters, and small enough not to be clipped.
  large = jax.device_get(tiny.arrays(tiny.config(), 1)[0])
  return jax.tree.map(lambda p: np.float32(1e-3) * p, large)


@functools.cache
def step_of(**settings):
  """The update of one step, compiled once for each kind of optimizer."""
  config = config_lib.OptimConfig(**settings)
  transform = optimizer.make_optimizer(config, STEPS).params

  @jax.jit
  def step(scale, grads, state, params):
    scaled = jax.tree.map(lambda g: scale * g, grads)
    return transform.update(scaled, state, params)

  return jax.jit(transform.init), step


def updates(params, grads, scales=(1.0, -0.5), **settings):
  """The updates of steps with these multiples of the gradients."""
  init, step = step_of(**settings)
  state, found = init(params), []
  for scale in scales:
    update, state = step(scale, grads, state, params)
    found.append(update)
  return found


def group_of(params, name):
  flat = jax.tree_util.tree_leaves_with_path(
    groups.label(params, optimizer='muon')
  )
  return {groups.name(path) for path, group in flat if group == name}


def by_name(tree):
  return {
    groups.name(path): leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }


def test_each_group_gets_its_rule_its_decay_and_the_schedule(params, grads):
  found = updates(params, grads, weight_decay=0.1, clip_norm=0.0)
  rate = schedule.make_schedule(config_lib.OptimConfig(), STEPS)
  adam, orthogonal = optax.scale_by_adam(0.9, 0.95, 1e-8), muon.scale_by_muon()

  def expected(name, decay, rule):
    p, g = by_name(params)[name], by_name(grads)[name]
    state, out, step = rule.init(p), [], jax.jit(rule.update)
    for i, scale in enumerate((1.0, -0.5)):
      update, state = step(scale * g, state)
      out.append(-rate(i) * (np.asarray(update) + decay * np.asarray(p)))
    return out

  cases = [
    ('layers/experts/down', 0.1, orthogonal),
    ('layers/attn/q', 0.1, orthogonal),
    ('embed', 0.1, adam),
    ('layers/attn/conv_grouped', 0.1, adam),
    ('layers/attn/conv_depthwise', 0.0, adam),
    ('final_norm', 0.0, adam),
  ]
  for name, decay, rule in cases:
    got = [by_name(update)[name] for update in found]
    # Newton-Schulz grows rounding; see muon_test.
    close.assert_close(got, expected(name, decay, rule), 150 * close.FLOAT32)


def test_adamw_moves_matrices_by_adam(params, grads):
  found = updates(params, grads, name='adamw', weight_decay=0.0)[0]
  reached = by_name(found)['layers/attn/q']
  rate = 2e-3 / STEPS
  g = by_name(grads)['layers/attn/q']
  expected = -rate * g / (np.abs(g) + 1e-8)
  close.assert_close(reached, expected, close.FLOAT32)


def test_gradients_above_the_norm_shrink_together(params, grads):
  grads = jax.device_get(grads)  # NumPy compiles nothing.
  norm = np.sqrt(sum(np.sum(g**2) for g in jax.tree.leaves(grads)))
  small = jax.tree.map(lambda g: g * (0.01 / norm), grads)
  big = jax.tree.map(lambda g: 500 * g, small)
  # Muon and Adam hardly see the scale of one step: the second one, after a
  # first without clipping, shows it.
  clipped = updates(params, big, scales=(0.001, 1.0), clip_norm=0.1)[1]
  by_hand = updates(params, small, scales=(0.5, 10.0), clip_norm=0.0)[1]
  close.assert_close(clipped, by_hand, 300 * close.FLOAT32)
  unclipped = updates(params, big, scales=(0.001, 1.0), clip_norm=0.0)[1]
  assert close.error(unclipped['embed'], clipped['embed']) > 0.01


def test_momentum_of_muon_is_of_gradients_clipped_once():
  grads = {'embed': jnp.ones(9), 'layers': {'attn': {'q': jnp.ones((1, 4, 4))}}}
  config = config_lib.OptimConfig(clip_norm=0.5, newton_schulz_steps=1)
  update = optimizer.make_optimizer(config, STEPS).params
  state = jax.jit(lambda g: update.update(g, update.init(g), g)[1])(grads)
  (momentum,) = [
    leaf for leaf in jax.tree.leaves(state) if leaf.shape == (1, 4, 4)
  ]
  close.assert_close(momentum, jnp.full((1, 4, 4), 0.1), close.FLOAT32)


def test_decay_moves_matrices_only(params, grads):
  zero = jax.tree.map(np.zeros_like, grads)
  (moved,) = updates(
    params, zero, scales=(1.0,), weight_decay=0.1, clip_norm=0.0
  )
  plain = group_of(params, 'plain')
  for name, update in by_name(moved).items():
    assert np.any(update) == (name not in plain), name


def test_state_holds_one_momentum_for_muon_and_two_for_adam(params):
  transform = optimizer.make_optimizer(config_lib.OptimConfig(), STEPS).params
  state = jax.eval_shape(transform.init, params)
  held = sum(leaf.size for leaf in jax.tree.leaves(state) if leaf.ndim)
  sizes = {name: leaf.size for name, leaf in by_name(params).items()}
  matrices = sum(sizes[name] for name in group_of(params, 'muon'))
  assert held == 2 * sum(sizes.values()) - matrices


def test_newton_schulz_is_as_the_flags_say(monkeypatch, params, grads):
  seen = []
  real = ops.newton_schulz

  def spy(x, **how):
    seen.append((x.dtype.name, how))
    return real(x, **how)

  monkeypatch.setattr(ops, 'newton_schulz', spy)
  update, _ = updates(
    params,
    grads,
    newton_schulz_steps=3,
    newton_schulz_coefficients='polar_express',
    newton_schulz_dtype='float16',
    newton_schulz_gram=True,
  )
  wanted = {
    'steps': 3,
    'coefficients': 'polar_express',
    'gram': True,
    'dtype': np.dtype('float16'),
  }
  # What is sent is bfloat16: the range of float16 is too small for momentum.
  assert all(found == ('bfloat16', wanted) for found in seen) and seen
  matrices = group_of(params, 'muon')
  for name, leaf in by_name(update).items():
    assert leaf.dtype == ('bfloat16' if name in matrices else 'float32'), name
