# SPDX-License-Identifier: Apache-2.0
"""Programs of many calls."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zaya_jax.bench.sweep import program

X = jnp.asarray(np.random.default_rng(0).random((8, 8)), jnp.float32)


@pytest.mark.parametrize('calls', [1, 2, 7])
def test_result_is_that_of_one_call(calls):
  f = jax.jit(program.many(jnp.matmul, calls))
  np.testing.assert_allclose(f((X, X), 0 * X), X @ X, rtol=1e-6)


def in_loop(f):
  """Products in the bodies of loops of a compiled function of two arrays."""
  text = jax.jit(f).lower((X, X), X).compile().as_text()
  bodies = [part for part in text.split('\n\n') if 'get-tuple-element' in part]
  return sum(
    'dot(' in part or 'fusion_config' in part
    for part in bodies
    if not part.lstrip().startswith('ENTRY')
  )


def test_call_stays_in_the_loop():
  assert in_loop(program.many(jnp.matmul, 7)) == 1


def test_call_without_a_barrier_would_leave_it():
  def plain(inputs, last):
    body = lambda _, last: jnp.matmul(*inputs)
    return jax.lax.fori_loop(0, 7, body, last)

  assert in_loop(plain) == 0


def test_function_is_measured_and_its_result_given():
  timed, found = program.measure(
    lambda x: {'sum': x + x, 'first': x[0]}, (X,), repeats=3
  )
  assert 0 < timed.low <= timed.seconds <= timed.high
  np.testing.assert_allclose(found['sum'], X + X)
  np.testing.assert_allclose(found['first'], X[0])
  assert program.launch_s() > 0
