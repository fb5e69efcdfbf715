# SPDX-License-Identifier: Apache-2.0
"""Which process of which run this is, as launchers and flags tell."""

import pytest

from zaya_jax import config as config_lib
from zaya_jax.runtime import rank

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
    (SLURM | {'ROCR_VISIBLE_DEVICES': '0,1,2'}, 'gpu007', [1]),
    (SLURM | {'SLURM_STEP_TASKS_PER_NODE': '1(x16)'}, 'gpu007', None),
    (SLURM | {'SLURM_STEP_NODELIST': 'a-1,b[2-3]'}, 'a-1', [1]),
    (SLURM | {'SLURM_STEP_NODELIST': 'a[3,7-9],b2'}, 'a3', [1]),
    (MPI, '10.96.0.1', [1]),
    (POD, 'zaya-train-0-0.zaya', None),
  ],
)
def test_launcher_tells_the_place(env, host, devices):
  place = rank.find(config_lib.DistributedConfig(), env)
  assert (place.processes, place.process) == (16, 9)
  assert place.coordinator.rpartition(':')[0] == host
  assert place.devices == devices


def test_steps_of_one_job_meet_at_ports_of_their_own():
  ports = set()
  for step in ('0', '1', '2'):
    env = SLURM | {'SLURM_STEP_ID': step}
    found = rank.find(config_lib.DistributedConfig(), env)
    ports.add(found.coordinator.rpartition(':')[2])
  assert len(ports) == 3


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
  assert rank.find(config_lib.DistributedConfig(), env).processes == 1


def test_flags_win_over_the_launcher():
  flags = config_lib.DistributedConfig(
    coordinator='h:1', processes=2, process=0
  )
  place = rank.find(flags, SLURM)
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
    rank.find(config_lib.DistributedConfig(**flags), {})
