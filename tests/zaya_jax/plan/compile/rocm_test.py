# SPDX-License-Identifier: Apache-2.0
"""The compiler of ROCm beside the formulas, and what goes wrong without it."""

import json
import subprocess
import sys

import pytest

from tests.support import released
from zaya_jax import config
from zaya_jax.plan import planner
from zaya_jax.plan.compile import contracts, rocm
from zaya_jax.plan.cost import auto

COMPILED = {
  'seconds': 1.0,
  'arguments': 60,
  'temporary': 50,
  'collectives': {
    'all-gather': {'calls': 2, 'bytes': 8},
    'all-to-all': {'calls': 1, 'bytes': 2},
    'ragged-all-to-all': {'calls': 1, 'bytes': 3},
  },
  'exposed': {'all-gather': 4},
  'kernels': {},
}


def _home(tmp_path, script):
  """An environment whose Python is a shell script."""
  python = tmp_path / 'bin' / 'python'
  python.parent.mkdir()
  python.write_text(f'#!/bin/sh\ncat > {tmp_path}/flags\n{script}\n')
  python.chmod(0o755)
  return tmp_path


def test_child_gets_every_flag_and_its_answer_is_returned(tmp_path):
  warn = f'echo "[SPMD] {contracts.WARNING}. {contracts.WARNING}" >&2'
  settings = released.parse('--plan.devices=8', '--seed=7')
  home = _home(tmp_path, f"{warn}; echo '{json.dumps(COMPILED)}'")
  assert rocm.compile_step(settings, home) == {**COMPILED, 'rematerialized': 2}
  assert config.Config.from_flagfile(str(tmp_path / 'flags')) == (
    auto.of_plan(settings)
  )


def test_compiler_of_the_working_directory_serves(tmp_path, monkeypatch):
  home = tmp_path / '.venv-rocm'
  home.mkdir()
  _home(home, f"echo $XLA_FLAGS > {home}/xla; echo '{json.dumps(COMPILED)}'")
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(rocm, 'ROOT', tmp_path / 'site-packages')
  assert rocm.compile_step(released.parse())['seconds'] == 1.0
  assert '--xla_gpu_enable_triton_gemm=false' in (home / 'xla').read_text()


def test_child_has_the_libraries_of_its_environment(tmp_path):
  """Another jax beside this package, as in site-packages, is passed over."""
  for folder in ('theirs', 'ours'):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / 'jax.py').write_text(f'folder = {folder!r}\n')
  package = tmp_path / 'ours' / 'zaya_jax' / 'plan' / 'compile'
  package.mkdir(parents=True)
  (package / 'rocm_child.py').write_text('import jax; print(jax.folder)\n')
  done = subprocess.run(
    [sys.executable, '-S', '-c', rocm._CHILD, tmp_path / 'ours'],
    env={'PYTHONPATH': str(tmp_path / 'theirs')},
    cwd=tmp_path,
    capture_output=True,
    text=True,
    check=True,
  )
  assert done.stdout == 'theirs\n'


@pytest.mark.parametrize(
  'code, error', [(2, config.UsageError), (1, rocm.CompileError)]
)
def test_failure_of_the_child_is_its_last_line(tmp_path, code, error):
  home = _home(tmp_path, f'echo much >&2; echo reason >&2; exit {code}')
  with pytest.raises(error, match='reason') as caught:
    rocm.compile_step(released.parse(), home)
  assert 'much' not in str(caught.value)


def test_compiler_that_takes_too_long_is_told(tmp_path, monkeypatch):
  monkeypatch.setattr(rocm, '_TIMEOUT_S', 0.2)
  home = _home(tmp_path, 'exec sleep 60')
  with pytest.raises(rocm.CompileError, match='did not end within'):
    rocm.compile_step(released.parse(), home)


@pytest.mark.parametrize(
  'words, sentence',
  [
    ([], 'run make rocm-venv once in a clone'),
    (['--plan.chip=h200'], 'choose one of'),
  ],
)
def test_no_compiler_is_told(tmp_path, words, sentence):
  with pytest.raises(config.UsageError, match=sentence):
    rocm.compile_step(released.parse(*words), tmp_path)


def test_formulas_stand_beside_the_compiler():
  plan = {
    'memory': {'parameters': 40, 'optimizer': 20, 'total': 100},
    'collectives': [
      {'kind': 'all-gather', 'bytes': 4},
      {'kind': 'all-gather', 'bytes': 3},
      {'kind': 'permute', 'bytes': 1},
    ],
  }
  assert rocm.compare(plan, COMPILED) == {
    'memory kept': [60, 60],
    'memory in passing': [40, 50],
    'memory together': [100, 110],
    'all-gather': [7, 8],
    'all-to-all': [0, 5],
    'collective-permute': [1, 0],
  }


@pytest.mark.long
@pytest.mark.skipif(
  not (rocm.ROOT / '.venv-rocm' / '.compiler').exists(),
  reason='make rocm-venv',
)
def test_formulas_are_those_of_the_compiler():
  flagfile = rocm.ROOT / 'configs' / 'quickstart.flags'
  settings = config.Config.parse(
    [
      f'--flagfile={flagfile}',
      '--plan.devices=8',
      # Of three, the cast experts are not there when most of the rest is.
      '--model.num_layers=12',
      # Without decay XLA gathers the directions of small matrices in bfloat16.
      '--optim.weight_decay=0.1',
      # Our kernels need less memory than the formulas say for so small a step.
      '--ops.experts=xla',
      '--ops.newton_schulz=xla',
      '--ops.residual_rms_norm=xla',
    ]
  )
  plan = planner.make(settings)
  found = rocm.compare(plan, rocm.compile_step(settings))
  for name, within in (
    ('memory kept', 0.005),
    ('memory together', 0.05),
    # XLA casts some matrices of attention before it gathers them.
    ('all-gather', 0.1),
  ):
    formula, real = found[name]
    assert real == pytest.approx(formula, rel=within), name


@pytest.mark.long  # The compiler of ROCm takes half a minute and more.
@pytest.mark.skipif(
  not (rocm.ROOT / 'ops' / 'native' / 'build' / 'rocm').exists(),
  reason='make rocm-kernels',
)
def test_step_calls_the_kernels_without_being_told():
  flagfile = rocm.ROOT / 'configs' / 'quickstart.flags'
  settings = config.Config.parse([f'--flagfile={flagfile}', '--plan.devices=8'])
  kernels = rocm.compile_step(settings)['kernels']
  ours = {name for name in kernels if name.startswith('zaya_ops')}
  assert ours >= {'zaya_ops symmetric_matmul', 'zaya_ops muon_momentum'}
