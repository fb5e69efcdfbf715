# SPDX-License-Identifier: Apache-2.0
"""The experts against the reference, where sizes and choices are awkward."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ops
from ops import native
from ops.experts import ENGINES, reference
from ops.hopper import warp_groups
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


def refused(engine, tokens, experts=16, width=2048, inner=2048):
  shape = lambda *s: jax.ShapeDtypeStruct(s, jnp.bfloat16)
  matrices = shape(experts, width, 2 * inner), shape(experts, inner, width)
  return engine.unsupported(shape(tokens, width), None, *matrices) or ''


@pytest.mark.parametrize('engine', ENGINES, ids=lambda engine: engine.name)
def test_rows_are_numbered_in_32_bits_whatever_their_length(
  engine, monkeypatch
):
  monkeypatch.setattr(native, 'unavailable', lambda kernel: None)
  monkeypatch.setattr(warp_groups, 'unavailable', lambda: None)
  # Of 4 * 2**30 numbers each, which ran on an H100.
  assert not refused(engine, 2**20)
  assert not refused(engine, 2**31 - 2**20)
  reason = '2147483647 tokens are more rows than 32 bits can number'
  assert refused(engine, 2**31 - 1) == reason
  # Each expert may have rows of padding.
  assert 'rows' in refused(engine, 2**31 - 2**20, experts=2**10, width=8)


def test_hip_counts_the_bytes_of_256_rows_in_32_bits(monkeypatch):
  monkeypatch.setattr(native, 'unavailable', lambda kernel: None)
  engine = next(e for e in ENGINES if e.name == 'hip')
  assert not refused(engine, 8, inner=2**22 - 8)
  assert '4194304 inner' in refused(engine, 8, inner=2**22)


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
