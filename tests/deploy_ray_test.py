# SPDX-License-Identifier: Apache-2.0
"""Preparing on Ray gives the bytes of one machine, also after a kill."""

import os
import pathlib
import subprocess
import sys

import pytest

from zaya_jax import main

ROOT = pathlib.Path(__file__).parents[1]

pytestmark = pytest.mark.long  # Ray itself takes some seconds to begin.

# The first process that marks a unit as done is killed instead.
KILL = """
import os, signal
rename, once = os.rename, os.environ.get('KILL_ONCE')
def killed(source, target, **how):
  if once and '.partial/units/' in str(target):
    try:
      os.close(os.open(once, os.O_CREAT | os.O_EXCL))
      os.kill(os.getpid(), signal.SIGKILL)
    except FileExistsError:
      pass
  rename(source, target, **how)
os.rename = killed
"""


@pytest.fixture
def run(tmp_path):
  """A function: flags, environment -> how the command ended."""
  pytest.importorskip('ray', reason="needs the extra 'ray'")
  hook = tmp_path / 'hook'
  hook.mkdir()
  (hook / 'sitecustomize.py').write_text(KILL)

  def start(*flags, **env):
    paths = [str(hook), *filter(None, [os.environ.get('PYTHONPATH')])]
    return subprocess.run(
      [sys.executable, str(ROOT / 'deploy/prepare_ray.py'), *flags],
      cwd=tmp_path,
      env={
        **os.environ,
        'PYTHONPATH': os.pathsep.join(paths),
        'RAY_USAGE_STATS_ENABLED': '0',
        **env,
      },
      capture_output=True,
      text=True,
      check=False,
    )

  return start


@pytest.fixture
def text(tmp_path):
  folder = tmp_path / 'text'
  folder.mkdir()
  for i in range(6):
    rows = (f'{{"text": "{i} and {j} are {i + j}"}}\n' for j in range(500))
    (folder / f'{i}.jsonl').write_text(''.join(rows))
  return ['--data.input=text', '--data.record_tokens=512', '--data.seq_len=64']


def files(folder):
  return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_killed_worker_changes_no_byte(run, text, tmp_path, monkeypatch):
  done = run(*text, '--output=shards', '--parts=4', KILL_ONCE='killed')
  assert done.returncode == 0, done.stderr
  assert (tmp_path / 'killed').exists()
  monkeypatch.chdir(tmp_path)
  words = ['zaya_jax', '--mode=prepare', *text, '--output=alone']
  assert main.main(words) == 0
  assert files(tmp_path / 'shards') == files(tmp_path / 'alone')


def test_without_another_try_a_kill_is_seen(run, text, tmp_path):
  flags = [*text, '--output=shards', '--parts=4']
  once = {'KILL_ONCE': 'killed', 'RAY_TASK_MAX_RETRIES': '0'}
  done = run(*flags, **once)
  assert done.returncode == 1 and 'WorkerCrashedError' in done.stderr
  assert not (tmp_path / 'shards').exists()
  assert run(*flags, **once).returncode == 0  # The same command goes on.


def test_a_part_that_fails_says_why_and_ends_it(run, tmp_path):
  done = run('--data.input=missing', '--output=shards', '--parts=2')
  assert done.returncode == 2
  assert '--data.input=missing does not exist' in done.stdout + done.stderr
