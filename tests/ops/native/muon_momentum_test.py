# SPDX-License-Identifier: Apache-2.0
"""muon_momentum.hip, emulated: what the contract's cases leave out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ops
from ops import dispatch
from tests.support import quick
from tests.support.ops import native_build as build

# A block has 8,192 values: less, exactly, and more than that and than 8.
SIZES = (1, 7, 8, 9, 8191, 8192, 8193, 20000)
MUTANTS = {
  'tail': ('left < 8 ? int(left) : 8', '8'),
  'block of a tensor': ('blocks += mine;', 'blocks += mine - 1;'),
  'tensor of a block': ('>= table.tensors[middle]', '> table.tensors[middle]'),
  'turns': ('turn < kTurns', 'turn < kTurns - 1'),
  'look ahead': ('g[i] + decay * now : now', 'now : now'),
  'refused': ('changes ? now : m[i]', 'now'),
  'not clipped': ('g[i] *= factor;', ''),
}


def momentum_error(
  sizes=SIZES, grad='bfloat16', dtype='bfloat16', apply=None
) -> float:
  """Largest, of both results, over that of one rounding."""
  rng = np.random.default_rng(0)
  # By `jnp.asarray` jax would compile a cast for each shape.
  cast = lambda a, kind: jax.device_put(a.astype(jnp.dtype(kind)))
  draw = lambda kind: [cast(rng.standard_normal(n), kind) for n in sizes]
  momenta, grads, scale = draw('float32'), draw(grad), 0.7
  with dispatch.use(muon_momentum='hip'):
    try:
      found = ops.muon_momentum(
        *(momenta, grads),
        **{'decay': 0.9, 'dtype': dtype, 'scale': scale, 'apply': apply},
      )
      found = [np.asarray(x, np.float64) for x in (*found[0], *found[1])]
    except jax.errors.JaxRuntimeError as fault:
      assert 'zaya_ops: muon_momentum' in str(fault)
      return np.inf
  m, g = ([np.asarray(x, np.float64) for x in xs] for xs in (momenta, grads))
  g = [scale * x for x in g]
  new = [0.9 * a + b for a, b in zip(m, g, strict=True)]
  ahead = [b + 0.9 * a for a, b in zip(new, g, strict=True)]
  new = new if apply is None or apply else m
  error = 0.0
  for got, want in zip(found, (*new, *ahead), strict=True):
    largest = np.abs(want).max(initial=1e-9)
    error = max(error, np.abs(got - want).max(initial=0) / 2**-8 / largest)
  return np.inf if np.isnan(error) else error


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16', 'float32'])
@pytest.mark.parametrize('grad', ['bfloat16', 'float32'])
def test_momentum_in_each_type(emulated, grad, dtype):
  assert momentum_error(grad=grad, dtype=dtype) < 1


@pytest.mark.parametrize('apply', [False, True])
def test_momentum_of_a_step_that_may_be_refused(emulated, apply):
  assert momentum_error(apply=jnp.bool_(apply)) < 1


def test_more_tensors_than_a_launch_takes(emulated):
  assert momentum_error(sizes=(*range(1, 70), 0, 3)) < 1


def test_unsupported_types_have_a_reason(emulated):
  x = [jnp.ones(3, jnp.bfloat16)]
  with (
    dispatch.use(muon_momentum='hip'),
    pytest.raises(dispatch.UnsupportedError, match='are not float32'),
  ):
    ops.muon_momentum(x, x, decay=0.9)


@pytest.mark.parametrize('mutant', quick.only(MUTANTS, 'tail'))
def test_mutant_is_caught(emulated, monkeypatch, mutant):
  patch = ('muon_momentum.hip', *MUTANTS[mutant])
  made = build.build('cpu', patch, kernels=('muon_momentum',))
  monkeypatch.setenv('ZAYA_OPS_LIBRARY', str(made / 'libzaya_ops.so'))
  errors = [momentum_error(apply=apply) for apply in (None, jnp.bool_(False))]
  assert max(errors) > 1
