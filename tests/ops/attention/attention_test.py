# SPDX-License-Identifier: Apache-2.0
"""Attention against plain NumPy in float64, engine by engine."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ops
from ops.attention import reference, triton, xla
from tests.support import close
from tests.support.reference.attention_numpy import specification

C = 4


def segments(*lengths):
  """[1, L]: document 1 of the first length, document 2 of the second, ..."""
  return np.repeat(np.arange(len(lengths)) + 1, lengths)[None]


# L, H, K, segments, window. From 129 rows on there are several blocks.
CASES = {
  'one_token': (1, 2, 1, None, None),
  'as_many_key_heads': (9, 3, 3, None, None),
  'groups_of_two': (9, 4, 2, None, None),
  'one_key_head': (9, 6, 1, None, None),
  'documents': (9, 4, 2, segments(4, 1, 4), None),
  'window': (9, 4, 2, None, 3),
  'window_beyond_the_row': (9, 4, 2, None, 100),
  'window_and_documents': (9, 4, 2, segments(6, 3), 3),
  'blocks': (300, 2, 1, None, None),
  'blocks_documents_window': (300, 2, 1, segments(100, 150, 50), 90),
  'four_blocks_that_do_not_divide': (601, 2, 2, None, None),
}


def arrays(length, heads, kv_heads, keys=None, dtype=jnp.float32, channels=C):
  """q, k, v and the gradient; of NumPy, as jax would compile each shape."""
  shapes = [(length, heads), (keys or length, kv_heads)]
  rng = np.random.default_rng(length)
  q, k, v, d_out = (
    jax.device_put(2 * rng.normal(size=(1, *shapes[i], channels)).astype(dtype))
    for i in (0, 1, 1, 0)
  )
  return (q, k, v), d_out


@functools.partial(jax.jit, static_argnums=0)
def gradients(function, given, d_out):
  out, vjp = jax.vjp(function, *given)
  return out, vjp(d_out)


@pytest.fixture(params=CASES)
def case(request):
  return CASES[request.param]


def engines(segments, window):
  """The engine for whole rows and the reference, with the same arguments."""
  options = {
    'q_segments_BL': segments,
    'k_segments_BS': segments,
    'window': window,
  }
  return tuple(
    functools.partial(engine.attention, **options)
    for engine in (xla, reference)
  )


def test_both_engines_equal_the_specification(case):
  length, heads, kv_heads, documents, window = case
  given, _ = arrays(length, heads, kv_heads)
  expected = specification(*given, documents, window)
  for engine in engines(documents, window):
    close.assert_close(jax.jit(engine)(*given), expected, close.FLOAT32)


def test_gradients_of_both_engines_are_equal(case):
  length, heads, kv_heads, documents, window = case
  given, d_out = arrays(length, heads, kv_heads)
  found, expected = (
    gradients(engine, given, d_out) for engine in engines(documents, window)
  )
  close.assert_close(found, expected, 2 * close.FLOAT32)


def test_only_whole_rows_are_cut_into_blocks(monkeypatch):
  monkeypatch.setattr(reference, 'attention', lambda *_, **__: 'reference')
  (q, k, v), _ = arrays(5, 2, 1)
  assert ops.attention(q, k, v).shape == q.shape
  assert ops.attention(q, k, v, offset=1) == 'reference'
  assert ops.attention(q[:, :1], k, v) == 'reference'
  whole = []
  jax.eval_shape(
    lambda n: whole.append(ops.attention(q, k, v, offset=n) != 'reference'), 0
  )
  assert whole == [False]  # A traced offset may not be 0.


def test_window_may_be_traced():
  given, _ = arrays(9, 4, 2)
  run = jax.jit(lambda window: ops.attention(*given, window=window))
  for window in (1, 3, np.iinfo('int32').max):
    expected = specification(*given, window=window)
    close.assert_close(run(jnp.int32(window)), expected, close.FLOAT32)


@pytest.mark.parametrize('window', [None, 4])
def test_offset_counts_the_rows_of_the_cache(window):
  (q, k, v), _ = arrays(3, 4, 2, keys=12)
  # Rows that nothing was written to yet must not matter.
  k, v = k.at[:, 8:].set(1e3), v.at[:, 8:].set(1e3)
  run = jax.jit(
    lambda offset: ops.attention(q, k, v, offset=offset, window=window)
  )
  expected = specification(q, k, v, window=window, offset=5)
  close.assert_close(run(5), expected, close.FLOAT32)
  assert close.error(run(4), expected) > 0.1


def test_keys_of_padding_are_not_seen():
  (q, k, v), _ = arrays(1, 4, 2, keys=6)
  valid = jnp.array([[False, False, True, True, True, False]])
  run = functools.partial(ops.attention, offset=4)
  found = jax.jit(run)(
    q, k, v, q_segments_BL=valid[:, 4:5], k_segments_BS=valid
  )
  expected = specification(q, k[:, 2:5], v[:, 2:5], offset=2)
  close.assert_close(found, expected, close.FLOAT32)


@pytest.mark.parametrize('engine', [xla, reference, triton])
def test_row_that_sees_no_key_is_finite_and_alone(engine):
  given, d_out = arrays(4, 2, 1, channels=16)
  run = functools.partial(
    engine.attention,
    q_segments_BL=jnp.array([[1, 7, 1, 1]]),
    k_segments_BS=jnp.array([[1, 1, 1, 1]]),
  )
  found, found_grads = gradients(run, given, d_out)
  assert np.isfinite(found).all()
  assert all(np.isfinite(g).all() for g in found_grads)
  expected = specification(*given)
  rows = np.array([0, 2, 3])
  close.assert_close(found[:, rows], expected[:, rows], close.FLOAT32)


def test_bfloat16_is_close_to_float32():
  given, d_out = arrays(300, 4, 2, dtype=jnp.bfloat16)
  found = gradients(ops.attention, given, d_out)
  assert all(leaf.dtype == jnp.bfloat16 for leaf in jax.tree.leaves(found))
  exact = jax.tree.map(lambda a: a.astype(jnp.float32), (given, d_out))
  expected = gradients(engines(None, None)[1], *exact)
  close.assert_close(found, expected, close.BFLOAT16)


def test_arguments_that_do_not_fit_are_refused():
  (q, k, v), _ = arrays(5, 3, 2)
  with pytest.raises(ValueError, match='must be a multiple'):
    ops.attention(q, k, v)
  (q, k, v), _ = arrays(5, 2, 2)
  with pytest.raises(ValueError, match='must be a multiple'):
    ops.attention(q, k, v[:, :4])
  with pytest.raises(ValueError, match='both queries and keys'):
    ops.attention(q, k, v, q_segments_BL=jnp.ones((1, 5), int))
