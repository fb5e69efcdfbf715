# SPDX-License-Identifier: Apache-2.0
"""Several processes, really started, beside one with as many devices.

Few starts: a process needs seconds to import and to compile, and they share two
cores. Programs of the training step are compiled by each process.
"""

import contextlib
import json
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from pipelines import errors
from tests.support import fake_srun, meeting, mesh_table, tiny, xla
from zaya_jax import config as config_lib
from zaya_jax import main
from zaya_jax.checkpoint import folders
from zaya_jax.checkpoint.actions import listing
from zaya_jax.runtime import session

ROOT = pathlib.Path(__file__).parents[3]
EVERY, COMPARED = 6, 20
PATIENCE_S = 150  # Of a slow machine.
SETTINGS = [
  *tiny.FLAGS,
  *f"""
  --num_steps=100000
  --model.num_layers=1
  --data.batch_size=8
  --optim.schedule=constant
  --optim.warmup_steps=2
  --checkpoint.every={EVERY}
  --checkpoint.keep=100000
  --log.every=1
  --eval.batches=1
  --eval.every=0
  --generate.max_tokens=1
  --prompt=1
  --nolog.tensorboard
""".split(),
]
PROGRAM = ('zaya_jax.main', *SETTINGS, f'--data.input={__file__}')
# Of four processes with two devices each: every axis, of both widths, most of
# them from process to process.
MESHES = (
  '--mesh.replica=8',
  '--mesh.fsdp=8',
  '--mesh.fsdp=2 --mesh.expert=2 --mesh.context=2',
  '--mesh.expert=2 --mesh.context=4 --mesh.context_mode=ring',
)


_started = []


@pytest.fixture(scope='module', autouse=True)
def nothing_is_left():
  """Ends what a test has started and not awaited."""
  yield
  for process, out in _started:
    if process.poll() is None:
      for path in out.glob('*.pid'):
        with contextlib.suppress(ProcessLookupError):  # It has ended.
          os.kill(int(path.read_text()), signal.SIGKILL)
      process.wait()


def start(out, *command, tasks=2, **environment):
  """Starts `tasks` processes of a module through the fake srun."""
  out.mkdir(exist_ok=True)
  environment |= {
    'FAKE_TASKS': str(tasks),
    'FAKE_OUT': str(out),
    'SLURM_JOB_ID': str(random.randrange(10**6)),
    'XLA_FLAGS': ' '.join(
      ['--xla_force_host_platform_device_count=2', *xla.fast_compile()]
    ),
  }
  process = subprocess.Popen(
    [sys.executable, fake_srun.__file__, sys.executable, '-m', *command],
    cwd=ROOT,
    env={**os.environ, **environment},
  )
  _started.append((process, out))
  return process


def job(out, run_dir, *args, **options):
  """Starts a run."""
  wait = '--distributed.heartbeat_timeout_s=10'
  return start(out, *PROGRAM, f'--run_dir={run_dir}', wait, *args, **options)


def wait_for(found, process, out):
  """Waits until a function finds something."""
  until = time.monotonic() + PATIENCE_S
  while not found():
    assert process.poll() is None, (out / '0').read_text()
    assert time.monotonic() < until
    time.sleep(0.05)


def code_of(process, out):
  """How it ends; one that hangs is told with what all have said."""
  try:
    return process.wait(PATIENCE_S)
  except subprocess.TimeoutExpired:
    said = [path.read_text() for path in sorted(out.glob('[0-9]'))]
    pytest.fail('it does not end:\n' + '\n---\n'.join(said))


def says(path, words):
  return lambda: path.exists() and words in path.read_text()


def newest(run_dir):
  return max(folders.steps(folders.root(str(run_dir))), default=0)


def content(run_dir, step):
  """Hash of all that a checkpoint holds."""
  found = listing.entry(os.path.join(folders.root(str(run_dir)), str(step)))
  assert found['valid']
  return found['state_hash']


def stop(out, process, number):
  os.kill(int((out / f'{process}.pid').read_text()), number)


def losses(run_dir):
  lines = (run_dir / 'metrics.jsonl').read_text().splitlines()
  rows = [row for row in map(json.loads, lines) if 'train/loss' in row]
  rows = {row['step']: row['train/loss'] for row in rows}
  return [rows[step + 1] for step in range(COMPARED)]


@pytest.fixture(scope='module')
def interrupted(tmp_path_factory):
  """A run that was stopped, killed and continued, and its last step."""
  folder = tmp_path_factory.mktemp('interrupted')
  run_dir, out = folder / 'run', folder / 'out'
  process = job(out, run_dir)
  wait_for(says(out / '0', ' 1/100000'), process, out)
  stop(out, 1, signal.SIGTERM)
  assert code_of(process, out) == 75
  step = newest(run_dir)
  for log in ('log.txt', 'logs/process_00001.log'):
    text = (run_dir / log).read_text()
    assert f'SIGTERM: stopped after step {step}' in text
  assert 'step' not in (out / '1').read_text()  # The terminal is process 0's.

  process = job(out, run_dir)
  wait_for(lambda: newest(run_dir) > step, process, out)
  assert f'resumed at step {step}' in (out / '0').read_text()
  stop(out, 1, signal.SIGKILL)
  assert code_of(process, out) == 128 + 9
  assert 'error: another process is gone' in (out / '0').read_text()

  last = (newest(run_dir) // EVERY + 1) * EVERY
  assert job(out, run_dir, f'--num_steps={last}').wait(200) == 0
  return run_dir, last


@pytest.fixture(scope='module')
def undisturbed(interrupted, tmp_path_factory):
  """A run as long at least, until one process cannot write its part."""
  _, last = interrupted
  folder = tmp_path_factory.mktemp('undisturbed')
  run_dir, out = folder / 'run', folder / 'out'
  process = job(out, run_dir)
  wait_for(lambda: newest(run_dir) >= max(last, COMPARED), process, out)
  # To a program this is a full disk; its log is smaller.
  resource.prlimit(
    int((out / '1.pid').read_text()), resource.RLIMIT_FSIZE, (2**14, 2**14)
  )
  assert code_of(process, out) == 3
  return run_dir, (out / '0').read_text()


@pytest.mark.long
def test_one_process_trains_alike(undisturbed, tmp_path):
  run_dir, _ = undisturbed
  settings = [f'--num_steps={COMPARED}', '--mesh.replica=4']
  command = ['zaya_jax', *PROGRAM[1:], *settings, f'--run_dir={tmp_path}/one']
  assert main.main(command) == 0
  expected = losses(tmp_path / 'one')
  np.testing.assert_allclose(losses(run_dir), expected, rtol=0, atol=1e-5)
  assert expected[0] - expected[-1] > 1e-2  # Or any order of data would do.


@pytest.mark.long
def test_stopped_and_killed_run_is_the_undisturbed_one_bit_for_bit(
  interrupted, undisturbed
):
  run_dir, last = interrupted
  assert newest(run_dir) == last
  assert content(run_dir, last) == content(undisturbed[0], last)


@pytest.mark.long
def test_process_that_cannot_write_its_part_is_named_until_all_end(undisturbed):
  run_dir, terminal = undisturbed
  last = newest(run_dir)
  content(run_dir, last)
  for missed in (1, 2, 3):  # Then it is enough: --checkpoint.max_failed_saves.
    assert f'Checkpoint {last + missed * EVERY} was not written to' in terminal
  assert 'process 1: ' in terminal and 'File too large' in terminal
  assert terminal.count('zaya_jax: error:') == 1
  assert 'the older ones are intact' in terminal
  # Orbax prints one of a thread of its own.
  assert 'zaya_jax/checkpoint' not in terminal.replace('checkpoints', '')


@pytest.mark.long
def test_meshes_across_processes_train_as_one_process(tmp_path):
  table = tmp_path / 'table.json'
  process = start(
    tmp_path / 'out', 'tests.support.mesh_table', str(table), *MESHES, tasks=4
  )
  expected = mesh_table.losses(['--mesh.replica=8'])
  assert process.wait(300) == 0
  found = json.loads(table.read_text())
  assert set(found) == set(MESHES)
  for losses_of_mesh in found.values():
    np.testing.assert_allclose(losses_of_mesh, expected, rtol=0, atol=1e-5)
  assert max(expected) - min(expected) > 1e-2


def test_other_settings_are_refused_by_the_name_of_the_flag(tmp_path):
  out = tmp_path / 'out'
  process = job(out, tmp_path / 'run', FAKE_FLAGS_1='--optim.lr=0.5')
  assert code_of(process, out) == 2
  words = 'process 1 was started with --optim.lr=0.5 and process 0 with'
  assert words in (out / '0').read_text()
  assert words in (out / '1').read_text()
  assert 'compil' not in (out / '0').read_text()
  assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('mine, theirs', [('--a=1', ''), ('', '--a=1')])
def test_a_setting_that_only_one_program_knows_is_refused(
  monkeypatch, mine, theirs
):
  first = f'--b=2\n{theirs}'.strip()
  monkeypatch.setattr(session.processes, 'first_says', lambda _: first)
  with pytest.raises(config_lib.UsageError, match='--a=1.*the same program'):
    session._compare(f'--b=2\n{mine}'.strip())


@pytest.mark.parametrize(
  'tasks, place',
  [
    (2, '--distributed.processes=3'),
    # Nobody is there: a port that is closed.
    pytest.param(
      1,
      '--distributed.coordinator=localhost:9 --distributed.processes=2 '
      '--distributed.process=1',
      marks=pytest.mark.long,
    ),
  ],
)
def test_missing_process_is_one_sentence_and_resumable(tmp_path, tasks, place):
  """Long: the same sentence, of a process that finds nobody."""
  out = tmp_path / 'out'
  wait = '--distributed.initialization_timeout_s=1'
  command = (meeting.__name__, f'--run_dir={tmp_path}/run', wait)
  process = start(out, *command, *place.split(), tasks=tasks)
  assert code_of(process, out) == 75
  text = (out / f'{tasks - 1}').read_text()
  assert text.count('did not meet the others at localhost:') == 1
  assert 'Traceback' not in text


@pytest.mark.parametrize(
  'host, listens',
  [('127.0.0.1', True), ('localhost', True), ('node001', False), ('::', False)],
)
def test_processes_of_one_machine_are_not_reached_from_others(host, listens):
  address = f'{host}:8476'
  assert session._listen_at(address) == (address if listens else None)


@pytest.mark.parametrize(
  'error, code, traced',
  [
    (errors.DataError('s3://a is away.', errors.AGAIN), 1, False),
    (errors.DataError('is gone.', errors.UNUSABLE), 3, False),
    (ValueError('a bug'), 1, True),
  ],
)
def test_sentence_comes_without_a_traceback(
  monkeypatch, capsys, caplog, error, code, traced
):
  monkeypatch.setattr(session.beats, 'is_watched', lambda: True)
  monkeypatch.setattr(session, '_reason', [])
  monkeypatch.setattr(session.os, '_exit', sys.exit)
  with pytest.raises(SystemExit) as caught:
    session.fail(error)
  assert caught.value.code == code
  assert str(error) in capsys.readouterr().err
  assert bool(caplog.records) == traced
