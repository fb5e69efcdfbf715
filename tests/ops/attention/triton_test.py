# SPDX-License-Identifier: Apache-2.0
"""Attention in Triton: mistakes that show, what it refuses and compiles to."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ops
from ops import dispatch
from ops.attention import cases, ranges, reference, triton
from ops.attention.triton import kernels
from tests.support import gpus, quick
from tests.support.ops.attention_inputs import both, draw, gradients

RANGES = ranges.ranges


def wrong_ranges(*args, change):
  return tuple(change(ends) for ends in RANGES(*args))


def without_segments(self, scores, rows):
  self._extras = {n: a for n, a in self._extras.items() if n == 'window'}
  return MASK(self, scores, rows)


MASK = kernels.Program.mask


MUTANTS = {
  'last_block_left_out': (
    (ranges, 'ranges'),
    functools.partial(wrong_ranges, change=lambda e: e - (e == e[..., 3:])),
  ),
  'all_taken_as_visible': (
    (ranges, 'ranges'),
    functools.partial(
      wrong_ranges, change=lambda e: e.at[..., 1].set(e[..., 0])
    ),
  ),
  'segments_not_masked': ((kernels.Program, 'mask'), without_segments),
  'scores_not_masked': (
    (kernels.Program, 'mask'),
    lambda _, scores, rows: scores,
  ),
}


@pytest.mark.parametrize(
  'name', quick.only((None, *MUTANTS), None, 'last_block_left_out')
)
def test_mutants_of_the_kernel_are_caught(name, monkeypatch):
  if name:
    monkeypatch.setattr(*MUTANTS[name][0], MUTANTS[name][1])
  given = draw(96, (2, 1))
  options = both(cases.documents(30, 1, 33, 32))
  found, expected = (
    jax.jit(
      functools.partial(
        gradients, functools.partial(engine.attention, **options)
      )
    )(*given)
    for engine in (triton, reference)
  )
  error = max(
    np.abs(np.nan_to_num(a, nan=1e9) - b).max()
    for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True)
  )
  assert (error > 1e-2) if name else (error < 1e-4)


@pytest.mark.parametrize('platform', ['cuda', 'rocm'])
def test_kernel_lowers_for_gpus(platform):
  given = [
    jax.ShapeDtypeStruct(a.shape, jnp.bfloat16)
    for a in draw(256, (8, 2), 128, jnp.bfloat16)
  ]
  segments = jax.ShapeDtypeStruct((1, 256), jnp.int32)

  def run(q, k, v, d_out, segments, window):
    attend = functools.partial(ops.attention, **both(segments), window=window)
    return gradients(attend, q, k, v, d_out)

  with dispatch.compile_for(platform), dispatch.use(attention='triton'):
    traced = jax.jit(run).trace(*given, segments, jnp.int32(100))
    text = gpus.lower(traced, platform).as_text()
  for kernel in (
    'attention_forward',
    'attention_of_keys',
    'attention_of_queries',
  ):
    assert kernel in text


@pytest.mark.parametrize(
  'heads, channels, dtypes, reason',
  [
    ((2, 1), 24, 'bbb', 'no power of two'),
    ((2, 1), 8, 'bbb', 'no power of two'),
    ((2, 1), 16, 'bfb', 'differ in type'),
  ],
)
def test_kernel_says_what_it_does_not_take(heads, channels, dtypes, reason):
  kinds = {'b': jnp.bfloat16, 'f': jnp.float32}
  given = [
    a.astype(kinds[d])
    for a, d in zip(draw(8, heads, channels)[:3], dtypes, strict=True)
  ]
  assert reason in triton.unsupported(*given)
  assert 'row 0' in triton.unsupported(*draw(8)[:3], offset=1)
  assert triton.unsupported(*draw(8)[:3], offset=0) is None
