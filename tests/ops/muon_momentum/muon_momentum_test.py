# SPDX-License-Identifier: Apache-2.0
"""Momentum of Muon against closed forms."""

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


def test_types():
  m, g = [jnp.ones((2,))], [jnp.ones((2,), jnp.bfloat16)]
  new, ahead = ops.muon_momentum(m, g, decay=0.5, dtype=jnp.float16)
  assert (new[0].dtype, ahead[0].dtype) == (jnp.float32, jnp.float16)


def test_what_does_not_fit_together_is_refused():
  a, b = jnp.ones((2,)), jnp.ones((3,))
  with pytest.raises(ValueError, match='momenta and grads differ'):
    ops.muon_momentum([a], [b], decay=0.9)
