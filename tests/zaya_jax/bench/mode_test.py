# SPDX-License-Identifier: Apache-2.0
"""--mode=bench from the command line, and what its numbers are."""

import json
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ops import dispatch, registry
from zaya_jax import config as config_lib
from zaya_jax import main
from zaya_jax.bench import peers, runner, timing


@pytest.fixture
def bench(capsys):
  """A function: flags -> exit code, stdout, stderr."""

  def call(*args):
    code = main.main(['zaya_jax', '--mode=bench', *args])
    return code, *capsys.readouterr()

  return call


def test_table_and_json_have_a_row_for_each_engine_and_peer(bench, tmp_path):
  output = tmp_path / 'found.json'
  code, out, _ = bench(
    '--bench.op=newton_schulz',
    '--bench.case=40x24',
    '--bench.repeats=3',
    f'--output={output}',
  )
  assert code == 0
  rows = {row['engine']: row for row in json.loads(output.read_text())['rows']}
  operation = registry.operation('newton_schulz')
  assert set(rows) == {
    *(engine.name for engine in operation.engines),
    'optax.contrib.muon',
  }
  row = rows['xla']
  (case,) = (c for c in operation.cases if c.name == '40x24')
  assert row['low_ms'] <= row['ms'] <= row['high_ms']
  assert row['tflops'] * row['ms'] == pytest.approx(case.flops[0] / 1e9)
  assert row['of_limit'] is None  # Of this CPU nothing is known.
  assert 'xla' in out and 'optax.contrib.muon' in out


def test_what_was_timed_before_a_stop_is_kept(bench, tmp_path, monkeypatch):
  whole, output = runner.rows, tmp_path / 'found.json'

  def stopped(*args):
    yield next(whole(*args))
    raise KeyboardInterrupt

  monkeypatch.setattr(runner, 'rows', stopped)
  flags = ['--bench.op=newton_schulz', '--bench.case=40x24']
  bench(*flags, '--bench.repeats=1', f'--output={output}')
  (row,) = json.loads(output.read_text())['rows']
  assert row['engine'] == registry.operation('newton_schulz').engines[0].name


@pytest.mark.parametrize(
  ('flag', 'words'),
  [
    ('--bench.op=soap', 'newton_schulz'),
    ('--bench.case=7x7', '40x24'),
    ('--output=found.txt', '.json'),
    ('--bench.dtype=float16', 'bfloat16, float32'),
  ],
)
def test_wrong_name_is_one_sentence_with_the_choices(bench, flag, words):
  code, _, err = bench('--bench.op=newton_schulz', flag)
  assert code == 2
  assert flag in err and words in err and len(err.splitlines()) == 1


@pytest.mark.parametrize('name', peers.PEERS)
def test_peer_computes_the_operation(name):
  operation = registry.operation(name)
  case = next(case for case in operation.cases if not case.zaya)
  args, kwargs = case.arguments(np.random.default_rng(0), np.dtype('float32'))
  args = jax.tree.map(jnp.asarray, args)
  wanted = operation.run(*args, **kwargs)
  for run in peers.PEERS[name].values():
    found = run(*args, **kwargs)
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, atol=1e-3), found, wanted
    )


def test_timing_is_the_median_of_batches(monkeypatch):
  taken, batches = iter([0.004, 9.0, 1.0, 3.0]), []

  def seconds(compiled, args, batch):
    batches.append(batch)
    return next(taken)

  monkeypatch.setattr(timing, '_seconds', seconds)
  found, _ = timing.measure(lambda x: x + 1, (np.ones(3),), 3)
  assert found == [1.0, 3.0, 9.0]
  assert batches == [1, 5, 5, 5]


def test_engines_of_the_flags_are_those_of_the_operations():
  kinds = typing.get_type_hints(config_lib.OpsConfig)
  assert set(kinds) == set(registry.FUNCTIONS)
  for name, kind in kinds.items():
    engines = registry.operation(name).engines
    assert typing.get_args(kind) == ('auto', *(e.name for e in engines)), name


def test_named_engine_reaches_the_operations(bench, monkeypatch):
  seen = []
  monkeypatch.setattr(
    'zaya_jax.bench.mode.main', lambda _: seen.append(dict(dispatch._named))
  )
  assert bench('--ops.newton_schulz=xla')[0] == 0
  assert seen[0]['newton_schulz'] == 'xla' and not dispatch._named
