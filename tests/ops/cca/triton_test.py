# SPDX-License-Identifier: Apache-2.0
"""CCA's prologue in Triton: mistakes that show, and what it refuses."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ops
from ops import dispatch
from ops.cca import api, triton
from ops.cca.triton import kernels
from tests.support import quick
from tests.support.ops.cca_inputs import arguments


def _traced_anew(function, *args):
  """As one program: step by step jax would compile each."""
  return jax.jit(lambda *a: function(*a))(*args)


def _error(found, wanted):
  """Of queries, keys and values: the largest, over the largest value."""
  return [
    np.abs(a - b).max() / np.abs(b).max()
    for a, b in zip(found, wanted, strict=True)
  ]


@pytest.mark.parametrize(
  ('name', 'reason'),
  [('no_rotation', 'nothing is rotated'), ('odd', 'powers of two')],
)
def test_triton_says_what_it_cannot_take(name, reason):
  assert reason in triton.unsupported(*arguments(name))


def test_parts_too_small_for_a_matrix_product_are_refused_on_gpus():
  args = arguments('short')  # 16 channels, 8 of them rotated.
  assert triton.unsupported(*args) is None
  with dispatch.compile_for('rocm'):
    assert 'at least 16' in triton.unsupported(*args)
  with dispatch.compile_for('cuda'):
    assert 'float32' in triton.unsupported(*args)


def no_segments(monkeypatch):
  init = kernels._Block.__init__
  monkeypatch.setattr(
    kernels._Block,
    '__init__',
    lambda self, sizes, segments, index: init(self, sizes, (), index),
  )


def no_halo(monkeypatch):
  """What lies before the block is taken for zero."""
  mask = kernels._Block.mask

  def mutant(self, lag=None):
    inside = jnp.arange(self._sizes.block) >= (0 if lag is None else lag)
    return mask(self, lag) & inside

  monkeypatch.setattr(kernels._Block, 'mask', mutant)


def halo_of_the_future(monkeypatch):
  place = kernels._Block._place
  monkeypatch.setattr(
    kernels._Block,
    '_place',
    lambda self, ref, first, size, mask, lag: place(
      self, ref, first, size, mask, -lag
    ),
  )


def rotate_the_other_way(monkeypatch):
  rotate = kernels._rotate
  monkeypatch.setattr(
    kernels, '_rotate', lambda *args: rotate(*args[:-1], -args[-1])
  )


def swap_the_halves(monkeypatch):
  rotate = kernels._rotate

  def mutant(sizes, block, cos, sin, parts, sign):
    right, left, *rest = rotate(
      sizes, block, cos, sin, [parts[1], parts[0], *parts[2:]], sign
    )
    return [left, right, *rest]

  monkeypatch.setattr(kernels, '_rotate', mutant)


def no_mean(monkeypatch):
  monkeypatch.setattr(kernels, '_add_partners', lambda *args: args[-1])


MISTAKES = (
  None,
  no_segments,
  no_halo,
  halo_of_the_future,
  rotate_the_other_way,
  swap_the_halves,
  no_mean,
)


@pytest.mark.parametrize('mistake', quick.only(MISTAKES, None, no_halo))
def test_mistakes_of_the_kernel_show(mistake, monkeypatch):
  args = arguments()
  wanted = _traced_anew(ops.cca_prologue, *args)
  if mistake:
    mistake(monkeypatch)
  with dispatch.use(cca='triton'):
    found = _traced_anew(ops.cca_prologue, *args)
  queries, keys, values = _error(found, wanted)
  assert values == 0
  assert (min(queries, keys) > 0.05) if mistake else max(queries, keys) < 1e-5


def lose_a_part(monkeypatch):
  """Of the sums over blocks."""
  total = jnp.sum
  monkeypatch.setattr(
    api.jnp,
    'sum',
    lambda a, axis=None, **kw: (
      a[0] if axis == 0 and a.ndim > 2 else total(a, axis, **kw)
    ),
  )


def values_over_keys(monkeypatch):
  """Their gradient lands on the last head of z."""
  of_values = kernels.of_values

  def mutant(*refs, sizes):
    less = dataclasses.replace(sizes, heads=sizes.heads - 1)
    of_values(*refs, sizes=less)

  monkeypatch.setattr(kernels, 'of_values', mutant)


@pytest.mark.parametrize(
  ('mistake', 'index'),
  [
    (values_over_keys, 0),
    pytest.param(no_segments, 0, marks=pytest.mark.long),
    pytest.param(no_mean, 0, marks=pytest.mark.long),
    (lose_a_part, 1),
  ],
)
def test_mistakes_on_the_way_back_show(mistake, index, monkeypatch):
  args = arguments()

  def gradient(x):
    out = lambda x: ops.cca_prologue(*args[:index], x, *args[index + 1 :])
    return jax.vjp(out, x)[1](tuple(map(jnp.cos, wanted)))[0]

  wanted = _traced_anew(ops.cca_prologue, *args)
  right = _traced_anew(gradient, args[index])
  with dispatch.use(cca='triton'):
    found = [_traced_anew(gradient, args[index])]
    mistake(monkeypatch)
    found.append(_traced_anew(gradient, args[index]))
  (small,), (large,) = (_error([x], [right]) for x in found)
  assert small < 1e-5 and not large < 0.01  # It may be no number.
