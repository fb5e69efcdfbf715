# SPDX-License-Identifier: Apache-2.0
"""Every engine of every operation against its meaning in float64.

Kernels run interpreted or emulated here: their programs, not their machines;
of those for Hopper GPUs what they mean (hopper_test).
"""

import functools
import itertools

import jax
import numpy as np
import pytest

from ops import dispatch, registry
from zaya_jax.bench import contract

# Of triton, the second of a kind: as another case in another number.
SECOND = {
  'attention-wide_numbers_come_again',
  'attention-wide_documents',
  'attention-wide_window',
  'cca-wide_groups',
  'cca-wide_row',
  'experts-to_the_ends-300x48-3x64',
  'newton_schulz-2x24x70-float16',
  'newton_schulz-2x33x48-polar_express',
  'newton_schulz-2x33x65',
  'newton_schulz-70x33-True',
}


def _table():
  for name in registry.FUNCTIONS:
    operation = registry.operation(name)
    cases = [case for case in operation.cases if not case.zaya]
    for engine in operation.engines:
      for case, dtype in itertools.product(cases, contract.DTYPES):
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


_programs = {}


def _program(operation, engine, case, kwargs):
  """Compiled once for cases that differ in their numbers alone."""
  value = lambda a: (a.shape, a.tobytes()) if isinstance(a, np.ndarray) else a
  options = tuple((name, value(given)) for name, given in kwargs.items())
  key = operation.name, engine, case.gradients, options
  if key not in _programs:
    _programs[key] = contract.program(operation.run, case, kwargs)
  return _programs[key]


@pytest.mark.parametrize(('operation', 'engine', 'case', 'dtype'), [*_table()])
def test_engine_is_the_reference(operation, engine, case, dtype, request):
  if engine == 'hip':
    request.getfixturevalue('emulated')
  if engine == 'hopper':
    request.getfixturevalue('plain')
  args, kwargs = contract.arguments(case, dtype)
  with dispatch.use(**{operation.name: engine}):
    try:
      run = _program(operation, engine, case, kwargs)
      found = contract.evaluate(run, args)
    except dispatch.UnsupportedError as error:
      # Said, not computed wrong; below is who must compute how much.
      assert f'--ops.{operation.name}={engine} cannot run here: ' in str(error)
      return
  wanted = contract.expected(operation, case, dtype)
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
      args, kwargs = contract.arguments(case, 'bfloat16')
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
