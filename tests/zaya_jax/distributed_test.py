# SPDX-License-Identifier: Apache-2.0
"""Two processes of two devices each, really started, beside one of four."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests import fake_srun
from zaya_jax import config as config_lib
from zaya_jax import launcher, main

ROOT = pathlib.Path(__file__).parents[2]
STEPS = 12
SETTINGS = f"""
--num_steps={STEPS}
--model.num_layers=1
--model.d_model=16
--model.num_heads=2
--model.num_kv_heads=1
--model.head_dim=8
--model.num_experts=2
--model.d_expert=16
--model.d_router=8
--data.seq_len=32
--data.batch_size=8
--data.record_tokens=1024
--checkpoint.every=6
--log.every=1
--eval.batches=1
--generate.max_tokens=1
--prompt=1
--nolog.tensorboard
""".split()


def job(out, run_dir, *args, tasks=2, **environment):
  """Starts `tasks` processes through the fake srun."""
  out.mkdir(exist_ok=True)
  flags = '--xla_force_host_platform_device_count=2'
  environment |= {
    'FAKE_TASKS': str(tasks),
    'FAKE_OUT': str(out),
    'SLURM_JOB_ID': str(random.randrange(10**6)),
    'XLA_FLAGS': f'{flags} --xla_backend_optimization_level=0',
  }
  program = [sys.executable, '-m', 'zaya_jax.main', *SETTINGS]
  return subprocess.Popen(
    [
      sys.executable,
      fake_srun.__file__,
      *program,
      f'--data.input={__file__}',
      f'--run_dir={run_dir}',
      '--distributed.heartbeat_timeout_s=10',
      *args,
    ],
    cwd=ROOT,
    env={**os.environ, **environment},
  )


def wait_for(path, words, process):
  """Waits until a file has the words."""
  until = time.monotonic() + 200
  while not (path.exists() and words in path.read_text()):
    assert process.poll() is None, path.read_text()
    assert time.monotonic() < until
    time.sleep(0.05)


def losses(run_dir):
  lines = (run_dir / 'metrics.jsonl').read_text().splitlines()
  rows = [row for row in map(json.loads, lines) if 'train/loss' in row]
  assert [row['step'] for row in rows] == list(range(1, STEPS + 1))
  return [row['train/loss'] for row in rows]


def test_two_processes_stop_together_and_go_on_as_one(tmp_path):
  run_dir, out = tmp_path / 'two', tmp_path / 'out'
  first = job(out, run_dir)
  wait_for(out / '0', f'step   1/{STEPS}', first)
  os.kill(int((out / '1.pid').read_text()), signal.SIGTERM)
  assert first.wait(100) == 75
  newest = max(int(p.name) for p in (run_dir / 'checkpoints').iterdir())
  assert newest < STEPS
  for log in ('log.txt', 'logs/process_00001.log'):
    text = (run_dir / log).read_text()
    assert f'SIGTERM: stopped after step {newest}' in text
  assert 'step' not in (out / '1').read_text()  # The terminal is process 0's.
  assert job(out, run_dir).wait(200) == 0
  assert f'resumed at step {newest}' in (out / '0').read_text()

  settings = [*SETTINGS, f'--data.input={__file__}', '--mesh.replica=4']
  assert main.main(['zaya_jax', *settings, f'--run_dir={tmp_path}/one']) == 0
  expected = losses(tmp_path / 'one')
  np.testing.assert_allclose(losses(run_dir), expected, rtol=0, atol=1e-5)
  assert expected[0] - expected[-1] > 1e-2  # Or any order of data would do.


def test_killed_process_ends_the_others(tmp_path):
  out = tmp_path / 'out'
  process = job(out, tmp_path / 'run', '--num_steps=100000')
  wait_for(out / '0', 'step       2/', process)
  os.kill(int((out / '1.pid').read_text()), signal.SIGKILL)
  assert process.wait(60) == 128 + 9
  assert 'error: another process is gone' in (out / '0').read_text()


def test_other_settings_are_refused_by_the_name_of_the_flag(tmp_path):
  out = tmp_path / 'out'
  process = job(out, tmp_path / 'run', FAKE_FLAGS_1='--optim.lr=0.5')
  assert process.wait(100) == 2
  words = 'process 1 was started with --optim.lr=0.5 and process 0 with'
  assert words in (out / '0').read_text()
  assert words in (out / '1').read_text()
  assert 'compil' not in (out / '0').read_text()
  assert not (tmp_path / 'run').exists()


def test_missing_process_is_one_sentence_and_resumable(tmp_path):
  out = tmp_path / 'out'
  wait = '--distributed.initialization_timeout_s=1'
  process = job(out, tmp_path / 'run', '--distributed.processes=3', wait)
  assert process.wait(100) == 75
  assert 'did not meet the others at localhost:' in (out / '1').read_text()
  assert 'Traceback' not in (out / '1').read_text()


SLURM = {
  'SLURM_JOB_ID': '5',
  'SLURM_STEP_NUM_TASKS': '16',
  'SLURM_PROCID': '9',
  'SLURM_LOCALID': '1',
  'SLURM_STEP_NODELIST': 'gpu[007-008]',
  'SLURM_STEP_TASKS_PER_NODE': '8(x2)',
}
MPI = {
  'OMPI_COMM_WORLD_SIZE': '16',
  'OMPI_COMM_WORLD_RANK': '9',
  'OMPI_COMM_WORLD_LOCAL_RANK': '1',
  'OMPI_COMM_WORLD_LOCAL_SIZE': '8',
  'OMPI_MCA_orte_hnp_uri': '1314521088.0;tcp://10.96.0.1,10.1.0.1:34911',
}
POD = {
  'JAX_COORDINATOR_ADDRESS': 'zaya-train-0-0.zaya:8476',
  'JAX_NUM_PROCESSES': '16',
  'JOB_COMPLETION_INDEX': '9',
}


@pytest.mark.parametrize(
  'env, host, devices',
  [
    (SLURM, 'gpu007', [1]),
    (SLURM | {'ROCR_VISIBLE_DEVICES': '1'}, 'gpu007', None),
    (SLURM | {'SLURM_STEP_TASKS_PER_NODE': '1(x16)'}, 'gpu007', None),
    (SLURM | {'SLURM_STEP_NODELIST': 'a-1,b[2-3]'}, 'a-1', [1]),
    (SLURM | {'SLURM_STEP_NODELIST': 'a[3,7-9],b2'}, 'a3', [1]),
    (MPI, '10.96.0.1', [1]),
    (POD, 'zaya-train-0-0.zaya', None),
  ],
)
def test_launcher_tells_the_place(env, host, devices):
  place = launcher.find(config_lib.DistributedConfig(), env)
  assert (place.processes, place.process) == (16, 9)
  assert place.coordinator.rpartition(':')[0] == host
  assert place.devices == devices


@pytest.mark.parametrize(
  'env',
  [
    {},
    SLURM | {'SLURM_STEP_NUM_TASKS': '1'},  # srun --pty bash
    {'SLURM_JOB_ID': '5', 'SLURM_NTASKS': '16', 'SLURM_PROCID': '0'},  # sbatch
    {'JOB_COMPLETION_INDEX': '3'},  # Runs of their own.
  ],
)
def test_single_process(env):
  assert launcher.find(config_lib.DistributedConfig(), env).processes == 1


def test_flags_win_over_the_launcher():
  flags = config_lib.DistributedConfig(
    coordinator='h:1', processes=2, process=0
  )
  place = launcher.find(flags, SLURM)
  assert (place.coordinator, place.processes, place.process) == ('h:1', 2, 0)


@pytest.mark.parametrize(
  'flags, words',
  [
    ({'processes': 2}, '--distributed.coordinator= is missing'),
    ({'processes': 2, 'coordinator': 'h:1'}, '--distributed.process= is'),
    ({'coordinator': 'h:1', 'process': 0}, '--distributed.processes= is'),
    ({'processes': 2, 'coordinator': 'h', 'process': 0}, 'must be HOST:PORT'),
    ({'processes': 2, 'coordinator': 'h:1', 'process': 2}, 'must be below'),
  ],
)
def test_incomplete_place_is_refused(flags, words):
  with pytest.raises(config_lib.UsageError, match=words):
    launcher.find(config_lib.DistributedConfig(**flags), {})
