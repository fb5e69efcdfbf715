# SPDX-License-Identifier: Apache-2.0
"""Supervised runs: real processes, which train nothing."""

import json
import os
import sys
import threading
import time

import pytest

from tests.support import fake_rank
from zaya_jax import config as config_lib
from zaya_jax.aegis.supervisor import seals, supervisor
from zaya_jax.checkpoint import errors
from zaya_jax.runtime import faults, fence

PROGRAM = (sys.executable, '-m', fake_rank.__name__)


class Done:
  """A run that has ended."""

  def __init__(self, run_dir, code):
    self.run_dir, self.code = run_dir, code
    self.step, self.value = fake_rank.newest(run_dir)
    lines = (run_dir / 'incidents.jsonl').read_text().splitlines()
    self.rows = [json.loads(line) for line in lines if line]

  def incidents(self, *kinds):
    return [row for row in self.rows if row['kind'] in kinds]

  @property
  def generation(self):
    return fence.newest(str(self.run_dir))


@pytest.fixture
def supervise(tmp_path, monkeypatch):
  """Runs in `tmp_path/NAME` with faults; other words are --aegis flags."""

  def run(injected='', name='run', **aegis):
    monkeypatch.setenv(faults.VARIABLE, injected)
    aegis = {'nodes': ('a', 'b'), 'step_limit_s': 1.0, **aegis}
    config = config_lib.Config(
      run_dir=str(tmp_path / name), aegis=config_lib.AegisConfig(**aegis)
    )
    return Done(tmp_path / name, supervisor.supervise(config, PROGRAM))

  return run


@pytest.fixture(scope='module')
def undisturbed(tmp_path_factory):
  """The value that a run without faults comes to."""
  run_dir = tmp_path_factory.mktemp('undisturbed')
  aegis = config_lib.AegisConfig(nodes=('a', 'b'))
  config = config_lib.Config(run_dir=str(run_dir), aegis=aegis)
  done = Done(run_dir, supervisor.supervise(config, PROGRAM))
  assert (done.code, done.step, done.generation) == (0, 40, 1)
  return done.value


@pytest.mark.parametrize('kind', ['kill', 'segv', 'raise'])
@pytest.mark.parametrize('rank', [0, 1])
def test_a_rank_that_ends_is_followed_by_another_generation(
  supervise, undisturbed, kind, rank
):
  done = supervise(f'{kind}@step:23:{rank}:1')
  assert (done.code, done.value, done.generation) == (0, undisturbed, 2)
  (seen,) = done.incidents('exit')
  assert (seen.get('rank', 0), seen['node']) == (rank, 'ab'[rank])
  assert seen['done']['kind'] == 'restart'


@pytest.mark.parametrize(
  'fault', ['freeze@step', 'hang@data', 'hold_lock@step']
)
def test_a_rank_that_hangs_is_named(supervise, undisturbed, fault):
  done = supervise(f'{fault}:23:1:1')
  assert (done.code, done.value, done.generation) == (0, undisturbed, 2)
  (seen,) = done.incidents('hang')
  # Who holds the lock has entered the step as the others have.
  named = None if fault == 'hold_lock@step' else 'b'
  assert seen['done'].get('node') == named


@pytest.mark.long
def test_a_stall_below_the_limit_is_nothing(supervise, undisturbed):
  done = supervise('stall@step:23:1:1', step_limit_s=20.0)
  assert (done.code, done.value, done.generation) == (0, undisturbed, 1)


def test_a_spare_takes_the_place_of_a_node(supervise, undisturbed):
  done = supervise('kill_node@step:23:1:1', nodes=('a', 'b', 'c'), spares=1)
  assert (done.code, done.value, done.generation) == (0, undisturbed, 2)
  (seen,) = done.incidents('agent_lost')
  assert seen['done']['kind'] == 'replace_node'


def test_without_a_spare_the_job_is_to_be_queued_again(supervise, undisturbed):
  done = supervise('kill_node@step:23:1:1')
  assert (done.code, done.step) == (75, 20)
  assert supervise().value == undisturbed


def test_without_a_spare_it_may_shrink(supervise, undisturbed):
  done = supervise('kill_node@step:23:1:1', shrink=True)
  assert (done.code, done.value, done.generation) == (0, undisturbed, 2)


def test_ranks_that_outlive_their_node_save_nothing(
  supervise, undisturbed, capfd
):
  done = supervise(
    'escape@save:20:0:1,escape@save:20:1:1',
    nodes=('a', 'b'),
    ranks_per_node=2,
    spares=1,
  )
  assert (done.code, done.value, done.generation) == (0, undisturbed, 2)
  assert capfd.readouterr().err.count('generation 1 of') == 2


def test_three_faults(supervise, undisturbed):
  done = supervise('kill@step:13:1:1,freeze@step:24:0:2,segv@step:33:1:3')
  assert (done.code, done.value, done.generation) == (0, undisturbed, 4)


def test_no_progress_ends_with_93(supervise):
  done = supervise('raise@step:3:1:*')
  assert (done.code, done.step, done.generation) == (93, 0, 3)


def test_a_run_in_use_is_refused(supervise, tmp_path):
  with supervisor.lock.RunLock(str(tmp_path / 'run')):
    with pytest.raises(errors.CheckpointError, match='is in use by'):
      supervise()


@pytest.mark.parametrize('frozen', [False, True])
def test_sigterm_ends_with_a_checkpoint(
  supervise, undisturbed, tmp_path, frozen
):
  """A second one does not wait for a rank that hangs."""

  def interrupt():
    log = tmp_path / 'run' / 'aegis' / 'faults.jsonl'
    while not log.exists():
      time.sleep(0.01)
    os.kill(os.getpid(), supervisor.signal.SIGTERM)
    if frozen:
      time.sleep(0.3)
      os.kill(os.getpid(), supervisor.signal.SIGTERM)

  thread = threading.Thread(target=interrupt)
  thread.start()
  kind = 'freeze' if frozen else 'mark'
  done = supervise(f'{kind}@step:23:1:1', step_limit_s=30.0)
  thread.join()
  assert (done.code, done.generation) == (75, 1)
  assert done.step == 20 if frozen else done.step >= 23
  assert supervise().value == undisturbed


def test_checkpoints_after_a_rollback_are_set_aside(tmp_path):
  for step in (5, 10, 15):
    fake_rank.save(tmp_path, step, step)
  (tmp_path / 'checkpoints' / '99').mkdir()  # Of nobody, without a seal.
  found = seals.Seals(str(tmp_path))
  assert found.newest() == 15
  found.roll_back(5)
  assert found.newest() == 5
  aside = {
    p.name.split('-')[0] for p in (tmp_path / 'checkpoints/bad').iterdir()
  }
  assert aside == {'10', '15', '99'}
