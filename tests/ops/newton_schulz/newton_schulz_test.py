# SPDX-License-Identifier: Apache-2.0
"""Newton-Schulz against what it does to singular values, in float64."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ops
from ops import dispatch
from ops.newton_schulz import api, coefficients, gram, reference
from tests.support import close, quick

SHAPES = {'wide': (4, 9), 'tall': (9, 4), 'square': (6, 6), 'row': (1, 5)}


def matrix(shape, seed=0):
  rng = np.random.default_rng(seed)
  return jnp.asarray(rng.standard_normal(shape), jnp.float32)


def run(x, **options):
  """As one program, which is traced anew for each call."""
  return jax.jit(lambda x: ops.newton_schulz(x, **options))(x)


def specification(x, steps, table=((3.4445, -4.7750, 2.0315),)):
  """U p(p(...(S))) V^T: the quintic only ever changes singular values."""
  u, s, vt = np.linalg.svd(np.asarray(x, np.float64), full_matrices=False)
  s /= np.linalg.norm(s)
  for i in range(steps):
    a, b, c = table[min(i, len(table) - 1)]
    s = a * s + b * s**3 + c * s**5
  return (u * s) @ vt


@pytest.mark.parametrize('steps', [1, 5])
@pytest.mark.parametrize('name', SHAPES)
def test_equals_the_polynomial_of_the_singular_values(name, steps):
  x = matrix(SHAPES[name])
  found = run(x, steps=steps)
  # Each step can grow an error by the slope of the quintic at 0, 3.4.
  tolerance = close.FLOAT32 * 3.5 ** (steps - 1)
  close.assert_close(found, specification(x, steps), tolerance)


@pytest.mark.parametrize('name', SHAPES)
def test_result_is_about_orthogonal(name):
  found = np.asarray(run(100 * matrix(SHAPES[name])))
  values = np.linalg.svd(found, compute_uv=False)
  assert 0.6 < values.min() and values.max() < 1.3


def test_each_matrix_of_a_stack_is_treated_alone():
  x = jnp.stack([matrix((3, 5), seed) * 10**seed for seed in range(4)])
  stacked = run(x.reshape(2, 2, 3, 5)).reshape(4, 3, 5)
  for one, found in zip(x, stacked, strict=True):
    close.assert_close(found, run(one), close.FLOAT32_DEEP)


def test_zero_stays_zero():
  x = jnp.zeros((2, 3, 4)).at[1].set(matrix((3, 4)))
  found = run(x)
  assert not np.any(found[0])
  assert np.isfinite(found).all()


def test_bfloat16_iteration_gives_the_type_of_the_input():
  x = matrix((6, 9))
  found = run(x, dtype=jnp.bfloat16)
  assert found.dtype == jnp.float32
  # Five iterations in 8 bits, each of which can grow what came before.
  close.assert_close(found, specification(x, 5), 5 * close.BFLOAT16)


def test_vectors_are_refused():
  with pytest.raises(ValueError, match=r'needs \[..., m, n\]'):
    ops.newton_schulz(jnp.zeros(3))


def spectrum(values, columns, seed=0):
  """A matrix with these singular values."""
  rng = np.random.default_rng(seed)
  u, _ = np.linalg.qr(rng.standard_normal((len(values), len(values))))
  v, _ = np.linalg.qr(rng.standard_normal((columns, len(values))))
  return jnp.asarray((u * values) @ v.T, jnp.float32)


# Over what singular values they are meant for, as their authors say.
@pytest.mark.parametrize(
  ('name', 'steps', 'least', 'low', 'high'),
  [
    ('jordan', 5, 0.02, 0.65, 1.25),
    ('you', 5, 0.02, 0.75, 1.25),
    ('polar_express', 5, 0.02, 0.85, 1.15),
    ('polar_express', 10, 2e-3, 0.999, 1.001),
  ],
)
def test_coefficients_bring_singular_values_to_one(
  name, steps, least, low, high
):
  x = spectrum(np.geomspace(least, 0.6, 16), 24)
  found = run(x, steps=steps, coefficients=name)
  values = np.linalg.svd(np.asarray(found), compute_uv=False)
  assert low < values.min() and values.max() < high
  table = coefficients.TABLE[name]
  wanted = specification(x, steps, table)
  close.assert_close(found, wanted, close.FLOAT32 * 8.3 * 4**4)


def test_unknown_coefficients_are_refused():
  with pytest.raises(ValueError, match=r"coefficients='no' must be one of jor"):
    ops.newton_schulz(jnp.zeros((2, 2)), coefficients='no')


@pytest.mark.parametrize('steps', [0, 1, 2, 3, 5, 6])
@pytest.mark.parametrize('shape', [(4, 9), (20, 8)])
def test_gram_form_is_the_same_polynomial(shape, steps):
  x = matrix(shape)
  found = run(x, steps=steps, gram=True, coefficients='you')
  wanted = specification(x, steps, coefficients.TABLE['you'])
  close.assert_close(found, wanted, close.FLOAT32 * 10 * 4 ** max(steps - 1, 0))


def test_gram_form_holds_in_few_bits_because_it_starts_again(monkeypatch):
  x = spectrum(1 / np.arange(1, 65), 128)
  wanted = specification(x, 5)
  again = lambda: run(x, gram=True, dtype=jnp.bfloat16)
  assert close.error(again(), wanted) < 0.3
  monkeypatch.setattr(gram, 'FIRST', 100)
  assert close.error(again(), wanted) > 0.6


def test_float16_is_more_accurate_than_bfloat16():
  x = spectrum(np.geomspace(0.01, 1, 32), 64)
  wanted = specification(x, 5)
  coarse, fine = (
    close.error(run(x, dtype=dtype), wanted)
    for dtype in (jnp.bfloat16, jnp.float16)
  )
  assert fine < coarse / 4


@pytest.mark.parametrize('engine', ['xla', 'triton'])
def test_float16_does_not_overflow(engine):
  x = 6e4 * jnp.sign(matrix((24, 40))).astype(jnp.float16)
  # The norm is in the first product; interpreted, each takes long to compile.
  with dispatch.use(newton_schulz=engine):
    found = run(x, dtype=jnp.float16, steps=3)
  wanted = specification(x, 3)
  close.assert_close(found.astype(jnp.float32), wanted, close.BFLOAT16)


def test_float16_does_not_hold_the_norm_in_a_product(monkeypatch):
  monkeypatch.setattr(api, 'FOLDED', ('float16',))
  with pytest.raises(AssertionError):
    test_float16_does_not_overflow('triton')


@pytest.mark.parametrize('steps', [1, 2, 3])
def test_last_product_does_not_read_where_it_writes(steps, monkeypatch):
  copied = []
  normalize = reference.normalize
  note = lambda *args: copied.append(True) or normalize(*args)
  monkeypatch.setattr(reference, 'normalize', note)
  with dispatch.use(newton_schulz='triton'):
    run(matrix((8, 20)), steps=steps, gram=True)
  assert bool(copied) == (steps < 3)


@pytest.mark.parametrize(
  'form',
  quick.only(itertools.product((3, 5), (False, True)), (3, False), (5, True)),
)
def test_norm_is_multiplied_into_products(form):
  steps, gram_form = form
  found, wanted = (
    jax.jit(lambda x: ops.newton_schulz(x, steps=steps, gram=gram_form))
    for _ in range(2)
  )
  for size in (1e-6, 1e15):
    x = jnp.stack([matrix((8, 20)), 3 * matrix((8, 20), 1)]) * size
    with dispatch.use(newton_schulz='triton'):
      y = found(x)
    close.assert_close(y, wanted(x), close.FLOAT32 * 4**steps)


@pytest.mark.parametrize('stack', [3, 4, 5])
def test_large_stacks_go_in_chunks(stack, monkeypatch):
  x = jnp.stack([matrix((6, 20), seed) for seed in range(stack)])
  with dispatch.use(newton_schulz='triton'):
    whole = run(x, steps=1)
    monkeypatch.setattr(api, 'CHUNK', 2 * 6 * 20 + 1)
    parts = jax.make_jaxpr(lambda x: ops.newton_schulz(x, steps=1))(x)
    found = run(x, steps=1)
  np.testing.assert_array_equal(found, whole)
  assert 'f32[2,6,20]' in str(parts) and 'scan' in str(parts)
