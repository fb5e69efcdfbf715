# SPDX-License-Identifier: Apache-2.0
"""The residual merge in Triton: mistakes that show, and what it refuses."""

import functools

import jax.numpy as jnp
import pytest

import ops
from ops import dispatch
from ops.residual_rms_norm import api, triton
from tests.support.ops.residual_inputs import (
  arguments,
  differ,
  outputs_and_gradients,
)


def test_triton_refuses_what_it_cannot_take():
  none, long = jnp.zeros((0, 8)), jnp.zeros((1, 9000))
  assert 'no rows' in triton.unsupported(none, none)
  assert '9000' in triton.unsupported(long, long)


def _no_mask(monkeypatch):
  columns = triton._columns

  def wide(d_model):
    place, mask = columns(d_model)
    return place, jnp.ones_like(mask)

  monkeypatch.setattr(triton, '_columns', wide)


def _one_program_of_all(monkeypatch):
  """The others' parts of the vectors' gradients are lost."""
  total = jnp.sum
  monkeypatch.setattr(
    api.jnp,
    'sum',
    lambda a, axis=None, **kw: a[0] if axis == 0 else total(a, axis, **kw),
  )


@functools.cache
def _unchanged(engine):
  """Once for all tests, so to be called before a mistake is made."""
  with dispatch.use(residual_rms_norm=engine):
    return outputs_and_gradients(ops.residual_rms_norm, *arguments())


@pytest.mark.parametrize(
  ('mistake', 'shows'),
  [(_no_mask, {1, 2, 3}), (_one_program_of_all, {4, 5, 6, 7, 8})],
)
def test_mistakes_of_the_kernel_show(mistake, shows, monkeypatch):
  wanted = _unchanged('xla')
  assert not differ(_unchanged('triton'), wanted)
  mistake(monkeypatch)
  with dispatch.use(residual_rms_norm='triton'):
    wrong = outputs_and_gradients(ops.residual_rms_norm, *arguments())
  assert shows <= differ(wrong, wanted)


@pytest.mark.parametrize(
  ('columns', 'programs', 'warps'),
  [
    (512, (8, 6, 5), 4),
    (1024, (4, 3, 2), 8),
    (2048, (2, 1, 1), 16),
    (4096, (2, 1, 1), 16),
  ],
)
def test_narrow_rows_take_fewer_threads_and_more_programs(
  columns, programs, warps
):
  with dispatch.compile_for('cuda'):
    found = [triton._launch(back, (65536, columns)) for back in (0, 1, 2)]
  assert found == [(132 * each, warps) for each in programs]
