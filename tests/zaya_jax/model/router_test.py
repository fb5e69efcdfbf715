# SPDX-License-Identifier: Apache-2.0
"""Who is chosen, with which weight, and how many chose whom."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.support import close
from zaya_jax.model import moe, router

PROBS = jnp.array([[[0.5, 0.3, 0.2], [0.1, 0.6, 0.3]]])
BIAS = jnp.array([0.0, 0.25, 0.45])


def test_biased_probability_decides_and_unbiased_one_weighs():
  choice, weight = router.choose(PROBS, BIAS)
  assert (choice.dtype, choice.tolist()) == (jnp.int32, [[2, 1]])
  np.testing.assert_array_equal(weight, PROBS[0, [0, 1], [2, 1]][None])


def test_gradient_reaches_the_chosen_probability_and_no_bias():
  weigh = lambda probs, bias: router.choose(probs, bias)[1].sum()
  d_probs, d_bias = jax.grad(weigh, (0, 1))(PROBS, BIAS)
  np.testing.assert_array_equal(d_probs, [[[0, 0, 1], [0, 1, 0]]])
  assert not np.any(d_bias)


def test_count_leaves_out_what_does_not_count():
  choice = jnp.array([[0, 2, 2], [2, 0, 0]])
  real = jnp.array([[True, True, False], [True, True, True]])
  np.testing.assert_array_equal(router.count(choice, 4, None), [3, 0, 3, 0])
  np.testing.assert_array_equal(router.count(choice, 4, real), [3, 0, 2, 0])


def test_skipped_tokens_pass_or_vanish():
  choice, weight = router.choose(PROBS, BIAS)
  routes = router.Routes(
    choice=choice, weight=weight, probs=PROBS, state=jnp.zeros((1, 2, 1))
  )
  y, h = jnp.array([[[0.0], [3.0]]]), jnp.array([[[5.0], [7.0]]])
  expected = {'zero': [0.0, 1.8], 'identity': [1.0, 1.8], 'off': [0.0, 1.8]}
  for skip, rows in expected.items():
    found = moe.weigh(y, h, routes, skip)[0, :, 0]
    close.assert_close(found, np.array(rows), close.FLOAT32)
