# SPDX-License-Identifier: Apache-2.0
"""Supervised runs: real processes, which train nothing.

Each run also makes its decisions again, from its incidents.jsonl.
"""

import itertools
import json
import os
import signal
import sys
import threading
import time

import pytest

from tests.support import fake_rank, quick
from zaya_jax import config as config_lib
from zaya_jax.aegis.supervisor import incidents, replay, supervisor
from zaya_jax.checkpoint import errors, lock
from zaya_jax.runtime import faults, fence

PROGRAM = (sys.executable, '-m', fake_rank.__name__)
ECC = (
  '{},1,2,-;amdgpu 0000:05:00.0: amdgpu: 1 new uncorrectable hardware errors '
  'detected in umc block\n'
)
ORDINARY = {'supervise', 'running', 'sealed', 'done'}


class Done:
  """A run that has ended."""

  def __init__(self, run_dir, code):
    self.run_dir, self.code = run_dir, code
    self.step, self.value = fake_rank.newest(run_dir)
    path = run_dir / 'incidents.jsonl'
    assert replay.replay(path) == []
    lines = path.read_text().splitlines()
    self.rows = [json.loads(line) for line in lines if line]

  def incidents(self, *kinds):
    return [row for row in self.rows if row['kind'] in kinds]

  @property
  def kinds(self):
    return {row['kind'] for row in self.rows}

  @property
  def generation(self):
    return fence.newest(str(self.run_dir))


@pytest.fixture
def supervise(tmp_path, monkeypatch):
  """Runs in `tmp_path/NAME` with faults; other words are --aegis flags.

  `meanwhile` is called with an event that is set when the run is over.
  """

  def run(injected='', name='run', meanwhile=lambda over: None, **aegis):
    monkeypatch.setenv(faults.VARIABLE, injected)
    aegis = {'nodes': ('a', 'b'), 'step_limit_s': 1.0, **aegis}
    config = config_lib.Config(
      run_dir=str(tmp_path / name), aegis=config_lib.AegisConfig(**aegis)
    )
    over = threading.Event()
    helper = threading.Thread(target=meanwhile, args=(over,))
    helper.start()
    try:
      code = supervisor.supervise(config, PROGRAM)
    finally:
      over.set()
      helper.join()
    return Done(tmp_path / name, code)

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


ENDS = [('kill', 0), ('kill', 1), ('segv', 1), ('raise', 0)]


@pytest.mark.parametrize('end', quick.only(ENDS, *ENDS[2:]), ids=str)
def test_a_rank_that_ends_is_followed_by_another_generation(
  supervise, undisturbed, end
):
  """Long: another signal, to each of the ranks."""
  kind, rank = end
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
  with lock.RunLock(str(tmp_path / 'run')):
    with pytest.raises(errors.CheckpointError, match='is in use by'):
      supervise()


@pytest.mark.parametrize('frozen', [False, True])
def test_sigterm_ends_with_a_checkpoint(
  supervise, undisturbed, tmp_path, frozen
):
  """A second one does not wait for a rank that hangs."""

  def interrupt(over):
    log = tmp_path / 'run' / 'aegis' / 'faults.jsonl'
    while not log.exists() and not over.wait(0.01):
      pass
    os.kill(os.getpid(), signal.SIGTERM)
    if frozen:
      time.sleep(0.3)
      os.kill(os.getpid(), signal.SIGTERM)

  kind = 'freeze' if frozen else 'mark'
  done = supervise(
    f'{kind}@step:23:1:1', meanwhile=interrupt, step_limit_s=30.0
  )
  assert (done.code, done.generation) == (75, 1)
  assert done.step == 20 if frozen else done.step >= 23
  assert supervise().value == undisturbed


@pytest.fixture
def watched(supervise, tmp_path):
  """As `supervise`, with a spare and a log of the kernel for each node."""
  logs = (f'kern:{tmp_path}/kmsg.{{node}}',)
  defaults = {'nodes': ('a', 'b', 'c'), 'spares': 1, 'step_limit_s': 0.0}

  def run(injected='', **more):
    return supervise(injected, **{**defaults, 'logs': logs, **more})

  return run


def test_line_of_the_kernel_replaces_the_node(watched, tmp_path):
  def write(over):
    while not over.wait(0.01):
      if list((tmp_path / 'run').glob('at/1/1.5')):
        (tmp_path / 'kmsg.a').write_text(ECC.format(11))  # A program's line.
        over.wait(0.3)
        (tmp_path / 'kmsg.b').write_text(ECC.format(3))
        return

  done = watched(
    'freeze@step:5:0:1',  # All wait for rank 0 until the line is seen.
    meanwhile=write,
    drain=f'touch {tmp_path}/drained.{{node}}',
    drain_act=True,
    step_limit_s=600.0,
  )
  assert done.code == 0
  assert [path.name for path in tmp_path.glob('drained.*')] == ['drained.b']
  (row,) = done.incidents('gpu_memory_uncorrectable')
  assert (row['node'], row['done']['kind']) == ('b', 'replace_node')


def test_node_that_is_not_healthy_is_passed_over(watched, tmp_path):
  (tmp_path / 'bad.b').touch()
  done = watched(health=f'test ! -e {tmp_path}/bad.{{node}}')
  assert done.code == 0
  (row,) = done.incidents('unhealthy')
  assert row['node'] == 'b'
  assert done.rows[0]['state']['nodes'] == ['a', 'b']
  assert not (tmp_path / 'run' / 'at' / '1').exists()


def test_run_shrinks_to_what_divides_its_work(watched, tmp_path):
  for name in 'bde':
    (tmp_path / f'bad.{name}').touch()
  done = watched(
    nodes=tuple('abcde'),
    shrink=True,
    health=f'test ! -e {tmp_path}/bad.{{node}}',
  )
  assert done.code == 0
  kinds = {row['done']['kind'] for row in done.incidents('unhealthy')}
  assert kinds == {'replace_node'}
  state = incidents.last_state(tmp_path / 'run' / 'incidents.jsonl')
  # Two healthy nodes of four are left; three would not have been allowed.
  assert len(state.nodes) == 2 and set(state.nodes) <= {'a', 'c'}


def test_as_many_saves_may_fail_as_the_run_says(tmp_path):
  config = config_lib.Config(
    run_dir=str(tmp_path / 'run'),
    checkpoint=config_lib.CheckpointConfig(max_failed_saves=5),
    aegis=config_lib.AegisConfig(nodes=('a', 'b')),
  )
  assert supervisor.supervise(config, PROGRAM) == 0
  state = incidents.last_state(tmp_path / 'run' / 'incidents.jsonl')
  assert state.policy.failed_saves == 5


def test_calendar_that_jumps_changes_nothing(watched, monkeypatch):
  jumps = itertools.cycle((3600.0, -3600.0, 0.0))
  true = time.time
  monkeypatch.setattr(time, 'time', lambda: true() + next(jumps))
  done = watched(step_limit_s=30.0)
  assert done.code == 0 and done.kinds == ORDINARY
  (running,), (end,) = done.incidents('running'), done.incidents('done')
  assert abs(end['time'] - running['time']) < 60


def test_rule_with_an_error_starts_nothing(watched, tmp_path):
  (tmp_path / 'mine.toml').write_text('[[rule]]\nname = "x"\n')
  with pytest.raises(config_lib.UsageError, match=r'mine\.toml, line 2: '):
    watched(rules=(str(tmp_path / 'mine.toml'),))
  assert not (tmp_path / 'run' / 'at').exists()
  assert not (tmp_path / 'run' / 'incidents.jsonl').exists()
