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


def _rows(*seconds, shapes='bfloat16[8,16]'):
  names = ('triton', 'xla', 'hip')
  return [
    dispatch.Row('op', name, shapes, s)
    for name, s in zip(names, seconds, strict=False)
  ]


@pytest.mark.parametrize(
  'rows, shape, engine',
  [
    (_rows(2e-3, 1e-3), (8, 16), 'xla'),
    (_rows(1e-3, 2e-3), (8, 16), 'triton'),
    # As many rows as within a factor of four; not another width or type.
    (_rows(2e-3, 1e-3), (32, 16), 'xla'),
    (_rows(2e-3, 1e-3), (33, 16), 'triton'),
    (_rows(2e-3, 1e-3), (8, 32), 'triton'),
    (_rows(2e-3, 1e-3, shapes='float32[8,16]'), (8, 16), 'triton'),
    # The nearer of two.
    (
      [*_rows(2e-3, 1e-3, shapes='bfloat16[2,16]'), *_rows(1e-3, 2e-3)],
      (8, 16),
      'triton',
    ),
    # What was timed on this machine may run on it.
    (_rows(2e-3, 3e-3, 1e-3), (8, 16), 'hip'),
  ],
)
def test_what_was_measured_fastest_on_such_inputs_is_taken(rows, shape, engine):
  x = jnp.zeros(shape, jnp.bfloat16)
  with dispatch.compile_for('cuda'):
    with dispatch.measured(rows):
      assert dispatch.select('op', ENGINES, x)(x) == engine
      with dispatch.use(op='triton'):  # A flag wins.
        assert dispatch.select('op', ENGINES, x)(x) == 'triton'
    assert dispatch.select('op', ENGINES, x)(x) == 'triton'


def test_what_cannot_run_is_not_taken_however_fast_it_was():
  x = jnp.zeros((8, 16), jnp.bfloat16)
  cannot = dispatch.Engine('triton', lambda x: 'triton', lambda x: 'too wide')
  with dispatch.measured(_rows(1e-3, 2e-3)):
    run = dispatch.select('op', (cannot, ENGINES[-1]), x)
  assert run(x) == 'xla'


def test_measured_times_are_told(monkeypatch):
  monkeypatch.setattr(dispatch, '_choices', {})
  x = jnp.zeros((8, 16), jnp.bfloat16)
  with dispatch.compile_for('cuda'), dispatch.measured(_rows(2e-3, 1e-3)):
    dispatch.select('op', ENGINES, x)
    assert 'op: xla, not triton: measured 2.00 times as long' in (
      '\n'.join(dispatch.notes())
    )
  assert dispatch.seen('op') == 'bfloat16[8,16]'
