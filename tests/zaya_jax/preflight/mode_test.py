# SPDX-License-Identifier: Apache-2.0
"""--mode=preflight from the command line: exit codes, table and JSON."""

import json
import subprocess
import sys

import pytest

from tests.support import nodes
from zaya_jax import main
from zaya_jax.aegis.supervisor import hooks
from zaya_jax.preflight import examine


@pytest.fixture
def call(capsys):
  """A function: flags -> exit code, stdout, stderr."""

  def run(*words):
    code = main.main(['zaya_jax', '--mode=preflight', *words])
    return code, *capsys.readouterr()

  return run


def test_this_machine_is_fit_and_what_was_not_checked_is_said(tmp_path):
  output = tmp_path / 'found.json'
  words = f'--run_dir={tmp_path}', f'--output={output}'
  program = 'import sys; from zaya_jax import main; '
  program += 'code = main.main(sys.argv); assert "jax" not in sys.modules; '
  done = subprocess.run(
    [
      sys.executable,
      '-c',
      f'{program}sys.exit(code)',
      '--mode=preflight',
      *words,
    ],
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  found = json.loads(output.read_text())
  outcomes = {c['name']: c['outcome'] for c in found['checks']}
  assert found['fit'] and outcomes['jax_versions'] == 'fit'
  assert outcomes['devices'] == outcomes['run_memory'] == 'not checked'
  assert '--preflight.machine= names no file' in done.stdout
  assert ' is fit: ' in done.stdout.splitlines()[-1]


def test_unfit_node_ends_with_3_and_its_last_line_says_why(
  call, tmp_path, monkeypatch
):
  node = nodes.h100()
  clocks = nodes.answer('1980', gpu6='1200')
  node.programs[nodes.query('clocks.max.sm')] = clocks
  monkeypatch.setattr(examine.node_lib, 'Node', lambda machine: node)
  output = tmp_path / 'found.json'
  code, out, _ = call('--preflight.devices=8', f'--output={output}')
  assert code == 3
  last = out.strip().splitlines()[-1]
  assert 'is not fit: gpu_clock GPU 6: 1200 MHz' in last and len(last) < 200
  assert 'nvidia-smi --reset-gpu-clocks' in out
  found = json.loads(output.read_text())
  assert not found['fit']
  [fault] = [c for c in found['checks'] if c['outcome'] == 'fault']
  assert fault['name'] == 'gpu_clock' and fault['found'] == 'GPU 6: 1200 MHz'


def test_supervisor_is_told_why_a_node_must_not_join():
  program = f'{sys.executable} -m zaya_jax.main --mode=preflight'
  assert hooks.run(program, node='n', reason='') == ''
  # No machine has so many.
  said = hooks.run(f'{program} --preflight.devices=4096', node='n', reason='')
  assert ' ended with 3: ' in said and 'is not fit: devices ' in said


@pytest.mark.parametrize(
  'words, sentence',
  [
    ('--preflight.devices=-1', '--preflight.devices=-1'),
    ('--preflight.machine=none.json', 'does not exist; name a .json file'),
    ('--output=found.txt', 'must end in .json'),
    ('--preflight.nics=8', 'is not a flag'),
  ],
)
def test_wrong_flag_is_refused(call, words, sentence):
  code, out, error = call(words)
  assert code == 2 and sentence in error and not out


def test_damaged_machine_file_is_refused(call, tmp_path):
  path = tmp_path / 'machine.json'
  path.write_text('{}')
  code, out, error = call(f'--preflight.machine={path}')
  assert code == 3 and 'is no machine file' in error and not out
