# SPDX-License-Identifier: Apache-2.0
"""Preparing on Ray gives the bytes of one machine, whatever is lost."""

import os
import pathlib
import runpy
import subprocess
import sys
import time
import types

import pytest

from zaya_jax import main

ROOT = pathlib.Path(__file__).parents[1]

long = pytest.mark.long  # Ray itself takes half a minute to begin.

# The program with each file as a unit of its own; the first process that has
# encoded one is killed before it says so, or on one node stays there, unless a
# file says that it was so before.
DRIVER = """
import os, signal, sys, time
import prepare_ray, ray
from ray import cloudpickle

cloudpickle.register_pickle_by_value(prepare_ray)
task, once = prepare_ray._prepare._function, os.path.abspath(sys.argv[1])
node = os.environ.get('STAYS_ON')

def lost(words, folder):
  from pipelines.prepare import tasks, units
  units._UNIT = 1
  mark = tasks.mark
  def mark_once(*args):
    here = ray.get_runtime_context().get_node_id()
    if not os.path.exists(once) and node in (None, here):
      open(once, 'x').close()
      if node:
        time.sleep(600)
      os.kill(os.getpid(), signal.SIGKILL)
    mark(*args)
  tasks.mark = mark_once
  return task(words, folder)

prepare_ray._prepare = ray.remote(lost)
sys.exit(prepare_ray.prepare(sys.argv[2:], 4))
"""
FLAGS = ['--data.input=text', '--data.record_tokens=512', '--data.seq_len=64']


@pytest.fixture
def run(tmp_path, monkeypatch):
  """A function: words for Python, environment -> exit code, all it said."""
  pytest.importorskip('ray', reason="needs the extra 'ray'")
  (tmp_path / 'text').mkdir()
  for i in range(6):
    rows = (f'{{"text": "{i} and {j} are {i + j}"}}\n' for j in range(500))
    (tmp_path / f'text/{i}.jsonl').write_text(''.join(rows))

  paths = [ROOT, ROOT / 'deploy', os.environ.get('PYTHONPATH', '')]
  monkeypatch.setenv('PYTHONPATH', os.pathsep.join(map(str, paths)))
  monkeypatch.setenv('RAY_AUTH_MODE', 'disabled')
  monkeypatch.setenv('RAY_USAGE_STATS_ENABLED', '0')
  monkeypatch.chdir(tmp_path)

  def start(*words, wait=True, **env):
    process = subprocess.Popen(
      [sys.executable, *words],
      env={**os.environ, **env},
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    if not wait:
      return process
    told, _ = process.communicate()
    return process.returncode, told

  return start


def check_equals_one_machine(folder):
  """Whether the shards are those that one process makes."""
  words = ['zaya_jax', '--mode=prepare', *FLAGS, f'--output={folder}_alone']
  assert main.main(words) == 0
  found, wanted = (
    {path.name: path.read_bytes() for path in pathlib.Path(name).iterdir()}
    for name in (folder, f'{folder}_alone')
  )
  assert found == wanted and len(wanted) >= 6


@long
def test_a_killed_worker_changes_no_byte(run):
  code, told = run('-c', DRIVER, 'lost', *FLAGS, '--output=shards')
  assert code == 0, told
  assert os.path.exists('lost')
  check_equals_one_machine('shards')


@long
def test_a_lost_machine_changes_no_byte(run):
  from ray import cluster_utils

  cluster = cluster_utils.Cluster(
    initialize_head=True, head_node_args={'num_cpus': 1}
  )
  try:
    node = cluster.add_node(num_cpus=1)
    where = {'RAY_ADDRESS': cluster.address, 'STAYS_ON': node.node_id}
    words = ['-c', DRIVER, 'lost', *FLAGS, '--output=shards']
    process = run(*words, wait=False, **where)
    while not os.path.exists('lost'):
      assert process.poll() is None
      time.sleep(0.1)
    cluster.remove_node(node, allow_graceful=False)
    told, _ = process.communicate()
    assert process.returncode == 0, told
  finally:
    cluster.shutdown()
  check_equals_one_machine('shards')


@long
def test_without_another_try_a_kill_is_seen(run):
  words = ['-c', DRIVER, 'lost', *FLAGS, '--output=shards']
  code, told = run(*words, RAY_TASK_MAX_RETRIES='0')
  assert code == 1 and 'WorkerCrashedError' in told
  assert os.path.exists('lost') and not os.path.exists('shards')


@long
def test_a_part_that_fails_says_why_and_ends_it(run):
  program = str(ROOT / 'deploy/prepare_ray.py')
  words = ['--parts=2', '--data.input=missing', '--output=shards']
  code, told = run(program, *words)
  assert code == 2
  assert '--data.input=missing does not exist' in told


class _Ray(types.ModuleType):
  """Tasks that are done at once, on machines of so many cores, turn by turn."""

  def __init__(self, *cores):
    super().__init__('ray')
    self.turns, self.asked = list(cores), []
    self.init = lambda: None
    self.wait = lambda tasks: (tasks[:1], tasks[1:])
    self.get = lambda task: 0

  def nodes(self):
    (cores, *rest), dead = (
      self.turns,
      {'Alive': False, 'Resources': {'CPU': 99}},
    )
    self.turns = rest or self.turns
    return [dead] + [
      {'Alive': True, 'Resources': {'CPU': float(n)} if n else {}}
      for n in cores
    ]

  def remote(self, function):
    self.asked = []

    def options(name, num_cpus):
      def remote(words, folder):
        self.asked.append((name, num_cpus, words))

      return types.SimpleNamespace(remote=remote)

    return types.SimpleNamespace(options=options, _function=function)


def _begun(monkeypatch, ray, parts=0):
  """The exit code, and what tasks were asked for."""
  monkeypatch.setitem(sys.modules, 'ray', ray)
  program = runpy.run_path(str(ROOT / 'deploy/prepare_ray.py'))
  return program['prepare'](['--flag'], parts), ray.asked


def test_the_last_task_asks_for_what_is_there_then(monkeypatch):
  code, asked = _begun(monkeypatch, _Ray([2, 1], [1]))
  assert code == 0 and len(asked) == 4 * 3 + 1
  assert asked[0] == (
    'part 0',
    1,
    ['--flag', '--data.workers=1', '--data.part=0/12'],
  )
  assert asked[-1] == ('the rest', 1, ['--flag', '--data.workers=1'])
  _, asked = _begun(monkeypatch, _Ray([1], [1, 8]))
  assert asked[-1] == ('the rest', 8, ['--flag', '--data.workers=8'])


def test_a_cluster_without_cores_is_named(monkeypatch, capsys):
  code, asked = _begun(monkeypatch, _Ray([0]))
  assert code == 2 and not asked
  assert 'no machine of the Ray cluster has a core' in capsys.readouterr().err
  # Where machines come with the work there may be none yet.
  code, asked = _begun(monkeypatch, _Ray([0]), parts=2)
  assert code == 0 and [cpus for _, cpus, _ in asked] == [1, 1, 1]
