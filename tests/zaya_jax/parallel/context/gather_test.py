# SPDX-License-Identifier: Apache-2.0
"""Divided rows by the kernels in Triton, interpreted: they are attention."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ops
from ops import dispatch
from ops.attention import ranges, reference
from ops.attention import rows as rows_lib
from tests.support import close, quick, rows
from zaya_jax.parallel.context import gather

HEADS, KV_HEADS, CHANNELS = 4, 2, 16  # Fewer channels Triton has not.
# Devices, length, packing, window; blocks of queries have 32 rows, of keys 16,
# so chunks of 20 cross them.
DRAWS = [
  (2, 128, 'one', None),
  (2, 80, 'many', 9),
  (4, 160, 'padded', None),
]
# The kernels' exponentials are powers of two, of scores that were rounded once
# more: on one device they are off by as much.
TOLERANCE = 2 * rows.TOLERANCE


def arrays(length, dtype=jnp.float32):
  """q, k, v and the gradient of the output."""
  heads = (HEADS, KV_HEADS, KV_HEADS, HEADS)
  return rows.arrays(length, heads, CHANNELS, dtype)


def value_and_gradient(f, q, k, v, d_out):
  out, back = jax.vjp(f, q, k, v)
  return out, back(d_out)


def error(draw, dtype=jnp.float32, segmented=True):
  """The worst error over the spread of values and gradients."""
  n, length, packing, window = draw
  segments = rows.documents(packing, length)
  given = lambda s: s if segmented else None
  local = lambda q, k, v, s: gather.attention(
    q, k, v, axis='context', segments_BS=given(s), window=window
  )
  f = rows.divided(local, n, whole=(3,), check=False)
  with dispatch.use(attention='triton'):
    found = jax.jit(
      functools.partial(value_and_gradient, lambda *qkv: f(*qkv, segments))
    )(*arrays(length, dtype))
  whole = lambda q, k, v: reference.attention(
    q,
    k,
    v,
    q_segments_BL=given(segments),
    k_segments_BS=given(segments),
    window=window,
  )
  run = jax.jit(functools.partial(value_and_gradient, whole))
  wanted = run(*arrays(length, dtype))
  return rows.worst(found, wanted)


@pytest.mark.parametrize('draw', quick.only(DRAWS, *DRAWS[1:]), ids=str)
def test_equals_one_device(draw):
  assert error(draw) <= TOLERANCE


def test_without_segments():
  assert error((2, 96, 'one', 30), segmented=False) <= TOLERANCE


def test_bfloat16_is_as_close_as_bfloat16_is():
  assert error(DRAWS[1], jnp.bfloat16) <= 5 * close.BFLOAT16


def rows_of_another_device(monkeypatch):
  right = gather._places

  def wrong(length, *args):
    places = right(length, *args)
    return places | {'q_rows_L': places['q_rows_L'] + 1}

  monkeypatch.setattr(gather, '_places', wrong)


def keys_in_the_order_of_devices(monkeypatch):
  monkeypatch.setattr(gather, '_chunks', lambda x, axis, back=False: x)


def blocks_left_out(monkeypatch):
  """Ranges as if queries stood at row 0."""
  right = ranges.ranges
  wrong = lambda *args: right(*args[:6], None, args[7])
  monkeypatch.setattr(ranges, 'ranges', wrong)


def a_chunk_without_its_gradient(monkeypatch):
  right = gather._chunks

  def wrong(x, axis, *, back=False):
    x = right(x, axis, back=back)
    return x.at[:, : x.shape[1] // 8].set(0) if back else x

  monkeypatch.setattr(gather, '_chunks', wrong)


@pytest.mark.parametrize(
  'mistake',
  [
    rows_of_another_device,
    keys_in_the_order_of_devices,
    blocks_left_out,
    a_chunk_without_its_gradient,
  ],
)
def test_mistakes_show(mistake, monkeypatch):
  mistake(monkeypatch)
  assert error((2, 80, 'many', None)) > 100 * TOLERANCE


def test_rows_anywhere_are_those_of_the_whole():
  """The op alone, without devices: some rows of a sequence of 70."""
  q, k, v, _ = arrays(70)
  places = np.array([0, 3, 4, 40, 41, 68, 69], np.int32)
  whole = ops.attention(q, k, v)
  with dispatch.use(attention='triton'):
    kernels = rows_lib.kernels(q, k, v)
    out, _ = rows_lib.forward(kernels, q[:, places], k, v, jnp.asarray(places))
  np.testing.assert_allclose(out, whole[:, places], rtol=0, atol=2e-6)


def test_who_computes():
  q, k, v, _ = (jax.ShapeDtypeStruct(a.shape, jnp.bfloat16) for a in arrays(32))
  assert rows_lib.kernels(q, k, v) is None  # A CPU.
  with (
    dispatch.use(attention='hopper'),
    pytest.raises(dispatch.UnsupportedError, match='devices share'),
  ):
    rows_lib.kernels(q, k, v)
