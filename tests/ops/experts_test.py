# SPDX-License-Identifier: Apache-2.0
"""The experts against the reference, where sizes and choices are awkward."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ops
from ops import dispatch
from ops.experts import few, reference, sorting, xla
from tests.support import close

D, F = 6, 10


def drawn(num_tokens, num_experts, low=0, high=None):
  """Random choices in [low, high), by default of every class but skip."""
  rng = np.random.default_rng(num_tokens)
  return rng.integers(low, high or num_experts, num_tokens)


# Name -> choices and E. A block has 16 rows for 37 tokens and 4 experts, 128
# for 300 and 2: the sizes are no multiples of it.
CASES = {
  'uneven': (drawn(37, 4), 4),
  'some_skipped': (drawn(37, 4, high=5), 4),
  'empty_experts': (drawn(37, 4, low=1, high=3), 4),
  'all_to_the_first': (np.full(37, 0), 4),
  'all_to_the_last': (np.full(37, 3), 4),
  'all_skipped': (np.full(37, 4), 4),
  'full_blocks': (np.repeat([3, 1, 0, 2], 16), 4),
  'several_large_blocks': (drawn(300, 2, high=3), 2),
  'one_expert': (drawn(9, 1, high=2), 1),
  'one_token': (np.array([2]), 4),
  'one_token_skipped': (np.array([4]), 4),
}


@functools.partial(jax.jit, static_argnums=0)
def value_and_gradients(function, arrays, choice, d_out):
  x, gate_up, down = arrays
  out, vjp = jax.vjp(lambda *a: function(a[0], choice, *a[1:]), *arrays)
  return out, vjp(d_out)


def arguments(choice, num_experts, dtype=jnp.float32):
  keys = jax.random.split(jax.random.key(len(choice)), 4)
  shapes = [
    (len(choice), D),
    (num_experts, D, 2 * F),
    (num_experts, F, D),
    (len(choice), D),
  ]
  x, gate_up, down, d_out = (
    jax.random.normal(k, s, dtype) for k, s in zip(keys, shapes, strict=True)
  )
  return (x, gate_up, down), jnp.asarray(choice, jnp.int32), d_out


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


def test_sort_is_stable_and_counts_the_experts_only(case):
  choice, num_experts = case
  order, inverse, starts = sorting.sort_by_expert(
    jnp.asarray(choice, jnp.int32), num_experts
  )
  np.testing.assert_array_equal(order, np.argsort(choice, kind='stable'))
  np.testing.assert_array_equal(np.asarray(order)[inverse], range(len(choice)))
  counts = np.bincount(choice, minlength=num_experts + 1)[:num_experts]
  np.testing.assert_array_equal(starts, [0, *np.cumsum(counts)])


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


@pytest.mark.parametrize('engine', [few.picked, few.dense, ops.expert_mlp_rows])
def test_engines_for_decoding_equal_the_reference(engine, case):
  (x, gate_up, down), choice, _ = arguments(*case)
  rows = gate_up.swapaxes(1, 2), down.swapaxes(1, 2)
  found = jax.jit(engine)(x, choice, *rows)
  expected = reference.expert_mlp(x, choice, gate_up, down)
  close.assert_close(found, expected, close.FLOAT32)


def test_engine_for_decoding_follows_the_number_of_tokens(monkeypatch):
  for name in ('picked', 'dense'):
    monkeypatch.setattr(few, name, lambda *_, name=name: name)
  monkeypatch.setattr(xla, 'expert_mlp_rows', lambda *_: 'blocked')
  taken = lambda n: ops.expert_mlp_rows(jnp.zeros((n, D)), None, None, None)
  assert [taken(n) for n in (1, 4, 5, 500)] == ['picked', 'picked'] + [
    'blocked'
  ] * 2
  with dispatch.compile_for('cuda'):
    found = [taken(n) for n in (4, 5, 256, 257)]
  assert found == ['picked', 'dense', 'dense', 'blocked']
