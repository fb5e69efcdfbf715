# SPDX-License-Identifier: Apache-2.0
"""Attention to a cache against plain NumPy in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ops
from ops.attention import cached
from tests.support import close
from tests.support.reference.attention_numpy import specification

C = 4
# New tokens, rows of the cache, rows filled before, window.
CASES = {
  'one_token': (1, 40, 17, None),
  'first_token': (1, 40, 0, None),
  'last_row': (1, 40, 39, None),
  'one_token_in_parts': (1, 96, 70, None),
  'window': (1, 40, 30, 5),
  'prompt': (7, 40, 0, None),
  'prompt_by_blocks': (40, 100, 0, None),
  'chunk_by_blocks': (20, 100, 61, None),
  'chunk_by_blocks_window': (20, 100, 61, 30),
  'last_block_reaches_back': (25, 70, 45, None),
}


@pytest.fixture(params=CASES)
def case(request, monkeypatch):
  monkeypatch.setattr(cached, '_PART', 32)
  monkeypatch.setattr(cached, '_BLOCK', 48)
  return CASES[request.param]


def arrays(length, rows, heads=4, kv_heads=2, batch=2):
  """Of NumPy: jax would compile each shape."""
  rng = np.random.default_rng(rows + length)
  draw = lambda *s: jax.device_put(np.float32(2 * rng.normal(size=s)))
  q = draw(batch, length, heads, C)
  return q, *(draw(batch, kv_heads, rows, C) for _ in 'kv')


@functools.cache
def program(window, *sizes):
  """Of these sizes of blocks, which tests patch."""
  assert sizes == (cached._PART, cached._BLOCK)
  return jax.jit(functools.partial(ops.cached_attention, window=window))


def run(q, k, v, offset, window, valid=None):
  if valid is None:
    valid = np.ones((q.shape[0], k.shape[2]), bool)
  function = program(window, cached._PART, cached._BLOCK)
  return function(q, k, v, offset=np.int32(offset), valid_BS=valid)


def expected_of(q, k, v, offset, window):
  return np.concatenate(
    [
      specification(
        q[b : b + 1],
        k[b : b + 1].swapaxes(1, 2),
        v[b : b + 1].swapaxes(1, 2),
        window=window,
        offset=offset,
      )
      for b in range(len(q))
    ]
  )


@pytest.mark.parametrize('length', [1, 20])
def test_rows_may_have_offsets_of_their_own(monkeypatch, length):
  monkeypatch.setattr(cached, '_BLOCK', 48)
  q, k, v = arrays(length, 100)
  offsets, window = (17, 61), 9
  expected = np.concatenate(
    [
      expected_of(*(a[b : b + 1] for a in (q, k, v)), offset, window)
      for b, offset in enumerate(offsets)
    ]
  )
  found = run(q, k, v, offsets, window)
  close.assert_close(found, expected, 2 * close.FLOAT32)
  # Those of the other row are not.
  assert close.error(run(q, k, v, offsets[1], window), expected) > 0.01


def test_equals_the_specification(case):
  length, rows, offset, window = case
  q, k, v = arrays(length, rows)
  # Rows that nothing was written to yet must not matter.
  k, v = (a.at[:, :, offset + length :].set(1e3) for a in (k, v))
  expected = expected_of(q, k, v, offset, window)
  close.assert_close(run(q, k, v, offset, window), expected, 2 * close.FLOAT32)


def test_another_offset_gives_another_result(case):
  length, rows, offset, window = case
  q, k, v = arrays(length, rows)
  expected = expected_of(q, k, v, offset, window)
  other = offset // 2 if offset else 1
  assert close.error(run(q, k, v, other, window), expected) > 0.01


def test_rows_of_padding_are_not_seen(case):
  length, rows, offset, _ = case
  q, k, v = arrays(length, rows)
  offset = max(offset, 3)  # Behind the padding.
  valid = np.ones((2, rows), bool)
  valid[1, :3] = False
  found = run(q, k, v, offset, None, valid)
  expected = expected_of(q[1:], k[1:, :, 3:], v[1:, :, 3:], offset - 3, None)
  close.assert_close(found[1:], expected, 2 * close.FLOAT32)


def test_query_that_sees_nothing_gives_numbers():
  q, k, v = arrays(1, 40)
  out = run(q, k, v, 3, None, np.zeros((2, 40), bool))
  assert np.all(np.isfinite(out))


def test_bfloat16_is_close_to_float32(case):
  length, rows, offset, window = case
  given = [a.astype(jnp.bfloat16) for a in arrays(length, rows)]
  found = run(*given, offset, window)
  assert found.dtype == jnp.bfloat16
  expected = expected_of(*given, offset, window)
  close.assert_close(found, expected, 2e-2)
