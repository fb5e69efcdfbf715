# SPDX-License-Identifier: Apache-2.0
"""The experts against the reference, where sizes and choices are awkward."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ops
from ops.experts import reference
from tests.support import close
from tests.support.ops.experts_inputs import (
  CASES,
  D,
  F,
  arguments,
  value_and_gradients,
)


@pytest.fixture(params=CASES)
def case(request):
  return CASES[request.param]


def test_value_and_gradients_equal_the_reference(case):
  given = arguments(*case)
  found = value_and_gradients(ops.expert_mlp, *given)
  expected = value_and_gradients(reference.expert_mlp, *given)
  close.assert_close(found, expected, close.FLOAT32)


def test_skipped_tokens_and_empty_experts_get_exact_zeros(case):
  choice, num_experts = case
  out, (dx, d_gate_up, d_down) = value_and_gradients(
    ops.expert_mlp, *arguments(choice, num_experts)
  )
  skipped = choice == num_experts
  assert not np.any(np.asarray(out)[skipped])
  assert not np.any(np.asarray(dx)[skipped])
  for e in set(range(num_experts)) - set(choice.tolist()):
    assert not np.any(d_gate_up[e]) and not np.any(d_down[e])


def test_bfloat16_is_close_to_float32():
  choice, num_experts = CASES['some_skipped']
  given = arguments(choice, num_experts, jnp.bfloat16)
  found = value_and_gradients(ops.expert_mlp, *given)
  assert all(leaf.dtype == jnp.bfloat16 for leaf in jax.tree.leaves(found))
  arrays, choice, d_out = given
  exact = jax.tree.map(lambda a: a.astype(jnp.float32), (arrays, d_out))
  expected = value_and_gradients(
    reference.expert_mlp, exact[0], choice, exact[1]
  )
  close.assert_close(found, expected, close.BFLOAT16)


@pytest.mark.parametrize(
  'x, choice, gate_up, down, words',
  [
    ((5, D), (5,), (2, D, 2 * F), (2, F + 1, D), 'down must be'),
    ((5, D), (5,), (2, D, 2 * F + 1), (2, F, D), 'down must be'),
    ((5, D + 1), (5,), (2, D, 2 * F), (2, F, D), 'x must be'),
    ((5, D), (4,), (2, D, 2 * F), (2, F, D), 'x must be'),
  ],
)
def test_shapes_that_do_not_fit_are_refused(x, choice, gate_up, down, words):
  with pytest.raises(ValueError, match=words):
    ops.expert_mlp(
      jnp.zeros(x), jnp.zeros(choice, int), jnp.zeros(gate_up), jnp.zeros(down)
    )
