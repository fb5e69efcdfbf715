# SPDX-License-Identifier: Apache-2.0
"""Preparing on Ray gives the bytes of one machine, also after a kill."""

import os
import pathlib
import subprocess
import sys

import pytest

from zaya_jax import main

ROOT = pathlib.Path(__file__).parents[1]

pytestmark = pytest.mark.long  # Ray itself takes half a minute to begin.

# The program with each file as a unit of its own; the first process that has
# encoded one is killed before it says so, unless a file says it was before.
DRIVER = """
import os, signal, sys
import prepare_ray, ray
from ray import cloudpickle

cloudpickle.register_pickle_by_value(prepare_ray)
task, once = prepare_ray._prepare._function, os.path.abspath(sys.argv[1])

def killed(words, folder):
  from pipelines.prepare import tasks, units
  units._UNIT = 1
  mark = tasks.mark
  def mark_once(*args):
    if not os.path.exists(once):
      open(once, 'x').close()
      os.kill(os.getpid(), signal.SIGKILL)
    mark(*args)
  tasks.mark = mark_once
  return task(words, folder)

prepare_ray._prepare = ray.remote(killed)
sys.exit(prepare_ray.prepare(sys.argv[2:], 4))
"""
FLAGS = ['--data.input=text', '--data.record_tokens=512', '--data.seq_len=64']


@pytest.fixture
def run(tmp_path):
  """A function: flags, environment -> how the command ended."""
  pytest.importorskip('ray', reason="needs the extra 'ray'")
  (tmp_path / 'text').mkdir()
  for i in range(6):
    rows = (f'{{"text": "{i} and {j} are {i + j}"}}\n' for j in range(500))
    (tmp_path / f'text/{i}.jsonl').write_text(''.join(rows))

  def start(*words, **env):
    paths = [ROOT, ROOT / 'deploy', os.environ.get('PYTHONPATH', '')]
    return subprocess.run(
      [sys.executable, *words],
      cwd=tmp_path,
      env={
        **os.environ,
        'PYTHONPATH': os.pathsep.join(map(str, paths)),
        'RAY_AUTH_MODE': 'disabled',
        'RAY_USAGE_STATS_ENABLED': '0',
        **env,
      },
      capture_output=True,
      text=True,
      check=False,
    )

  return start


def files(folder):
  return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_killed_worker_changes_no_byte(run, tmp_path, monkeypatch):
  done = run('-c', DRIVER, 'killed', *FLAGS, '--output=shards')
  assert done.returncode == 0, done.stderr
  assert (tmp_path / 'killed').exists()
  monkeypatch.chdir(tmp_path)
  words = ['zaya_jax', '--mode=prepare', *FLAGS, '--output=alone']
  assert main.main(words) == 0
  assert files(tmp_path / 'shards') == files(tmp_path / 'alone')
  assert len(files(tmp_path / 'alone')) >= 6


def test_without_another_try_a_kill_is_seen(run, tmp_path):
  words = ['-c', DRIVER, 'killed', *FLAGS, '--output=shards']
  done = run(*words, RAY_TASK_MAX_RETRIES='0')
  assert done.returncode == 1 and 'WorkerCrashedError' in done.stderr
  assert (tmp_path / 'killed').exists()
  assert not (tmp_path / 'shards').exists()


def test_a_part_that_fails_says_why_and_ends_it(run):
  program = str(ROOT / 'deploy/prepare_ray.py')
  done = run(program, '--parts=2', '--data.input=missing', '--output=shards')
  assert done.returncode == 2
  assert '--data.input=missing does not exist' in done.stdout + done.stderr
