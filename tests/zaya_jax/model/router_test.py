# SPDX-License-Identifier: Apache-2.0
"""Who is chosen, with which weight, and how many chose whom."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ops.router import reference
from tests.support import close, tiny, tracing
from zaya_jax.model import moe, router, zaya

PROBS = jnp.array([[[0.5, 0.3, 0.2], [0.1, 0.6, 0.3]]])
BIAS = jnp.array([0.0, 0.25, 0.45])


def test_biased_probability_decides_and_unbiased_one_weighs():
  choice, weight = reference.choose(PROBS, BIAS)
  assert (choice.dtype, choice.tolist()) == (jnp.int32, [[2, 1]])
  np.testing.assert_array_equal(weight, PROBS[0, [0, 1], [2, 1]][None])


def test_gradient_reaches_the_chosen_probability_and_no_bias():
  weigh = lambda probs, bias: reference.choose(probs, bias)[1].sum()
  d_probs, d_bias = jax.grad(weigh, (0, 1))(PROBS, BIAS)
  np.testing.assert_array_equal(d_probs, [[[0, 0, 1], [0, 1, 0]]])
  assert not np.any(d_bias)


def test_count_leaves_out_what_does_not_count():
  choice = jnp.array([[0, 2, 2], [2, 0, 0]])
  real = jnp.array([[True, True, False], [True, True, True]])
  np.testing.assert_array_equal(router.count(choice, 4, None), [3, 0, 3, 0])
  np.testing.assert_array_equal(router.count(choice, 4, real), [3, 0, 2, 0])


def test_skipped_tokens_pass_or_vanish():
  choice, weight = reference.choose(PROBS, BIAS)
  routes = router.Routes(
    choice=choice, weight=weight, probs=PROBS, state=jnp.zeros((1, 2, 1))
  )
  y, h = jnp.array([[[0.0], [3.0]]]), jnp.array([[[5.0], [7.0]]])
  expected = {'zero': [0.0, 1.8], 'identity': [1.0, 1.8], 'off': [0.0, 1.8]}
  for skip, rows in expected.items():
    found = moe.weigh(y, h, routes, skip)[0, :, 0]
    close.assert_close(found, np.array(rows), close.FLOAT32)


def test_weighing_rounds_once():
  rng = np.random.default_rng(0)
  y = jnp.asarray(rng.normal(size=(1, 500, 1)), jnp.bfloat16)
  weight = jnp.asarray(rng.uniform(0.1, 1, (1, 500)), jnp.float32)
  routes = router.Routes(
    choice=jnp.zeros((1, 500), jnp.int32),
    weight=weight,
    probs=weight[..., None],
    state=jnp.zeros((1, 500, 1)),
  )
  found = np.asarray(moe.weigh(y, y, routes, 'zero'), np.float64)[..., 0]
  exact = np.asarray(y, np.float64)[..., 0] * np.asarray(weight, np.float64)
  # Half of the last of 8 bits; a weight of 8 bits would add as much.
  assert np.abs(found / exact - 1).max() <= 1.001 * 2**-8


@pytest.mark.parametrize('dtype', [jnp.bfloat16, jnp.float32])
def test_every_product_is_exact_where_gpus_round_float32(dtype):
  model = tiny.config()
  params, buffers = tiny.arrays(model)
  h = jnp.ones((1, 4, model.d_model), dtype)

  def loss(params, h):
    stack = zaya.bind(model, params, buffers).layers.router
    one = jax.tree.map(lambda leaf: leaf[0], stack)
    routes = one(h, jnp.ones((1, 4, model.d_router)))
    return routes.weight.sum() + routes.state.sum()

  # Without precision a GPU multiplies float32 in TF32, of 11 bits.
  dots = tracing.dots(jax.make_jaxpr(jax.grad(loss, (0, 1)))(params, h))
  assert len(dots) == 12  # Four products, two gradients of each.
  exact = (jax.lax.Precision.HIGHEST,) * 2
  for dot in dots:
    products = {str(v.aval.dtype) for v in dot.invars}
    assert products == {'bfloat16'} or dot.params['precision'] == exact


def test_load_counts_and_samples_what_counts():
  rng = np.random.default_rng(0)
  probs = jax.nn.softmax(rng.normal(size=(2, 6, 5)))
  choice, bias = jnp.argmax(probs, axis=-1), jnp.linspace(-1, 1, 5)
  real = jnp.arange(6)[None] < jnp.array([[6], [4]])
  routes = router.Routes(
    choice=choice, weight=probs[..., 0], probs=probs, state=probs
  )
  found = router.measure(routes, bias, real, 2)
  np.testing.assert_array_equal(found.tokens, router.count(choice, 5, real))
  expected = np.array(probs + bias[None, None])[:, ::2].reshape(6, 5)
  expected[5] = -np.inf  # Position 4 of the second row does not count.
  np.testing.assert_array_equal(found.sample, expected)
  assert router.measure(routes, bias, real, 0).sample.shape == (0, 5)
