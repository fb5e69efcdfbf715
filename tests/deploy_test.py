# SPDX-License-Identifier: Apache-2.0
"""The files of deploy/: accepted by jaxlib, Slurm's shell and Kubernetes."""

import configparser
import os
import pathlib
import re
import signal
import stat
import subprocess
import sys

import pytest
import yaml

from tests.support import fake_srun
from zaya_jax import config as config_lib
from zaya_jax.aegis.supervisor import hooks
from zaya_jax.aegis.watch import notice, watch
from zaya_jax.runtime import rank

ROOT = pathlib.Path(__file__).resolve().parents[1]
DEPLOY = ROOT / 'deploy'


# What AMD publishes for JAX on MI300X, whether it is set here or left out.
PUBLISHED = """
GPU_MAX_HW_QUEUES HIP_FORCE_DEV_KERNARG HSA_FORCE_FINE_GRAIN_PCIE
HSA_NO_SCRATCH_RECLAIM HSA_ENABLE_IPC_MODE_LEGACY CUDA_DEVICE_MAX_CONNECTIONS
XLA_PYTHON_CLIENT_MEM_FRACTION NCCL_IB_HCA NCCL_SOCKET_IFNAME NCCL_IB_GID_INDEX
NCCL_IB_TC NCCL_IB_SL NCCL_PROTO NCCL_CHECKS_DISABLE NCCL_DEBUG
NCCL_IB_QPS_PER_CONNECTION NCCL_NCHANNELS_PER_NET_PEER NCCL_CROSS_NIC
NCCL_PXN_DISABLE NCCL_DMABUF_ENABLE NCCL_GDRCOPY_ENABLE NCCL_GDR_FLUSH_DISABLE
NCCL_IB_PCI_RELAXED_ORDERING NCCL_IGNORE_CPU_AFFINITY RCCL_LL128_FORCE_ENABLE
RCCL_MSCCLPP_ENABLE RCCL_MSCCL_ENABLE NCCL_MIN_NCHANNELS RCCL_P2P_BATCH_ENABLE
TF_DETERMINISTIC_OPS NCCL_ALGO NVTE_ALLOW_NONDETERMINISTIC_ALGO
HIPBLASLT_DETERMINISTIC
xla_gpu_enable_latency_hiding_scheduler xla_gpu_enable_triton_gemm
xla_gpu_enable_cublaslt xla_gpu_enable_command_buffer xla_gpu_autotune_level
xla_gpu_all_reduce_combine_threshold_bytes
xla_gpu_reduce_scatter_combine_threshold_bytes
xla_gpu_all_gather_combine_threshold_bytes
xla_gpu_enable_all_gather_combine_by_dim
xla_gpu_enable_reduce_scatter_combine_by_dim
xla_gpu_enable_pipelined_all_gather xla_gpu_enable_pipelined_all_reduce
xla_gpu_enable_pipelined_reduce_scatter
xla_gpu_unsupported_use_ragged_all_to_all_one_shot_kernel
""".split()


def settings():
  lines = (DEPLOY / 'mi300x.env').read_text().splitlines()
  pairs = [x.partition('=') for x in lines if x and not x.startswith('#')]
  return {name: value for name, _, value in pairs}


def starts(xla_flags):
  """Whether jaxlib accepts the flags; an unknown one ends the process."""
  done = subprocess.run(
    [sys.executable, '-c', 'import jax; jax.devices()'],
    env={**os.environ, 'XLA_FLAGS': xla_flags, 'JAX_PLATFORMS': 'cpu'},
    capture_output=True,
    text=True,
    check=False,
    timeout=120,
  )
  return done.returncode == 0


def test_jaxlib_accepts_every_flag(monkeypatch):
  gpu = rank.timeout_flags(60)
  monkeypatch.setattr(rank, '_has_accelerator', lambda: True)
  assert rank.timeout_flags(60) != gpu
  ours = f'{gpu} {rank.timeout_flags(60)}'
  assert starts(f'{settings()["XLA_FLAGS"]} {ours}')


def test_unknown_flag_is_noticed():
  # Of published configurations for MI300X; newer versions do not have it.
  assert not starts(f'{settings()["XLA_FLAGS"]} --xla_gpu_graph_level=0')


def test_a_plan_compiles_with_the_same_flags():
  flags = ROOT / 'zaya_jax' / 'plan' / 'compile' / 'mi300x.flags'
  assert flags.read_text().split() == settings()['XLA_FLAGS'].split()


def test_every_setting_has_its_reason():
  text = (DEPLOY / 'mi300x.env').read_text()
  for block in re.split(r'\n(?=# )', text):
    assert block.startswith('#')
  assert all(re.fullmatch(r'[A-Z_0-9]+', name) for name in settings())
  assert len(settings()) == len(re.findall(r'^[A-Z]', text, re.MULTILINE))
  assert not [name for name in PUBLISHED if name not in text]
  assert 'NCCL_MIN_NCHANNELS' not in settings()
  assert 'RCCL_P2P_BATCH_ENABLE' not in settings()


@pytest.fixture
def sbatch(tmp_path):
  """A function: what each task runs, flags -> (exit code, scontrol's words)."""
  folder = tmp_path / 'bin'
  folder.mkdir()
  commands = {
    'srun': f'echo "$@" > {tmp_path}/srun; '
    f'exec {sys.executable} {fake_srun.__file__} "$@"',
    'scontrol': f'echo "$@" >> {tmp_path}/scontrol',
    'squeue': 'echo "${JOB_STATE:-RUNNING}"',
    'task': 'shift 2; [[ $1 == --mode=preflight ]] && { echo "$@" >> '
    f'{tmp_path}/checks; exit "$UNFIT"; }}; exec bash -c "$1"',
  }
  for name, line in commands.items():
    (folder / name).write_text(f'#!/bin/bash\n{line}\n')
    (folder / name).chmod(stat.S_IRWXU)

  def run(command, **more):
    done = subprocess.run(
      ['bash', str(DEPLOY / 'train.sbatch'), command],
      env={
        **os.environ,
        'PATH': f'{folder}:{os.environ["PATH"]}',
        'ZAYA_DIR': str(ROOT),
        'ZAYA_PYTHON': str(folder / 'task'),
        'SLURM_JOB_ID': '77',
        'SLURM_CPUS_PER_TASK': '96',
        'FAKE_TASKS': '4',
        'FAKE_OUT': str(tmp_path),
        **more,
      },
      check=False,
      timeout=120,
    )
    told = tmp_path / 'scontrol'
    return done.returncode, told.read_text() if told.exists() else ''

  return run


def test_batch_job_starts_every_process_with_the_settings(sbatch, tmp_path):
  assert sbatch('env; test $SLURM_PROCID -lt 4') == (0, '')
  # Else srun of Slurm 22.05 gives one core to a task.
  assert '--cpus-per-task=96' in (tmp_path / 'srun').read_text().split()
  for i in range(4):
    seen = (tmp_path / str(i)).read_text().splitlines()
    assert {f'{k}={v}' for k, v in settings().items()} <= set(seen)
    env = dict(line.split('=', 1) for line in seen if '=' in line)
    place = rank.find(config_lib.DistributedConfig(), env)
    assert (place.processes, place.process) == (4, i)


@pytest.mark.parametrize('code', [0, 1, 2, 3, 4, 75, 137])
def test_batch_job_is_queued_again_only_where_that_helps(sbatch, code):
  again = code in (75, 137)
  found = sbatch(f'[ $SLURM_PROCID != 2 ] || exit {code}')
  assert found == (code, 'requeue 77\n' if again else '')


@pytest.mark.parametrize(
  'env, part',
  [
    ({}, []),
    ({'SLURM_ARRAY_TASK_ID': '0'}, ['--data.part=0/4']),
    ({'SLURM_ARRAY_TASK_ID': '3'}, ['--data.part=3/4']),
    (
      {'SLURM_ARRAY_TASK_ID': '7', 'SLURM_ARRAY_TASK_MIN': '1',
       'SLURM_ARRAY_TASK_STEP': '2'},
      ['--data.part=3/4'],
    ),
  ],
)  # fmt: skip
def test_array_of_jobs_prepares_in_parts(tmp_path, env, part):
  python = tmp_path / 'python'
  python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
  python.chmod(0o755)
  done = subprocess.run(
    ['bash', str(DEPLOY / 'prepare.sbatch'), '--data.input=a b', '--output=c'],
    env={
      'PATH': os.environ['PATH'],
      'ZAYA_PYTHON': str(python),
      'ZAYA_DIR': str(tmp_path),
      'SLURM_CPUS_PER_TASK': '16',
      'SLURM_ARRAY_TASK_MIN': '0',
      'SLURM_ARRAY_TASK_COUNT': '4',
      **env,
    },
    capture_output=True,
    text=True,
    check=True,
  )
  words = done.stdout.splitlines()[2:]
  assert words == [
    '--mode=prepare', '--data.workers=16', '--data.input=a b', '--output=c',
    *part,
  ]  # fmt: skip
  config_lib.Config.parse(words)


@pytest.mark.parametrize('unfit', ['0', '3', '75'])
def test_batch_job_trains_only_on_nodes_that_are_fit(sbatch, tmp_path, unfit):
  check = {'ZAYA_PREFLIGHT': '--preflight.devices=8 --preflight.ports=8'}
  code, told = sbatch(f'touch {tmp_path}/trained', UNFIT=unfit, **check)
  assert code == int(unfit) and ('requeue' in told) == (unfit == '75')
  assert (tmp_path / 'trained').exists() == (unfit == '0')
  lines = (tmp_path / 'checks').read_text().splitlines()
  assert lines == 4 * [f'--mode=preflight {check["ZAYA_PREFLIGHT"]}']
  config_lib.Config.parse(lines[0].split())


def test_batch_job_is_not_queued_for_ever(sbatch):
  assert sbatch('exit 75', SLURM_RESTART_COUNT='100') == (75, '')


def test_batch_job_that_was_cancelled_is_not_queued_again(sbatch):
  assert sbatch('exit 75', JOB_STATE='COMPLETING') == (75, '')


@pytest.fixture
def supervise(tmp_path):
  """A function: what stands for the supervisor -> exit code, its flags."""
  folder = tmp_path / 'bin'
  folder.mkdir()
  commands = {
    'scontrol': f'[[ $1 == show ]] && printf "a1\\na2\\n" || echo $@ >> '
    f'{tmp_path}/scontrol',
    'squeue': f'cat {tmp_path}/state 2> /dev/null || echo RUNNING',
    'srun': 'exit 1',
    'python': f'printf "%s\\n" "${{@:3}}" > {tmp_path}/flags; eval "$COMMAND"',
  }
  for name, line in commands.items():
    (folder / name).write_text(f'#!/bin/bash\n{line}\n')
    (folder / name).chmod(stat.S_IRWXU)

  def start(command, *args):
    return subprocess.Popen(
      ['bash', str(DEPLOY / 'supervise.sbatch'), *args],
      env={
        **os.environ,
        'PATH': f'{folder}:{os.environ["PATH"]}',
        'ZAYA_DIR': str(ROOT),
        'ZAYA_PYTHON': str(folder / 'python'),
        'SLURM_JOB_ID': '77',
        'SLURM_JOB_NODELIST': 'a[1-2]',
        'SLURM_CPUS_PER_TASK': '96',
        'COMMAND': command,
      },
    )

  return start


@pytest.mark.parametrize('code', [0, 1, 2, 75, 93, 137])
def test_supervised_job_is_queued_again_only_where_that_helps(
  supervise, tmp_path, code
):
  job = supervise(f'exit {code}', '--run_dir=/x', '--aegis.spares=1')
  assert job.wait(60) == code
  told = tmp_path / 'scontrol'
  assert told.exists() == (code in (75, 137))
  found = config_lib.Config.parse((tmp_path / 'flags').read_text().splitlines())
  assert found.mode == 'supervise' and found.aegis.nodes == ('a1', 'a2')
  assert found.aegis.spares == 1
  hooks.check('--aegis.drain', found.aegis.drain)
  watch.parse(found.aegis.logs)
  words = found.aegis.agent.split()
  assert words[0] == 'srun' and '--nodelist={node}' in words
  assert '--cpus-per-task=96' in words


@pytest.mark.parametrize('name', ['TERM', 'USR1'])
def test_supervised_job_waits_for_the_save_after_a_signal(
  supervise, tmp_path, name
):
  ready = tmp_path / 'ready'
  job = supervise(
    f'trap "exit 75" {name}; touch {ready}; while :; do sleep 0.1; done'
  )
  while not ready.exists():
    assert job.poll() is None
  job.send_signal(signal.Signals[f'SIG{name}'])
  assert job.wait(60) == 75
  assert (tmp_path / 'scontrol').read_text() == 'requeue 77\n'


def test_supervised_job_that_was_cancelled_hears_one_signal(
  supervise, tmp_path
):
  ready, again = tmp_path / 'ready', tmp_path / 'again'
  job = supervise(
    f'trap "touch {again}" TERM; touch {ready}; '
    f'until [[ -e {tmp_path}/save ]]; do sleep 0.1; done; exit 75'
  )
  while not ready.exists():
    assert job.poll() is None
  (tmp_path / 'state').write_text('COMPLETING\n')
  job.terminate()  # Slurm itself has told the supervisor.
  (tmp_path / 'save').touch()
  assert job.wait(60) == 75
  assert not again.exists()
  assert not (tmp_path / 'scontrol').exists()


def test_supervised_job_has_time_to_save_when_its_own_is_up():
  text = (DEPLOY / 'supervise.sbatch').read_text()
  options = re.findall(r'^#SBATCH --(\S+)', text, re.M)
  (told,) = re.findall(r'^signal=B:USR1@(\d+)$', '\n'.join(options), re.M)
  (grace,) = re.findall(r'--aegis\.grace_s=(\d+)', text)
  assert int(told) >= int(grace) + 30 and 'requeue' in options
  assert signal.SIGUSR1 in notice.SIGNALS


def test_user_may_give_ranks_less_time(supervise, tmp_path):
  assert supervise('exit 0', '--aegis.grace_s=5').wait(60) == 0
  found = config_lib.Config.parse((tmp_path / 'flags').read_text().splitlines())
  assert found.aegis.grace_s == 5


def test_systemd_restarts_only_where_that_helps():
  unit = configparser.ConfigParser()
  unit.optionxform = str
  unit.read(DEPLOY / 'zaya.service')
  service = unit['Service']
  assert service['RestartPreventExitStatus'].split() == ['2', '3', '4', '93']
  words = service['ExecStart'].split()
  found = config_lib.Config.parse(
    [w for w in words[3:] if '--flagfile' not in w]
  )
  assert found.mode == 'supervise' and found.aegis.port
  watch.parse(found.aegis.logs)


def test_jobset_without_supervisor_starts_every_process():
  spec = yaml.safe_load((DEPLOY / 'jobset_train.yaml').read_text())
  assert spec['apiVersion'] == 'jobset.x-k8s.io/v1alpha2'
  (group,) = spec['spec']['replicatedJobs']
  job = group['template']['spec']
  pod = job['template']['spec']
  (container,) = pod['containers']
  config = config_lib.Config.parse(
    [x for x in container['args'] if not x.startswith('--flagfile')]
  )
  assert job['completionMode'] == 'Indexed'
  assert job['completions'] == job['parallelism']
  assert config.distributed.processes == job['parallelism'] * group['replicas']
  name = spec['metadata']['name']
  host = f'{name}-{group["name"]}-0-0.{name}'
  assert config.distributed.coordinator.partition(':')[0] == host
  place = rank.find(config.distributed, {'JOB_COMPLETION_INDEX': '3'})
  assert (place.processes, place.process) == (job['parallelism'], 3)
  # Exit codes are seen by Kubernetes only in pods that never restart.
  assert pod['restartPolicy'] == 'Never'
  (rule,) = job['podFailurePolicy']['rules']
  assert rule['onExitCodes']['containerName'] == container['name']
  assert rule['onExitCodes']['values'] == [2, 3, 4]
  mounted = {mount['name'] for mount in container['volumeMounts']}
  assert mounted == {volume['name'] for volume in pod['volumes']}


@pytest.fixture(scope='module')
def supervised():
  """The objects of jobset.yaml: (kind, name) -> object."""
  found = yaml.safe_load_all((DEPLOY / 'jobset.yaml').read_text())
  return {(x['kind'], x['metadata']['name']): x for x in found}


def jobs(supervised):
  """The Job and the pod of each part of the JobSet."""
  spec = supervised['JobSet', 'zaya']['spec']
  jobs = {x['name']: x['template']['spec'] for x in spec['replicatedJobs']}
  return {name: (job, job['template']['spec']) for name, job in jobs.items()}


def flags(pod):
  """What the only container of a pod is told."""
  (container,) = pod['containers']
  return config_lib.Config.parse(
    [word for word in container['args'] if not word.startswith('--flagfile=')]
  )


def test_objects_have_what_the_api_server_wants(supervised):
  versions = {
    'ServiceAccount': 'v1',
    'Role': 'rbac.authorization.k8s.io/v1',
    'RoleBinding': 'rbac.authorization.k8s.io/v1',
    'JobSet': 'jobset.x-k8s.io/v1alpha2',
  }
  for (kind, _), thing in supervised.items():
    assert thing['apiVersion'] == versions[kind]
  spec = supervised['JobSet', 'zaya']['spec']
  names = [x['name'] for x in spec['replicatedJobs']]
  assert set(spec) <= {
    'successPolicy',
    'failurePolicy',
    'network',
    'replicatedJobs',
  }
  assert spec['successPolicy']['operator'] in ('All', 'Any')
  assert set(spec['successPolicy']['targetReplicatedJobs']) <= set(names)
  for job, pod in jobs(supervised).values():
    # Exit codes are seen by Kubernetes only in pods that never restart.
    assert pod['restartPolicy'] == 'Never'
    assert job['completions'] == job['parallelism'] > 0
    (container,) = pod['containers']
    assert {'name', 'image'} <= set(container)
    mounted = {mount['name'] for mount in container['volumeMounts']}
    assert mounted == {volume['name'] for volume in pod['volumes']}
    for rule in job['podFailurePolicy']['rules']:
      assert rule['action'] in ('FailJob', 'Ignore')
      assert ('onExitCodes' in rule) != ('onPodConditions' in rule)
      codes = rule.get('onExitCodes', {})
      assert codes.get('containerName', container['name']) == container['name']


def test_supervisor_knows_every_pod_by_its_name(supervised):
  parts = jobs(supervised)
  job, pod = parts['node']
  found = flags(parts['supervisor'][1])
  count = job['completions']
  assert found.mode == 'supervise' and found.aegis.spares == 1
  # As JobSet names hosts: JOBSET-REPLICATEDJOB-JOB-INDEX.JOBSET.
  assert found.aegis.nodes == tuple(
    f'zaya-node-0-{i}.zaya' for i in range(count)
  )
  assert job['completionMode'] == 'Indexed'
  words = found.aegis.agent.split()
  assert (ROOT / words[0]).stat().st_mode & stat.S_IXUSR
  assert words[1:] == ['{node}']
  assert pod['containers'][0]['command'] == ['sleep', 'infinity']


def test_supervisor_in_a_pod_is_started_again_only_where_that_helps(supervised):
  job, pod = jobs(supervised)['supervisor']
  rules = job['podFailurePolicy']['rules']
  assert rules[0]['action'] == 'FailJob'
  assert rules[0]['onExitCodes']['values'] == [2, 3, 4, 93]
  assert job['backoffLimit'] > 0
  grace = flags(pod).aegis.grace_s
  assert pod['terminationGracePeriodSeconds'] >= grace + 30


def test_supervisor_in_a_pod_is_reached_by_probe_and_prometheus(supervised):
  job, pod = jobs(supervised)['supervisor']
  (container,) = pod['containers']
  found = flags(pod)
  ports = {port['name']: port['containerPort'] for port in container['ports']}
  probe = container['readinessProbe']['httpGet']
  assert ports[probe['port']] == found.aegis.port
  assert probe['path'] == '/healthz' and 'livenessProbe' not in container
  assert found.aegis.bind == '0.0.0.0'
  annotations = job['template']['metadata']['annotations']
  assert annotations['prometheus.io/port'] == str(found.aegis.port)


def allowed(supervised, account):
  """(resource, verb) that an account may do."""
  return {
    (resource, verb)
    for (kind, _), binding in supervised.items()
    if kind == 'RoleBinding'
    and {'kind': 'ServiceAccount', 'name': account} in binding['subjects']
    for rule in supervised['Role', binding['roleRef']['name']]['rules']
    for resource in rule['resources']
    for verb in rule['verbs']
  }


def test_pods_may_do_what_they_need_and_no_more(supervised):
  parts = jobs(supervised)
  for name, account in (
    ('supervisor', 'zaya-supervisor'),
    ('node', 'zaya-node'),
  ):
    assert parts[name][1]['serviceAccountName'] == account
    assert ('ServiceAccount', account) in supervised
  (container,) = parts['supervisor'][1]['containers']
  (lease,) = [x for x in container['args'] if x.startswith('--aegis.lease=')]
  namespace = supervised['JobSet', 'zaya']['metadata']['namespace']
  assert lease == f'--aegis.lease=kubernetes://{namespace}/zaya'
  supervisor = allowed(supervised, 'zaya-supervisor')
  assert {
    ('pods', 'list'),
    ('pods/exec', 'create'),
    *(('leases', verb) for verb in ('get', 'create', 'update')),
    *(('configmaps', verb) for verb in ('get', 'create', 'update')),
  } <= supervisor
  assert not [x for x in supervisor if x[0] == 'secrets' or '*' in x]
  # A program in a rank must not start programs elsewhere.
  assert allowed(supervised, 'zaya-node') == {('leases', 'get')}


@pytest.fixture
def kubectl(tmp_path):
  """A function: names of pods, words -> what kubectl_agent.sh does."""
  fake = tmp_path / 'kubectl'
  fake.write_text(
    '#!/bin/bash\n'
    f'echo "$@" >> {tmp_path}/calls\n'
    'if [[ $1 == get ]]; then printf "$PODS"; exit; fi\n'
    'while [[ $1 != -- ]]; do shift; done; shift; exec "$@"\n'
  )
  fake.chmod(stat.S_IRWXU)

  def run(pods, *words, said=''):
    done = subprocess.run(
      [str(DEPLOY / 'kubectl_agent.sh'), *words],
      env={
        **os.environ,
        'PATH': f'{tmp_path}:{os.environ["PATH"]}',
        'PODS': pods,
      },
      input=said,
      capture_output=True,
      text=True,
      check=False,
      timeout=60,
    )
    calls = (tmp_path / 'calls').read_text().splitlines()
    return done, calls

  return run


def test_agent_runs_in_the_newest_pod_of_its_node(kubectl):
  done, calls = kubectl(
    'pod/zaya-node-0-3-old\npod/zaya-node-0-3-new\n',
    'zaya-node-0-3.zaya',
    'tr',
    'a-z ',
    'A-Z_',
    said='two words',
  )
  assert (done.returncode, done.stdout) == (0, 'TWO_WORDS')
  assert 'job-name=zaya-node-0,' in calls[0]
  assert 'job-completion-index=3 ' in calls[0]
  assert calls[1].startswith(
    'exec --stdin pod/zaya-node-0-3-new --container=node -- tr'
  )


def test_agent_of_a_node_without_a_pod_says_so(kubectl):
  done, calls = kubectl('', 'zaya-node-0-3.zaya', 'true')
  assert done.returncode == 1 and len(calls) == 1
  assert done.stderr == 'no pod of zaya-node-0-3 is running\n'
