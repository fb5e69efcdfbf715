# SPDX-License-Identifier: Apache-2.0
"""Every engine of every operation against its meaning in float64.

Kernels run interpreted or emulated here: their programs, not their machines;
of those for Hopper GPUs what they mean (hopper_test).
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ops import case as case_lib
from ops import dispatch, registry

DTYPES = ('float32', 'bfloat16')
# Of triton, the second of a kind: as another case in another number.
SECOND = {
  'attention-wide_numbers_come_again',
  'attention-wide_window',
  'cca-wide_row',
  'experts-to_the_ends-300x48-3x64',
  'newton_schulz-2x24x70-float16',
  'newton_schulz-2x33x48-polar_express',
}


def _table():
  for name in registry.FUNCTIONS:
    operation = registry.operation(name)
    cases = [case for case in operation.cases if not case.zaya]
    for engine in operation.engines:
      for case, dtype in itertools.product(cases, DTYPES):
        # Interpreted programs take seconds to compile, by tiles to run. They
        # differ little by type, and small shapes have several tiles.
        more = dtype == 'bfloat16' and case is not cases[0]
        more |= f'{name}-{case.name}' in SECOND or case.flops[0] > 5e8
        slow = engine.name == 'triton' and more
        yield pytest.param(
          operation,
          engine.name,
          case,
          dtype,
          id=f'{name}-{engine.name}-{case.name}-{dtype}',
          marks=[pytest.mark.long] if slow else [],
        )


def program(run, case, kwargs):
  """A function: arguments -> the outputs, then the gradients."""

  @jax.jit
  def both(args):
    run_case = functools.partial(run, **kwargs)
    out, vjp = case_lib.vjp(run_case, case.gradients, args)
    rng = np.random.default_rng(1)
    cotangent = jax.tree.map(
      lambda a: jnp.asarray(rng.standard_normal(a.shape), a.dtype), out
    )
    return out, vjp(cotangent) if case.gradients else ()

  return both


def evaluate(program, args):
  """NumPy float64."""
  found = jax.tree.leaves(program(args))
  return [np.asarray(leaf, np.float64) for leaf in found]


def arguments(case, dtype):
  """NumPy's: jax would compile for each shape how to take it over."""
  return case.arguments(np.random.default_rng(0), jnp.dtype(dtype))


@functools.cache
def expected(operation, case, dtype):
  """In float64, of the same rounded inputs."""
  args, _ = arguments(case, dtype)
  with jax.enable_x64(True):
    return evaluate(_in_float64(operation, case), jax.tree.map(_double, args))


@functools.cache
def _in_float64(operation, case):
  """Compiled once for inputs that were rounded to any type."""
  _, kwargs = arguments(case, DTYPES[0])
  if 'dtype' in kwargs:
    kwargs = {**kwargs, 'dtype': jnp.dtype('float64')}
  return program(operation.reference, case, kwargs)


def _double(x):
  x = np.asarray(x)
  return x.astype('float64') if jnp.issubdtype(x.dtype, jnp.floating) else x


@pytest.mark.parametrize(('operation', 'engine', 'case', 'dtype'), [*_table()])
def test_engine_is_the_reference(operation, engine, case, dtype, request):
  if engine == 'hip':
    request.getfixturevalue('emulated')
  if engine == 'hopper':
    request.getfixturevalue('plain')
  args, kwargs = arguments(case, dtype)
  with dispatch.use(**{operation.name: engine}):
    try:
      found = evaluate(program(operation.run, case, kwargs), args)
    except dispatch.UnsupportedError as error:
      # Said, not computed wrong; below is who must compute how much.
      assert f'--ops.{operation.name}={engine} cannot run here: ' in str(error)
      return
  wanted = expected(operation, case, dtype)
  for got, want in zip(found, wanted, strict=True):
    assert got.shape == want.shape
    bound = case.tolerance[dtype] * max(np.abs(want).max(initial=0), 1e-30)
    np.testing.assert_allclose(got, want, rtol=0, atol=bound)


@pytest.mark.parametrize('name', registry.FUNCTIONS)
def test_every_engine_takes_most_cases(name, emulated, plain):
  """Or the test above would skip it in silence."""
  operation = registry.operation(name)
  for engine in operation.engines:
    taken = 0
    for case in (c for c in operation.cases if not c.zaya):
      args, kwargs = arguments(case, 'bfloat16')
      with dispatch.use(**{name: engine.name}):
        run = functools.partial(operation.run, **kwargs)
        try:
          jax.eval_shape(run, *args)
          taken += 1
        except dispatch.UnsupportedError:
          pass
    # cuDNN takes none on a CPU.
    least = 0 if engine.name == 'cudnn' else 3
    assert taken >= least, engine.name
