# SPDX-License-Identifier: Apache-2.0
"""The emulation of HIP: what it computes, and the faults that it finds."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ops import native
from tests.support.ops import native_build as build

FAULTS = {  # In the order of probe.hip.
  'none': '',
  'no barrier': '',  # No message, but NaN.
  'some at the barrier': 'barrier at line .*: 125 of 128 threads',
  'two barriers': 'barrier at line .*: other threads wait at another line',
  'end of shared memory': 'shared memory is written past its end',
  'end of the result': 'memory is written outside of the results',
  'argument': 'memory is written outside of the results',
  'wave': 'wave instruction at line .*: 63 of 64 threads',
}


@pytest.fixture(autouse=True)
def probe(monkeypatch):
  if reason := build.missing('c++'):
    pytest.skip(reason)
  source = pathlib.Path(__file__).with_name('probe.hip')
  made = build.build('cpu', kernels=('probe',), more=(source,))
  monkeypatch.setenv('ZAYA_OPS_LIBRARY', str(made / 'libzaya_ops.so'))


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
@pytest.mark.parametrize('size, depth', [(32, 8), (16, 16)])
def test_matrix_instruction(size, depth, dtype):
  rng = np.random.default_rng(0)
  a = jnp.asarray(rng.standard_normal((size, depth)), dtype)
  b = jnp.asarray(rng.standard_normal((depth, size)), dtype)
  found = native.call(
    'product', jax.ShapeDtypeStruct((size, size), jnp.float32), a, b
  )
  wanted = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
  np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_wave():
  x = np.random.default_rng(0).standard_normal(64).astype(np.float32)
  found = native.call('waves', jax.ShapeDtypeStruct((3, 64), x.dtype), x)
  total, largest, before = np.asarray(found)
  np.testing.assert_allclose(total, x.sum(), atol=1e-5)
  assert (largest == x.max()).all()
  np.testing.assert_array_equal(before, [x[0], *x[:-1]])


@pytest.mark.parametrize('fault', FAULTS)
def test_fault_is_found(fault):
  x = np.arange(128, dtype=np.float32)
  number = np.int32(list(FAULTS).index(fault))

  def run():
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return np.asarray(native.call('exchange', out, x, fault=number))

  if FAULTS[fault]:
    with pytest.raises(jax.errors.JaxRuntimeError, match=FAULTS[fault]):
      run()
  else:
    same = np.array_equal(run(), np.roll(x, -64))
    assert same == (fault == 'none')
