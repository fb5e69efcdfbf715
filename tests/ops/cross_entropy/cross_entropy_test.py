# SPDX-License-Identifier: Apache-2.0
"""The chunked cross-entropy against all logits at once."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ops
from ops import dispatch
from ops.cross_entropy import api, reference, xla
from tests.support import close, quick
from tests.support.ops.cross_entropy_inputs import (
  POISON,
  T,
  V,
  arguments,
  assert_nan_as_the_reference,
  value_and_gradients,
)

ENGINES = [*itertools.product(('xla', 'triton'), (1, 4, T))]


@pytest.fixture(
  params=quick.only(ENGINES, *ENGINES[:3], ('triton', 4), ('triton', T)),
  ids=lambda p: f'{p[0]}-{p[1]}_tokens_a_chunk',
)
def chunks(request, monkeypatch):
  """Sets the engine and how many tokens a chunk has."""
  name, size = request.param
  monkeypatch.setattr(xla, 'chunk_tokens', lambda tokens, vocab: size)
  monkeypatch.setattr(api, '_CHUNK', size * V)
  monkeypatch.setattr(api, '_PART', 2 * V)
  with dispatch.use(cross_entropy=name):
    yield


@pytest.mark.parametrize('with_bias', [False, True], ids=['', 'bias'])
def test_value_and_gradients_equal_the_reference(chunks, with_bias):
  x, head, bias, target, weight = arguments()
  given = (x, head, bias if with_bias else None, target, weight)
  found = value_and_gradients(ops.linear_cross_entropy, *given)
  expected = value_and_gradients(reference.linear_cross_entropy, *given)
  close.assert_close(found, expected, close.FLOAT32)


def test_reference_is_the_textbook_formula():
  x, head, bias, target, weight = arguments()
  logits = np.asarray(x, np.float64) @ np.asarray(head, np.float64).T
  logits += np.asarray(bias)
  probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
  expected = -np.sum(np.asarray(weight) * np.log(probs[np.arange(T), target]))
  found = reference.linear_cross_entropy(x, head, target, weight, bias)
  close.assert_close(found, np.float64(expected), close.FLOAT32)


def test_tokens_of_weight_0_do_not_count(chunks):
  x, head, bias, target, weight = arguments()
  given = (head, bias, target, weight)
  loss, (dx, *_) = value_and_gradients(ops.linear_cross_entropy, x, *given)
  assert not np.any(np.asarray(dx)[[1, 8]])
  other = x.at[jnp.array([1, 8])].set(50.0)
  assert value_and_gradients(ops.linear_cross_entropy, other, *given)[0] == loss
  nothing = (head, bias, target, jnp.zeros_like(weight))
  found = value_and_gradients(ops.linear_cross_entropy, x, *nothing)
  assert all(not np.any(leaf) for leaf in jax.tree.leaves(found))


def test_large_logits_do_not_overflow(chunks):
  x, head, bias, target, weight = arguments()
  given = (300 * x, head, bias, target, weight)
  found = value_and_gradients(ops.linear_cross_entropy, *given)
  expected = value_and_gradients(reference.linear_cross_entropy, *given)
  close.assert_close(found, expected, close.FLOAT32)


@pytest.mark.parametrize('scale', [1, 100])  # Of 100 a chunk is made again.
@pytest.mark.parametrize('name', POISON)
@pytest.mark.parametrize('engine_name', ['xla', 'triton', 'hopper'])
def test_nan_goes_where_the_reference_has_it(engine_name, name, scale, plain):
  assert_nan_as_the_reference(engine_name, name, scale)


def test_bfloat16_is_close_to_float32(chunks):
  x, head, bias, target, weight = arguments(jnp.bfloat16)
  given = (x, head, bias, target, weight)
  found = value_and_gradients(ops.linear_cross_entropy, *given)
  assert [g.dtype for g in found[1]] == [jnp.bfloat16, jnp.bfloat16, 'float32']
  exact = (x.astype(jnp.float32), head.astype(jnp.float32))
  expected = value_and_gradients(
    reference.linear_cross_entropy, *exact, bias, target, weight
  )
  close.assert_close(found, expected, close.BFLOAT16)


def test_shapes_that_do_not_fit_are_refused():
  x, head, bias, target, weight = arguments()
  with pytest.raises(ValueError, match='does not fit head'):
    ops.linear_cross_entropy(x[:, :4], head, target, weight, bias)
  with pytest.raises(ValueError, match='does not fit head'):
    ops.linear_cross_entropy(x[:4], head, target, weight, bias)
