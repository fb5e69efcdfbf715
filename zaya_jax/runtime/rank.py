# SPDX-License-Identifier: Apache-2.0
"""Which process of which run this is: flags, else what the launcher tells.

jax has a detection of its own; it gives a process of Slurm one device even
where it is the only one of its node, and asks the Kubernetes API.
"""

import dataclasses
import os
import re
import zlib
from collections.abc import Mapping

from zaya_jax import config as config_lib

_PORTS = 61_440  # Up to 65,535: above those that Linux hands out.
_VISIBLE = (
  'ROCR_VISIBLE_DEVICES',
  'HIP_VISIBLE_DEVICES',
  'CUDA_VISIBLE_DEVICES',
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
  """Where a process stands.

  Attributes:
    coordinator: HOST:PORT of process 0; '' for a single process.
    processes: how many there are.
    process: which one this is.
    devices: the local ones to use; None: all.
  """

  coordinator: str = ''
  processes: int = 1
  process: int = 0
  devices: list[int] | None = None


def find(config: config_lib.DistributedConfig, env: Mapping[str, str]) -> Place:
  """Flags win over JAX_*, these over Slurm, OpenMPI and Kubernetes.

  Raises:
    UsageError: if a part is missing or does not fit the others.
  """
  told = _slurm(env) or _open_mpi(env) or {}
  if 'JAX_COORDINATOR_ADDRESS' in env or config.coordinator:
    if 'JOB_COMPLETION_INDEX' in env:  # Of an indexed Job of Kubernetes.
      told['process'] = int(env['JOB_COMPLETION_INDEX'])
    for key, name in _JAX.items():
      if env.get(name):
        told[key] = env[name] if key == 'coordinator' else int(env[name])
  chosen = {
    'coordinator': config.coordinator,
    'processes': config.processes,
    'process': config.process if config.process >= 0 else '',
  }
  told |= {k: v for k, v in chosen.items() if v or (k, v) == ('process', 0)}
  if told.get('processes', 1) == 1 and 'coordinator' not in told:
    return Place()
  _check(told)
  return Place() if told['processes'] == 1 else Place(**told)


def timeout_flags(seconds: int) -> str:
  """XLA flags that end a collective which waits longer than `seconds`."""
  if _has_accelerator():
    return (
      f'--xla_gpu_first_collective_call_terminate_timeout_seconds={seconds}'
      f' --xla_gpu_executable_terminate_timeout={seconds}'
    )
  return (
    f'--xla_cpu_collective_timeout_seconds={seconds} '
    f'--xla_cpu_collective_call_terminate_timeout_seconds={seconds}'
  )


_JAX = {
  'coordinator': 'JAX_COORDINATOR_ADDRESS',
  'processes': 'JAX_NUM_PROCESSES',
  'process': 'JAX_PROCESS_ID',
}


def _has_accelerator() -> bool:
  there = any(map(os.path.exists, ('/dev/kfd', '/dev/nvidiactl')))
  return there and os.environ.get('JAX_PLATFORMS') != 'cpu'


def _check(told: dict) -> None:
  for key in ('coordinator', 'processes', 'process'):
    if key not in told:
      known = ', '.join(f'--distributed.{k}={told[k]}' for k in sorted(told))
      raise config_lib.UsageError(
        f'--distributed.{key}= is missing and the environment does not tell it'
        f' ({_JAX[key]}); known so far: {known}.'
      )
  if not re.fullmatch(r'.+:\d{1,5}', told['coordinator']):
    raise config_lib.UsageError(
      f'--distributed.coordinator={told["coordinator"]} must be HOST:PORT.'
    )
  if not 0 <= told['process'] < told['processes']:
    raise config_lib.UsageError(
      f'--distributed.process={told["process"]} must be below '
      f'--distributed.processes={told["processes"]}.'
    )


def _slurm(env: Mapping[str, str]) -> dict | None:
  """The step of srun; a batch script or a shell of one task is no step."""
  if int(env.get('SLURM_STEP_NUM_TASKS', 1)) == 1:
    return None
  # 'node001', 'node001,host2', 'node[001-015],host2', 'node[001,007]'
  nodes = env['SLURM_STEP_NODELIST']
  host = re.sub(r'^([^,\[]*)\[([^,\-\]]*).*', r'\1\2', nodes).partition(',')[0]
  job, step = int(env['SLURM_JOB_ID']), int(env.get('SLURM_STEP_ID', 0))
  tasks = env.get('SLURM_STEP_TASKS_PER_NODE', '1')  # '8(x4),1'
  return {
    'coordinator': f'{host}:{_PORTS + (job + 31 * step) % 4096}',
    'processes': int(env['SLURM_STEP_NUM_TASKS']),
    'process': int(env['SLURM_PROCID']),
    'devices': _devices(
      env, int(re.match(r'\d+', tasks)[0]), env.get('SLURM_LOCALID', '0')
    ),
  }


def _open_mpi(env: Mapping[str, str]) -> dict | None:
  size = env.get('OMPI_COMM_WORLD_SIZE', '1')
  if size == '1':
    return None
  uri = env.get('OMPI_MCA_orte_hnp_uri', '')
  found = re.search(r'tcp://([^,:]+)', uri)
  local = env.get('OMPI_COMM_WORLD_LOCAL_SIZE', '1')
  host = '127.0.0.1' if local == size else found and found[1]
  name = env.get('PMIX_NAMESPACE', uri)
  told = {
    'processes': int(size),
    'process': int(env['OMPI_COMM_WORLD_RANK']),
    'devices': _devices(
      env, int(local), env.get('OMPI_COMM_WORLD_LOCAL_RANK', '0')
    ),
  }
  if host:  # OpenMPI 5 does not tell it on several nodes.
    port = _PORTS + zlib.crc32(name.encode()) % 4096
    told['coordinator'] = f'{host}:{port}'
  return told


def _devices(
  env: Mapping[str, str], neighbours: int, local: str
) -> list[int] | None:
  """One device each where processes share a node and none was dealt out."""
  dealt = any(name in env and ',' not in env[name] for name in _VISIBLE)
  return None if neighbours == 1 or dealt else [int(local)]
