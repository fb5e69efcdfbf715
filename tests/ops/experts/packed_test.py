# SPDX-License-Identifier: Apache-2.0
"""Products with matrices of few bits, against float64 from the definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ops import dispatch
from ops.experts import few, packed, reference, xla
from tests.support import close, few_bits

KINDS = list(few_bits.GROUPS)


def of(kind, lead=(), **shape):
  """A packed matrix and its float64."""
  values, scale = few_bits.draw(3, lead, kind, **shape)
  found = packed.Packed(values=jnp.asarray(values), scale=jnp.asarray(scale))
  return found, few_bits.wide(values, scale)


def rows_of(count, inputs=24):
  drawn = np.random.default_rng(count).normal(size=(count, inputs))
  return drawn.astype(np.float32)


@pytest.mark.parametrize('kind', KINDS)
def test_what_is_widened_is_number_times_scale(kind):
  w, expected = of(kind, (2, 3))
  assert (w.shape, w.ndim, w.size) == (expected.shape, 4, expected.size)
  assert w.nbytes == w.values.size + 2 * w.scale.size
  # Both factors have few digits: the product is exact.
  np.testing.assert_array_equal(packed.widen(w, jnp.float32), expected)
  one = packed.pick(w, jnp.int32(1))
  np.testing.assert_array_equal(packed.widen(one, jnp.float32), expected[1])
  table, expected = of(kind)
  taken = packed.take(table, jnp.array([[4, 0], [1, 4]]), jnp.float32)
  np.testing.assert_array_equal(taken, expected[[[4, 0], [1, 4]]])


@pytest.mark.parametrize('count', [1, packed.FEW, packed.FEW + 1])
@pytest.mark.parametrize('kind', KINDS)
def test_products_equal_those_of_the_wide_matrix(kind, count):
  w, expected = of(kind)
  x = rows_of(count)
  found = jax.jit(packed.dot)(x, w)
  assert found.dtype == jnp.float32
  close.assert_close(found, x @ expected.T, close.FLOAT32)
  batch = jax.jit(packed.dot)(x[None], w)
  close.assert_close(batch, x[None] @ expected.T, close.FLOAT32)


def test_few_rows_read_the_numbers_once_and_keep_nothing_wide():
  w, _ = of('int4', outputs=256, inputs=192)

  def wide_arrays(rows):
    text = jax.jit(packed.dot).lower(rows_of(rows, 192), w).compile().as_text()
    entry = text[text.index('ENTRY') :]
    return sum(entry.count(f'f32[{s}]') for s in ('256,192', '256,96'))

  assert wide_arrays(1) == 0
  assert wide_arrays(packed.FEW + 1) > 0  # Those are there to be found.


@pytest.mark.parametrize('kinds', [('int8', 'int8'), ('int4', 'int4')])
def test_joined_matrices_stay_packed(kinds):
  pairs = [of(kind, outputs=n) for n, kind in enumerate(kinds, 2)]
  made = packed.join([w for w, _ in pairs], jnp.float32)
  assert isinstance(made, packed.Packed)
  expected = np.concatenate([wide for _, wide in pairs])
  np.testing.assert_array_equal(packed.widen(made, jnp.float32), expected)


def test_unlike_matrices_are_joined_wide():
  pairs = [of('int8'), of('int4'), of('int8_groups')]
  made = packed.join([w for w, _ in pairs], jnp.float32)
  np.testing.assert_array_equal(
    made, np.concatenate([wide for _, wide in pairs])
  )


@pytest.mark.parametrize('kind', ['int8', 'int4'])
@pytest.mark.parametrize('engine', [few.picked, few.dense, xla.expert_mlp_rows])
def test_engines_for_decoding_take_packed_experts(engine, kind):
  gate_up, wide_up = of(kind, (3,), outputs=48)
  down, wide_down = of(kind, (3,), outputs=24)
  x, choice = rows_of(4), jnp.array([2, 0, 3, 1])  # 3: no expert.
  found = jax.jit(engine)(x, choice, gate_up, down)
  rows = lambda w: w.swapaxes(1, 2).astype(np.float32)
  expected = reference.expert_mlp(x, choice, rows(wide_up), rows(wide_down))
  close.assert_close(found, expected, close.FLOAT32)
  assert not np.any(found[2])


def broken(change):
  """The error of a product after one thing was changed."""
  w, expected = of('int4')
  x = rows_of(1)
  found = packed.dot(x, change(w))
  return close.error(found, x @ expected.T)


@pytest.mark.parametrize(
  'change',
  [
    lambda w: packed.Packed(values=w.values, scale=jnp.roll(w.scale, 1, 0)),
    lambda w: packed.Packed(values=w.values, scale=jnp.roll(w.scale, 1, 1)),
    lambda w: packed.Packed(
      values=w.values >> 4 | w.values << 4, scale=w.scale
    ),
    lambda w: packed.Packed(values=jnp.roll(w.values, 1, 1), scale=w.scale),
  ],
  ids=['another_channel', 'another_group', 'swapped_halves', 'shifted'],
)
def test_what_is_changed_is_caught(change):
  assert broken(lambda w: w) <= close.FLOAT32
  assert broken(change) > 0.01


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_one_row_on_rocm_is_no_product_of_a_library(dtype):
  rng = np.random.default_rng(0)
  x, w = (jnp.asarray(rng.standard_normal(s), dtype) for s in ((24,), (9, 24)))
  wide = np.asarray(w, np.float64) @ np.asarray(x, np.float64)
  for rows in (x, x[None, None]):
    with dispatch.compile_for('rocm'):
      found = jax.jit(lambda *a: packed.dot(*a)).trace(rows, w)
    assert 'dot_general' not in str(found.jaxpr)
    out = found.lower().compile()(rows, w)
    assert out.shape == (*rows.shape[:-1], 9) and out.dtype == jnp.float32
    np.testing.assert_allclose(out.reshape(-1), wide, rtol=1e-5, atol=1e-5)
  with dispatch.compile_for('cuda'):
    found = jax.jit(lambda *a: packed.dot(*a)).trace(x, w)
  assert 'dot_general' in str(found.jaxpr)
