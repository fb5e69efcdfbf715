# SPDX-License-Identifier: Apache-2.0
"""The router: closed forms, what is refused, and mistakes that show."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ops
from ops import dispatch
from ops.router import reference
from tests.support.ops.router_inputs import (
  arguments,
  differ,
  outputs,
  program,
  traced_anew,
)

NAMES = ('choice', 'weight', 'probs', 'state')


def test_is_the_formula_of_the_model():
  """Once more in NumPy, in float64."""
  args, kwargs = arguments('float32')
  h, previous, down, down_bias, eda, norm, w1, b1, w2, b2, out, balance = (
    np.float64(a) for a in args
  )
  state = h @ down + down_bias + eda * previous
  rms = np.sqrt(np.mean(state**2, -1, keepdims=True) + kwargs['eps'])
  erf = np.vectorize(math.erf)
  gelu = lambda x: x * (1 + erf(x / np.sqrt(2))) / 2
  logits = gelu(gelu(state / rms * norm @ w1 + b1) @ w2 + b2) @ out
  probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  choice = np.argmax(probs + balance, -1)
  weight = np.take_along_axis(probs, choice[..., None], -1)[..., 0]
  found = jax.jit(functools.partial(ops.router, **kwargs))(*args)
  for name, got, want in zip(
    NAMES, found, (choice, weight, probs, state), strict=True
  ):
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=name)


def test_the_bias_decides_and_does_not_weigh():
  args, kwargs = arguments('float32')
  args[-1] = jnp.zeros_like(args[-1]).at[1].set(2.0)
  run = jax.jit(functools.partial(ops.router, **kwargs))
  choice, weight, probs, _ = run(*args)
  assert (choice.dtype, set(np.unique(choice))) == (jnp.int32, {1})
  np.testing.assert_array_equal(weight, probs[..., 1])


def test_shapes_that_do_not_fit_are_refused():
  args, kwargs = arguments('float32')
  args[4] = args[4][:-1]
  with pytest.raises(ValueError, match='router: eda is'):
    ops.router(*args, **kwargs)


def _logistic_gelu(monkeypatch):
  gelu = lambda x: x * jax.nn.sigmoid(1.702 * x)
  monkeypatch.setattr(reference, 'gelu', gelu)


def _own_state_only(monkeypatch):
  monkeypatch.setattr(reference, 'mix', lambda own, *_: own)


def _weigh_with_the_bias(monkeypatch):
  def choose(probs, bias):
    choice = jnp.argmax(probs + bias[None, None], axis=-1).astype(jnp.int32)
    return choice, reference.pick(probs + bias[None, None], choice)

  monkeypatch.setattr(reference, 'choose', choose)


@pytest.mark.parametrize(
  ('mistake', 'shows'),
  [
    (_logistic_gelu, {'weight', 'probs'}),
    (_own_state_only, {'probs', 'state', 'd_previous', 'd_eda'}),
    (_weigh_with_the_bias, {'weight'}),
  ],
)
def test_mistakes_show(mistake, shows, monkeypatch):
  args, kwargs = arguments('bfloat16')
  wanted = outputs(program('xla'), args)
  mistake(monkeypatch)
  with dispatch.use(router='xla'):
    assert shows <= differ(outputs(traced_anew(kwargs), args), wanted)
