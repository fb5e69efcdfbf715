# SPDX-License-Identifier: Apache-2.0
"""Which library is taken, and the sentences about those that are not."""

import jax
import jax.numpy as jnp
import pytest

import ops
from ops import dispatch, native, registry
from tests.support.ops import native_build as build


@pytest.fixture
def library(monkeypatch):
  """Compiles library.hip alone, with a change, and takes it."""
  if reason := build.missing('c++'):
    pytest.skip(reason)

  def take(old='', new=''):
    patches = [('library.hip', old, new)] if old else []
    made = build.build('cpu', *patches, kernels=('library',))
    monkeypatch.setenv('ZAYA_OPS_LIBRARY', str(made / 'libzaya_ops.so'))

  return take


def test_library_that_fits(emulated):
  assert emulated.unavailable('symmetric_matmul') is None


def test_no_library(monkeypatch, tmp_path):
  monkeypatch.setenv('ZAYA_OPS_LIBRARY', str(tmp_path / 'none.so'))
  reason = native.unavailable('symmetric_matmul')
  assert f'no {tmp_path}/none.so; build it: make -C ' in reason
  assert reason.endswith('ops/native cpu')


def test_no_library_at_all(tmp_path):
  path = tmp_path / 'other.so'
  path.write_text('text')
  assert 'is no library of zaya_ops' in native._Library(
    path, 'cpu'
  ).unavailable('x')


def test_no_such_kernel(library):
  library()
  assert 'has no such kernel; build it: make' in native.unavailable('none')


@pytest.mark.parametrize(
  ('old', 'new', 'sentence'),
  [
    ('"3 " ', '"0 " ', 'is built for interface 0, this is interface 3'),
    (
      'ZAYA_STRING(ZAYA_JAX)',
      '"0.4.1"',
      'is built for jax 0.4.1, this is jax ',
    ),
    ('ZAYA_STRING(ZAYA_TARGET)', '"cuda"', 'is built for cuda, this is cpu'),
  ],
)
def test_library_for_another(library, old, new, sentence):
  library(old, new)
  reason = native.unavailable('symmetric_matmul')
  assert sentence in reason and 'build it: make -C' in reason


def test_library_for_another_chip(library, monkeypatch):
  library(
    'ZAYA_STRING(ZAYA_TARGET) " "  //\n      ZAYA_STRING(ZAYA_ARCH)',
    '"rocm gfx90a"',
  )
  monkeypatch.setattr(native, '_arch', lambda platform: 'gfx942')
  with dispatch.compile_for('rocm'):
    reason = native.unavailable('symmetric_matmul')
  assert 'is built for gfx90a, this is gfx942; build it: make -C' in reason
  assert reason.endswith(' rocm')


def test_named_engine_says_how_to_build_it(monkeypatch, tmp_path):
  monkeypatch.setenv('ZAYA_OPS_LIBRARY', str(tmp_path / 'none.so'))
  x = jnp.zeros((8, 8), jnp.bfloat16)
  with (
    dispatch.use(newton_schulz='hip'),
    pytest.raises(dispatch.UnsupportedError, match='build it: make -C .* cpu;'),
  ):
    ops.newton_schulz(x)


def test_engine_runs_jitted_and_sharded(emulated):
  """On several devices at once: the emulation takes one launch at a time."""
  x = jax.random.normal(jax.random.key(0), (8, 16, 24), jnp.bfloat16)
  mesh = jax.make_mesh((8,), ('x',), (jax.sharding.AxisType.Auto,))
  spec = jax.sharding.PartitionSpec('x')
  run = jax.jit(
    jax.shard_map(
      ops.newton_schulz,
      mesh=mesh,
      in_specs=spec,
      out_specs=spec,
      check_vma=False,
    )
  )
  with dispatch.use(newton_schulz='hip'):
    found = run(x)
    assert jnp.array_equal(found, jax.jit(ops.newton_schulz)(x))


def test_rocm_takes_hip_unnamed(monkeypatch):
  """Where the library is; the program is lowered, not run."""
  monkeypatch.setattr(native, 'unavailable', lambda kernel: None)
  with dispatch.compile_for('rocm'):
    x = jax.ShapeDtypeStruct((8, 8), jnp.bfloat16)
    engines = registry.operation('newton_schulz').engines
    run = dispatch.select('newton_schulz', engines, x, dtype=x.dtype)
  assert run is engines[0].run and engines[0].name == 'hip'


def test_library_is_told_apart_by_its_bytes(monkeypatch, tmp_path):
  path = tmp_path / 'other.so'
  monkeypatch.setenv('ZAYA_OPS_LIBRARY', str(path))
  assert native.fingerprint() == ''
  path.write_text('text')
  was = native.fingerprint()
  assert str(path) in was
  path.write_text('texT')
  assert native.fingerprint() != was


def test_kernels_of_another_process_are_registered(monkeypatch):
  taken = []
  made = type('Library', (), {'registered': {'b', 'a'}, 'target': taken.append})
  monkeypatch.setattr(native, '_load', lambda *_: made)
  assert native.called() == ['a', 'b']
  native.register(['a'])
  assert taken == ['a']
