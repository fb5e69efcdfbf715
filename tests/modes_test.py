# SPDX-License-Identifier: Apache-2.0
"""Which modes run in several processes."""

import pytest

from zaya_jax import main

SRUN = {
  'SLURM_JOB_ID': '7',
  'SLURM_STEP_NUM_TASKS': '2',
  'SLURM_STEP_NODELIST': 'node[1-2]',
  'SLURM_PROCID': '1',
}
MPIRUN = {'OMPI_COMM_WORLD_SIZE': '2', 'OMPI_COMM_WORLD_RANK': '0'}
MPIRUN['OMPI_COMM_WORLD_LOCAL_SIZE'] = '2'


@pytest.mark.parametrize('environment', [SRUN, MPIRUN])
@pytest.mark.parametrize(
  'mode', sorted(set(main._MODES) - {'train', 'preflight'})
)
def test_only_training_and_preflight_have_several_processes(
  monkeypatch, capsys, mode, environment
):
  ran = []
  monkeypatch.setattr(main.checks, 'check', lambda config: None)
  monkeypatch.setattr(main, '_run', lambda config: ran.append(config.mode) or 0)
  for name, value in environment.items():
    monkeypatch.setenv(name, value)
  assert main.main(['zaya_jax', f'--mode={mode}']) == 2
  error = capsys.readouterr().err
  assert f'--mode={mode} runs in one process, and this is one of 2' in error
  assert main.main(['zaya_jax', '--mode=train']) == 0
  monkeypatch.setenv('SLURM_STEP_NUM_TASKS', '1')  # A shell of salloc.
  monkeypatch.delenv('OMPI_COMM_WORLD_SIZE', raising=False)
  assert main.main(['zaya_jax', f'--mode={mode}']) == 0
  assert ran == ['train', mode]
