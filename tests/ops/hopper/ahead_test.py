# SPDX-License-Identifier: Apache-2.0
"""Kernels are compiled while others are lowered: when, and how often each.

What is compiled needs a GPU; that it is what JAX lowers, does not.
"""

import threading

import jax
import pytest
from jax.experimental.mosaic import gpu as mosaic

from ops.hopper import ahead, warp_groups


@pytest.fixture
def known(monkeypatch):
  """The kernels that JAX has lowered, by their hashes, on a Hopper GPU."""
  kernels = {}
  monkeypatch.setattr(mosaic.core, 'KNOWN_KERNELS', kernels)
  monkeypatch.setattr(warp_groups, 'unavailable', lambda: None)
  monkeypatch.setattr(ahead, '_LOOK_S', 0.001)
  return kernels


@pytest.fixture
def compiled(monkeypatch):
  """What was compiled, and an event that is set by each."""
  found, event = [], threading.Event()

  def compile_one(name, module):
    found.append((name, module))
    event.set()

  monkeypatch.setattr(ahead, '_compile', compile_one)
  return found, event


def test_each_kernel_is_compiled_once_as_it_appears(known, compiled):
  found, event = compiled
  with ahead.compiling():
    for i in (b'1', b'2'):
      known[i] = b'module'
      assert event.wait(10)
      event.clear()
    assert found == [(b'1', b'module'), (b'2', b'module')]
  assert not [t for t in threading.enumerate() if t.name == 'kernels']
  known[b'3'] = b'module'
  assert len(found) == 2


def test_elsewhere_nothing_is_started(compiled, monkeypatch):
  monkeypatch.setattr(mosaic.core, 'KNOWN_KERNELS', {b'1': b'module'})
  with ahead.compiling():
    assert not [t for t in threading.enumerate() if t.name == 'kernels']
  assert compiled[0] == []


def test_without_jax_s_table_nothing_is_started(known, compiled, monkeypatch):
  known[b'1'] = b'module'
  monkeypatch.delattr(mosaic.core, 'KNOWN_KERNELS')
  with ahead.compiling():
    pass
  assert compiled[0] == []


def test_a_kernel_that_does_not_compile_is_left_to_the_program(
  known, monkeypatch
):
  tried = []

  def fail(name, module):
    tried.append(name)
    raise jax.errors.JaxRuntimeError('no')

  monkeypatch.setattr(ahead, '_compile', fail)
  known |= {b'1': b'', b'2': b''}
  with ahead.compiling():
    while not tried:
      pass
  assert tried == [b'1']


def test_the_program_of_a_kernel_has_what_jax_gives_it():
  lowered = (
    jax.jit(ahead.program(b'\x01name', b'\xffmodule'))
    .trace()
    .lower(lowering_platforms=('cuda',))
    .as_text()
  )
  assert 'custom_call @mosaic_gpu_v2' in lowered
  assert r'kernel_hash = "\01name"' in lowered
  assert r'module = "\FFmodule"' in lowered
  again = jax.jit(ahead.program(b'\x01name', b'\xffmodule')).trace()
  text = again.lower(lowering_platforms=('cuda',)).as_text()
  assert text != lowered  # Or JAX's cache would answer.
