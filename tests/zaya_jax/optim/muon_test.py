# SPDX-License-Identifier: Apache-2.0
"""Muon against optax and against NumPy in float64, and its stacks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax.contrib
import pytest

from tests.support import close
from zaya_jax.optim import muon

SHAPES = {'wide': (4, 9), 'tall': (9, 4), 'square': (6, 6)}
# Newton-Schulz grows an error by 3.4 in each of five iterations.
ITERATED = 3.5**4 * close.FLOAT32


def gradients(shape, steps=4):
  keys = jax.random.split(jax.random.key(0), steps)
  return [jax.random.normal(key, shape) for key in keys]


def run(transform, grads):
  """The updates of a single leaf, one per step."""
  state, updates = transform.init({'w': grads[0]}), []
  step = jax.jit(transform.update)
  for g in grads:
    update, state = step({'w': g}, state, {'w': jnp.zeros_like(g)})
    updates.append(update['w'])
  return updates


def optax_muon(nesterov):
  """The negative update of optax at a learning rate of 1."""
  return optax.chain(
    optax.contrib.muon(
      1.0, beta=0.95, eps=1e-7, nesterov=nesterov, consistent_rms=0.2
    ),
    optax.scale(-1.0),
  )


def specification(grads, *, momentum, nesterov, steps):
  """float64; Newton-Schulz as its quintic of the singular values."""
  m, updates = np.zeros(grads[0].shape), []
  for g in grads:
    g = np.asarray(g, np.float64)
    m = momentum * m + g
    look = g + momentum * m if nesterov else m
    u, s, vt = np.linalg.svd(look, full_matrices=False)
    s /= np.linalg.norm(s)
    for _ in range(steps):
      s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    updates.append(0.2 * np.sqrt(max(g.shape)) * (u * s) @ vt)
  return updates


@pytest.mark.parametrize('name', SHAPES)
def test_equals_optax_on_one_matrix(name):
  # optax averages and corrects the bias: proportional to the plain sum, and
  # Newton-Schulz divides by the norm.
  grads = gradients(SHAPES[name])
  found = run(muon.scale_by_muon(momentum=0.95, nesterov=False), grads)
  expected = run(optax_muon(nesterov=False), grads)
  close.assert_close(found, expected, ITERATED)


@pytest.mark.parametrize('name', SHAPES)
def test_first_nesterov_step_equals_optax(name):
  grads = gradients(SHAPES[name], steps=1)
  found = run(muon.scale_by_muon(momentum=0.95), grads)
  expected = run(optax_muon(nesterov=True), grads)
  close.assert_close(found, expected, ITERATED)


@pytest.mark.parametrize('nesterov', [False, True])
@pytest.mark.parametrize('name', SHAPES)
def test_equals_the_specification_over_several_steps(name, nesterov):
  how = {'momentum': 0.9, 'nesterov': nesterov, 'steps': 3}
  grads = gradients(SHAPES[name])
  found = run(muon.scale_by_muon(**how), grads)
  close.assert_close(found, specification(grads, **how), ITERATED)


def test_specification_tells_nesterov_and_steps_apart():
  grads = gradients((4, 9))
  how = {'momentum': 0.9, 'nesterov': True, 'steps': 3}
  found = run(muon.scale_by_muon(**how), grads)[-1]
  for change in ({'nesterov': False}, {'steps': 4}, {'momentum': 0.8}):
    other = specification(grads, **{**how, **change})[-1]
    assert close.error(found, other) > 0.01, change


def test_change_in_one_expert_moves_no_other():
  grads = gradients((2, 3, 4, 6), steps=2)  # Two layers, three experts.
  found = run(muon.scale_by_muon(), grads)[-1]
  changed = [g.at[1, 2].multiply(-50.0).at[1, 2, 0].set(1.0) for g in grads]
  other = run(muon.scale_by_muon(), changed)[-1]
  moved = np.any(np.asarray(found != other), axis=(-2, -1))
  expected = np.zeros((2, 3), bool)
  expected[1, 2] = True
  np.testing.assert_array_equal(moved, expected)


def test_each_matrix_of_a_stack_is_updated_as_if_alone():
  grads = gradients((2, 3, 4, 6), steps=2)
  found = run(muon.scale_by_muon(), grads)[-1]
  for place in np.ndindex(2, 3):
    alone = run(muon.scale_by_muon(), [g[place] for g in grads])[-1]
    close.assert_close(found[place], alone, ITERATED)


def test_split_treats_gate_and_up_apart():
  grads = [{'gate_up': g, 'out': g} for g in gradients((3, 4, 10), steps=2)]
  transform = muon.scale_by_muon(split=('gate_up',))
  state = transform.init(grads[0])
  for g in grads:
    update, state = jax.jit(transform.update)(g, state)
  halves = [
    run(muon.scale_by_muon(), [g['out'][..., half] for g in grads])[-1]
    for half in (slice(0, 5), slice(5, 10))
  ]
  close.assert_close(update['gate_up'], jnp.concatenate(halves, -1), ITERATED)
  assert close.error(update['out'], update['gate_up']) > 0.01


def test_state_is_momentum_in_the_shape_of_the_parameters():
  (g,) = gradients((2, 4, 6), steps=1)
  transform = muon.scale_by_muon(momentum=0.5)
  state = transform.init({'w': g})
  assert not np.any(state.momentum['w'])
  for expected in (g, 1.5 * g):
    _, state = transform.update({'w': g}, state)
    close.assert_close(state.momentum, {'w': expected}, close.FLOAT32)


def test_root_mean_square_is_about_that_of_adamw():
  (g,) = gradients((64, 256), steps=1)
  (update,) = run(muon.scale_by_muon(), [g])
  assert 0.15 < np.sqrt(np.mean(np.square(update))) < 0.25


def test_sharded_stack_equals_a_whole_one():
  grads = gradients((8, 4, 6), steps=2)
  mesh = jax.make_mesh(
    (8,), ('x',), axis_types=(jax.sharding.AxisType.Explicit,)
  )
  place = functools.partial(
    jax.device_put,
    device=jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('x')),
  )
  with jax.set_mesh(mesh):
    found = run(muon.scale_by_muon(), [place(g) for g in grads])[-1]
  assert found.sharding.spec[0] == 'x'
  whole = run(muon.scale_by_muon(), grads)[-1]
  close.assert_close(np.asarray(found), np.asarray(whole), ITERATED)


def test_select_reads_no_momentum_again():
  one, other = (
    muon.ScaleByMuonState({'w': jnp.full(3, i)}) for i in (1.0, 2.0)
  )
  chosen, count = muon.select(False, (one, 1), (other, 2))
  assert chosen is one and count == 2
