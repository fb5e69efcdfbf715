# SPDX-License-Identifier: Apache-2.0
"""Momentum and update of Muon against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ops


def test_momentum_of_constant_gradients_is_the_geometric_sum():
  grads, momenta = [jnp.full((2, 3), 2.0)], [jnp.zeros((2, 3))]
  for n in range(1, 6):
    momenta, ahead = ops.muon_momentum(momenta, grads, decay=0.5)
    np.testing.assert_allclose(momenta[0], 4 * (1 - 0.5**n))
    np.testing.assert_allclose(ahead[0], 4 * (1 - 0.5 ** (n + 1)))


@pytest.mark.parametrize('apply', [False, True])
def test_momentum_stays_where_it_is_not_to_be_applied(apply):
  momenta, grads = [jnp.ones((2, 3))], [jnp.full((2, 3), 2.0)]
  new, _ = ops.muon_momentum(momenta, grads, decay=0.5, apply=jnp.bool_(apply))
  np.testing.assert_allclose(new[0], 2.5 if apply else 1.0)


def test_scale_is_of_the_gradients():
  momenta, grads = [jnp.ones(3)], [jnp.full(3, 2.0)]
  new, ahead = ops.muon_momentum(momenta, grads, decay=0.5, scale=0.25)
  np.testing.assert_allclose(new[0], 1.0)
  np.testing.assert_allclose(ahead[0], 1.0)


def test_without_a_direction_weights_decay_by_one_factor():
  params = [jnp.ones((3,)), jnp.full((2, 2), -4.0)]
  new = ops.muon_apply(
    params,
    [jnp.zeros_like(p) for p in params],
    lr=jnp.float32(0.5),
    weight_decay=0.25,
    scales=(1.0, 3.0),
  )
  for p, q in zip(params, new, strict=True):
    np.testing.assert_allclose(q, p * 0.875)


def test_each_direction_has_its_scale_and_the_rate_may_be_traced():
  @jax.jit
  def step(lr):
    zero = [jnp.zeros((4,)), jnp.zeros((5,))]
    ones = [jnp.ones((4,), jnp.bfloat16), jnp.ones((5,), jnp.bfloat16)]
    return ops.muon_apply(
      zero, ones, lr=lr, weight_decay=0.1, scales=(1.0, -3.0)
    )

  first, second = step(jnp.float32(0.5))
  np.testing.assert_allclose(first, -0.5)
  np.testing.assert_allclose(second, 1.5)


def test_types():
  m, g = [jnp.ones((2,))], [jnp.ones((2,), jnp.bfloat16)]
  new, ahead = ops.muon_momentum(m, g, decay=0.5, dtype=jnp.float16)
  assert (new[0].dtype, ahead[0].dtype) == (jnp.float32, jnp.float16)


def test_what_does_not_fit_together_is_refused():
  a, b = jnp.ones((2,)), jnp.ones((3,))
  with pytest.raises(ValueError, match='momenta and grads differ'):
    ops.muon_momentum([a], [b], decay=0.9)
  with pytest.raises(ValueError, match='params and directions differ'):
    ops.muon_apply([a], [b], lr=1.0, weight_decay=0.0, scales=[1.0])
  with pytest.raises(ValueError, match='2 scales for 1 parameters'):
    ops.muon_apply([a], [a], lr=1.0, weight_decay=0.0, scales=[1.0, 1.0])
