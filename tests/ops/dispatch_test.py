# SPDX-License-Identifier: Apache-2.0
"""Which engine is taken, and what is said of the others."""

import jax.numpy as jnp
import pytest

from ops import dispatch

ENGINES = (
  dispatch.Engine('hip', lambda x: 'hip', platforms=('rocm',)),
  dispatch.Engine(
    'triton', lambda x: 'triton', platforms=('cuda',), slower=dispatch.wide
  ),
  dispatch.Engine('xla', lambda x: 'xla'),
)
NARROW, WIDE = jnp.zeros(1, jnp.bfloat16), jnp.zeros(1, jnp.float32)


@pytest.mark.parametrize(
  'platform, x, engine',
  [
    ('cuda', NARROW, 'triton'),
    ('cuda', WIDE, 'xla'),
    ('rocm', WIDE, 'hip'),
    ('cpu', NARROW, 'xla'),
  ],
)
def test_the_fastest_of_the_platform_is_taken(platform, x, engine):
  with dispatch.compile_for(platform):
    assert dispatch.select('op', ENGINES, x)(x) == engine


def test_a_slower_one_runs_when_named():
  with dispatch.compile_for('cuda'), dispatch.use(op='triton'):
    assert dispatch.select('op', ENGINES, WIDE)(WIDE) == 'triton'


def test_the_reason_is_told():
  with dispatch.compile_for('cuda'):
    dispatch.select('told', ENGINES, WIDE)
    notes = '\n'.join(dispatch.notes())
  assert 'told: xla, not triton: tuned for 16 bits, not float32' in notes
  assert 'told: xla, not hip: on cuda only when named' in notes


def test_of_an_engine_for_another_platform_only_that_is_told():
  cannot = dispatch.Engine(
    'hip', lambda x: 'hip', lambda x: 'no library; build it', ('rocm',)
  )
  for platform, told in (
    ('cuda', 'on cuda only when named'),
    ('rocm', 'no library; build it'),
  ):
    with dispatch.compile_for(platform):
      dispatch.select(f'built_{platform}', (cannot, ENGINES[-1]), WIDE)
      notes = '\n'.join(dispatch.notes())
    assert f'built_{platform}: xla, not hip: {told}' in notes


def test_what_another_process_chose_is_told_too(monkeypatch):
  monkeypatch.setattr(dispatch, '_choices', {})
  with dispatch.compile_for('cuda'):
    dispatch.select('told', ENGINES, WIDE)
    was = dispatch.notes()
    chosen = dispatch.choices()
    dispatch._choices.clear()
    assert dispatch.notes() != was
    dispatch.remember(chosen)
    assert dispatch.notes() == was


def test_named_engines_are_those_in_use():
  before = dispatch.named()
  with dispatch.use(told='xla'):
    assert dispatch.named() == {**before, 'told': 'xla'}
  assert dispatch.named() == before
