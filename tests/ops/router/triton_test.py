# SPDX-License-Identifier: Apache-2.0
"""The router in Triton: how exact, mistakes that show, what is refused."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ops
from ops import dispatch
from ops.router import api, reference, triton
from ops.router.triton import backward, numbers, weights
from tests.support.ops import plain_router
from tests.support.ops.router_inputs import (
  arguments,
  differ,
  outputs,
  program,
  traced_anew,
)


def test_error_function_is_that_of_float64():
  x = np.linspace(-7, 7, 20001, dtype=np.float32)
  wanted = np.vectorize(math.erf)(np.float64(x))
  # Two units in the last place of numbers below 1.
  assert np.abs(np.float64(numbers.erf(jnp.asarray(x))) - wanted).max() < 2**-23


def test_slope_of_the_gelu_is_that_of_float64():
  with jax.enable_x64(True):
    x = jnp.linspace(-7, 7, 2001)
    slope = jax.vmap(jax.grad(reference.gelu))(x)
    value = reference.gelu(x)
  found = numbers.gelu_and_slope(jnp.asarray(np.float32(x)))
  np.testing.assert_allclose(found[0], value, rtol=0, atol=2e-6)
  np.testing.assert_allclose(found[1], slope, rtol=0, atol=5e-7)


def _errors(scale, parts, seed=0):
  """Largest and mean error of x @ w over |x| @ |w|, by parts."""
  rng = np.random.default_rng(seed)
  x = rng.standard_normal((64, 256)).astype(np.float32)
  w = (scale * rng.standard_normal((256, 256))).astype(np.float32)
  found = numbers.dot(*parts(jnp.asarray(x), jnp.asarray(w)))
  x, w = np.float64(x), np.float64(w)
  if scale_of := getattr(parts, 'scale', None):
    found = np.float64(found) * float(scale_of)
  return np.abs(np.float64(found) - x @ w) / (np.abs(x) @ np.abs(w))


@pytest.mark.parametrize('scale', [1e-6, 0.02, 1.0, 1e6])
def test_products_by_parts_are_float32(scale):
  def parts(x, w):
    w, power, _ = plain_router.exact_parts(w)
    up = 2.0 ** api.unit_power(256)
    parts.scale = 1 / (up * 2.0 ** float(power))
    return numbers.parts(x * up, jnp.float16), w

  error = _errors(scale, parts)
  # Each number is exact to 22 bits, and what both leave is left out.
  assert error.max() < 2**-22
  # Bfloat16 has 16 bits in two parts.
  coarse = _errors(
    scale,
    lambda x, w: tuple(numbers.parts(a, jnp.bfloat16) for a in (x, w)),
  )
  assert coarse.max() > 2**-20


def test_parts_of_a_matrix_have_room_above_and_below():
  for w in (np.zeros((4, 4)), np.full((4, 4), 3e-9), np.full((4, 4), 65504.0)):
    parts, power, top = plain_router.exact_parts(jnp.asarray(w, jnp.float32))
    assert np.all(np.isfinite(parts)) and top == np.float32(w.max())
    back = np.float64(parts).sum(0) * 2.0 ** -float(power)
    np.testing.assert_allclose(back, w, rtol=2**-22)


def _matrices(scale):
  rng = np.random.default_rng(3)
  draw = lambda *s: rng.standard_normal(s).astype(np.float32)
  fc1 = scale * draw(64, 64)
  return api.Matrices(
    *(draw(40, 64), draw(64), fc1, 99 * draw(64), draw(64, 64), draw(64, 17))
  )


def test_parts_are_the_plain_ones_bit_for_bit(monkeypatch):
  run, plain = (
    jax.jit(lambda *a, f=f: f(api.Matrices(*a)))
    for f in (weights.weights, plain_router.weights)
  )
  for scale in (1, 1e-8, 1e4):
    found, wanted = run(*_matrices(scale)), plain(*_matrices(scale))
    jax.tree.map(np.testing.assert_array_equal, found, wanted)
  # The largest number of one program's rows is not that of the matrix.
  monkeypatch.setattr(weights, '_ROWS', 64)
  largest = lambda lower, upper, body, start: start
  monkeypatch.setattr(weights.jax.lax, 'fori_loop', largest)
  wrong = jax.jit(lambda *a: weights.weights(api.Matrices(*a)))(*_matrices(1))
  assert np.any(wrong.fc1 != plain(*_matrices(1)).fc1)


def test_weights_of_any_size_are_exact():
  """Powers of two follow the weights, so that float16 is wide enough."""
  args, _ = arguments('bfloat16')
  for index in (6, 8, 10):
    args[index] *= 300
  args[7] += 1000
  wanted = outputs(program('xla'), args)
  found = outputs(program('triton'), args)
  assert not differ(found, wanted) & {'choice', 'weight', 'probs', 'state'}


def test_parameters_of_16_bits_are_those_numbers_in_float32():
  """As a model has them that only predicts."""
  args, kwargs = arguments('bfloat16')
  half = [*args[:2], *(w.astype(jnp.bfloat16) for w in args[2:])]
  with dispatch.use(router='triton'):
    found = jax.jit(functools.partial(ops.router, **kwargs))(*half)
  whole = [*args[:2], *(w.astype(jnp.float32) for w in half[2:])]
  wanted, other = (program('triton')(a)[:4] for a in (whole, args))
  jax.tree.map(np.testing.assert_array_equal, list(found), wanted)
  assert not np.array_equal(found[2], other[2])


def _slope_of_another_gelu(monkeypatch):
  value_and_slope = numbers.gelu_and_slope
  wrong = lambda x: (value_and_slope(x)[0], numbers.gelu(x))
  monkeypatch.setattr(numbers, 'gelu_and_slope', wrong)


def _one_program_of_all(monkeypatch):
  """The others' parts of sums over tokens are lost."""
  total = jnp.sum
  monkeypatch.setattr(
    api.jnp,
    'sum',
    lambda a, axis=None, **kw: (
      a[0] if axis == 0 and a.ndim == 3 else total(a, axis, **kw)
    ),
  )


@pytest.mark.parametrize(
  ('mistake', 'shows'),
  [
    (_slope_of_another_gelu, {'d_h', 'd_fc1', 'd_fc2', 'd_fc1_bias'}),
    (_one_program_of_all, {'d_eda', 'd_out', 'd_fc1_bias', 'd_fc2_bias'}),
  ],
)
def test_mistakes_of_the_kernels_show(mistake, shows, monkeypatch):
  args, kwargs = arguments('bfloat16')
  wanted = outputs(program('xla'), args)
  assert not differ(outputs(program('triton'), args), wanted)
  mistake(monkeypatch)
  with dispatch.use(router='triton'):
    assert shows <= differ(outputs(traced_anew(kwargs), args), wanted)


def _only_the_last_tile(monkeypatch):
  tile = backward._Tile
  forget = lambda *a: tile(*a)._replace(goes_on=jnp.bool_(False))
  monkeypatch.setattr(backward, '_Tile', forget)


def test_a_program_of_two_tiles_adds_both(monkeypatch):
  args, kwargs = arguments('bfloat16')
  sums = {'d_eda', 'd_out', 'd_fc1_bias', 'd_fc2_bias', 'd_down_bias'}
  wanted = outputs(program('triton'), args)
  monkeypatch.setitem(backward._TOKENS, 'cpu', 32)
  with dispatch.use(router='triton'):
    assert not differ(outputs(traced_anew(kwargs), args), wanted)
    _only_the_last_tile(monkeypatch)
    assert differ(outputs(traced_anew(kwargs), args), wanted) == sums


def test_what_is_refused():
  args, kwargs = arguments('bfloat16')
  reason = lambda *args: triton.unsupported(*args, **kwargs)
  assert reason(*args) is None
  assert 'bfloat16' in reason(args[0].astype(jnp.float32), *args[1:])
  assert '15 tokens' in reason(args[0][:1, :15], args[1][:1, :15], *args[2:])
  wide = jnp.zeros((32, 65))
  assert '65 classes' in reason(*args[:10], wide, args[11])
  odd = jnp.zeros((24, 17))
  assert '24 is no power' in reason(*args[:10], odd, args[11])
  with dispatch.compile_for('cuda'):
    assert '32 is none of' in reason(*args)


def test_runs_unnamed_where_it_was_faster():
  narrow, wide = (jnp.zeros((1, 64, r)) for r in (128, 256))
  assert triton.slower(narrow, narrow) is None
  assert '128' in triton.slower(wide, wide)
