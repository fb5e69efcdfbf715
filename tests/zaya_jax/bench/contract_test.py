# SPDX-License-Identifier: Apache-2.0
"""Comparisons with the meaning: what is wrong, fails or is left out is said."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ops import case, dispatch, registry
from zaya_jax import main
from zaya_jax.bench import contract
from zaya_jax.bench.sweep import clock

NAME = 'router'  # Any name of an operation will do for `dispatch.use`.


def _fail(x):
  raise RuntimeError('no such instruction\nand more')


def _no(x):
  return 'it takes no vectors' if x.ndim == 1 else None


def operation(**changes):
  """Squares, by engines of which most are bad."""
  square = lambda x: x * x
  engines = (
    dispatch.Engine('bad', lambda x: x * x + 0.3),
    dispatch.Engine('nan', lambda x: x * jnp.nan),
    dispatch.Engine('crash', _fail),
    dispatch.Engine('shy', square, _no),
    dispatch.Engine('elsewhere', square, platforms=('rocm',)),
    dispatch.Engine('good', square),
  )
  inputs = lambda rng, dtype: ((rng.standard_normal(5).astype(dtype),), {})
  known = dict(
    name=NAME,
    run=lambda x: dispatch.select(NAME, engines, x)(x),
    reference=square,
    engines=engines,
    cases=(case.Case(name='five', arguments=inputs, gradients=(0,)),),
  )
  return registry.Operation(**(known | changes))


def outcomes(rows):
  return {(row['engine'], row['dtype']): row['outcome'] for row in rows}


def test_each_engine_has_its_outcome():
  rows = list(contract.rows(operation(), clock.Budget(1000)))
  found = outcomes(rows)
  for dtype in contract.DTYPES:
    assert found['good', dtype] == 'right'
    assert found['bad', dtype] == found['nan', dtype] == 'wrong'
    assert found['crash', dtype] == 'failed'
    assert found['shy', dtype] == 'left out'
  # On a CPU it would only be emulated.
  assert not any(engine == 'elsewhere' for engine, _ in found)
  said = {row['engine']: row['said'] for row in rows}
  assert said['crash'] == 'RuntimeError: no such instruction'
  assert 'it takes no vectors' in said['shy'] and 'is allowed' in said['bad']
  assert all(row['default'] for row in rows)


def test_wrong_gradient_alone_is_seen():
  import jax

  @jax.custom_vjp
  def square(x):
    return x * x

  square.defvjp(lambda x: (x * x, x), lambda x, g: (3 * x * g,))
  engines = (dispatch.Engine('good', square),)
  broken = operation(engines=engines, run=square)
  assert set(outcomes(contract.rows(broken, clock.Budget(99))).values()) == {
    'wrong'
  }


def zaya(**changes):
  """The operation, on inputs of ZAYA1-8B; its last engine is the reference."""
  known = operation()
  case = dataclasses.replace(known.cases[0], zaya=True, gradients=())
  named = {'reference': _fail, **changes}
  return dataclasses.replace(known, cases=(case,), **named)


def test_large_inputs_are_compared_with_the_last_engine():
  large = zaya(reference=lambda x: x)
  budget = clock.Budget(1000)
  found = outcomes(contract.rows(large, budget, ('five',)))
  assert found['good', 'bfloat16'] == 'right'
  assert found['bad', 'bfloat16'] == 'wrong'


def test_choices_of_many_tokens_are_not_compared():
  chooses = zaya(reference=lambda x: jnp.argmax(x))
  found = outcomes(contract.rows(chooses, clock.Budget(1000), ('five',)))
  assert set(found.values()) == {'left out'}


def test_reference_that_does_not_run_is_no_fault_of_an_engine():
  known = operation(reference=_fail)
  rows = list(contract.rows(known, clock.Budget(1000)))
  assert {row['outcome'] for row in rows} == {'left out'}
  assert 'the reference does not run: RuntimeError' in rows[0]['said']


def test_named_engine_is_compared_alone():
  with dispatch.use(**{NAME: 'elsewhere'}):
    found = outcomes(contract.rows(operation(), clock.Budget(1000)))
  assert {engine for engine, _ in found} == {'elsewhere'}


def test_what_there_was_no_time_for_is_said():
  rows = list(contract.rows(operation(), clock.Budget(-1)))
  assert rows[0]['dtype'] == 'bfloat16'  # The first is compared all the same.
  assert rows[-1]['outcome'] == 'no time'
  assert rows[-1]['said'] == 'for 1 inputs'


def test_what_was_compared_before_is_left_out():
  all_rows = list(contract.rows(operation(), clock.Budget(1000)))
  known = [row for row in all_rows if row['engine'] == 'good']
  known += [row for row in all_rows if row['dtype'] == 'bfloat16']
  rows = list(contract.rows(operation(), clock.Budget(1000), known=known))
  assert rows == [row for row in all_rows if row not in known] and rows


@pytest.mark.parametrize(
  'found, error',
  [([1.0, -4.0], 0.0), ([1.1, -4.0], 0.25), ([1.0, np.nan], np.inf)],
)
def test_error_is_a_share_of_what_is_allowed(found, error):
  wanted = [np.array([1.0, -4.0])]
  np.testing.assert_allclose(
    contract.error([np.array(found)], wanted, 0.1), error
  )


def test_other_shape_is_an_error():
  with pytest.raises(ValueError, match='shape'):
    contract.error([np.zeros(3)], [np.zeros(4)], 0.1)


def check(tmp_path, capsys, *words):
  output = tmp_path / 'found.json'
  flags = ('--mode=bench', '--bench.check', '--bench.op=muon_momentum')
  code = main.main(['zaya_jax', *flags, f'--output={output}', *words])
  lines = capsys.readouterr().out.splitlines()
  return (
    code,
    [json.loads(line) for line in lines],
    json.loads(output.read_text()),
  )


def test_command_line_prints_a_line_each_and_ends_with_0(tmp_path, capsys):
  code, lines, whole = check(tmp_path, capsys)
  assert code == 0 and whole['rows'] == lines and whole['platform'] == 'cpu'
  assert {line['outcome'] for line in lines} == {'right'}


def test_command_goes_on_with_what_had_no_time(tmp_path, capsys, monkeypatch):
  compared = []
  rows = contract.rows

  def counted(*args):
    for row in rows(*args):
      compared.append((row['engine'], row['case'], row['dtype']))
      yield row

  monkeypatch.setattr(contract, 'rows', counted)
  _, lines, _ = check(tmp_path, capsys, '--bench.minutes=0.01')
  late = lines[-1]['outcome'] == 'no time'
  first = set(compared[: -1 if late else None])
  # As if only one comparison had been made.
  content = json.loads((tmp_path / 'found.json').read_text())
  content['rows'] = [lines[0], contract.unfinished(operation(), '')]
  content['rows'][1]['op'] = lines[0]['op']
  (tmp_path / 'found.json').write_text(json.dumps(content))
  compared.clear()
  code, lines, whole = check(tmp_path, capsys)
  assert code == 0 and whole['rows'] == lines
  mine = tuple(lines[0][k] for k in ('engine', 'case', 'dtype'))
  assert mine not in compared and first - {mine} <= set(compared)
  # All is there now: a kernel that was mended meanwhile is compared anew.
  count = len(compared) + 1
  compared.clear()
  check(tmp_path, capsys)
  assert len(compared) == count
  compared.clear()
  check(tmp_path, capsys, '--noresume')
  assert len(compared) == count


def test_ended_command_leaves_what_it_compared(tmp_path, capsys, monkeypatch):
  rows = contract.rows

  def broken(*args):
    yield next(rows(*args))
    raise KeyboardInterrupt

  monkeypatch.setattr(contract, 'rows', broken)
  assert check(tmp_path, capsys)[0] != 0
  kept = json.loads((tmp_path / 'found.json').read_text())['rows']
  assert [row['outcome'] for row in kept] == ['right', 'no time']


def test_wrong_engine_ends_the_command_with_3(tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(contract, 'error', lambda *_: 2.0)
  code, lines, _ = check(tmp_path, capsys)
  assert code == 3 and {line['outcome'] for line in lines} == {'wrong'}


def test_measurement_of_the_machine_is_not_compared(capsys):
  words = '--mode=bench', '--bench.check', '--bench.op=gemm'
  assert main.main(['zaya_jax', *words]) == 2
  assert '--bench.op=gemm is a measurement' in capsys.readouterr().err


def test_gradients_from_behind_are_no_constants():
  """XLA folds these at compile time, for seconds each."""
  x = np.ones((64, 64), np.float32)
  both, args = case.with_gradients(lambda x: x * x, (0,), (x,))
  assert 'dense<' not in jax.jit(both).lower(*args).as_text()
  constant = lambda x: both(args[0], x)
  assert 'dense<' in jax.jit(constant).lower(x).as_text()
