# SPDX-License-Identifier: Apache-2.0
"""deploy/supervise.sbatch under a real Slurm: two nodes and a spare."""

import os
import signal
import time

import pytest

from tests.cluster import trial

SPARE = '--aegis.spares=1'
PATIENT = '--aegis.step_limit_s=15'  # Where steps stall for 5.
SBATCH = trial.ROOT / 'deploy' / 'supervise.sbatch'


class Job:
  """A run that Slurm has started."""

  def __init__(self, cluster, site, name):
    self.cluster, self.site = cluster, site
    self.run = trial.Trial(site, name)
    self.number = ''
    self.first, self.second = '', ''  # Nodes.
    self.disturbed = None

  def submit(self, options='', flags=(), **environment):
    words = trial.quoted([*self.site.flags(self.run.run_dir), SPARE, *flags])
    self.number = self.cluster.submit(
      f'--nodes=3 --output={self.run.log} {options} {SBATCH} {words}',
      self.run.environment | environment,
    )
    return self

  def disturb(self, step=20):
    """Waits for the step at which something is to happen."""
    self.run.await_step(step)
    there = self.cluster.job(self.number)['NodeList']
    names = self.cluster.command(f'scontrol show hostnames {there}').split()
    self.first, self.second, *_ = names
    self.disturbed = time.time()

  def state(self):
    return self.cluster.job(self.number)['JobState']

  def wait(self, wait_s=trial.WAIT_S):
    """Waits for the end of the job; returns its state and exit code."""
    alive = ('PENDING', 'RUNNING', 'COMPLETING', 'CONFIGURING', 'REQUEUED')
    found = trial.await_(
      lambda: (
        (x := self.cluster.job(self.number))['JobState'] not in alive and x
      ),
      f'the end of {self.run.name}',
      wait_s,
    )
    return found['JobState'], found['ExitCode']

  def result(self, expected):
    about = self.cluster.job(self.number)
    row = self.run.result(expected, self.disturbed)
    row['code'] = f'{about["JobState"]} {about["ExitCode"]}'
    row['requeued'] = int(about['Restarts'])
    row['drained'] = [n for n, s in self.cluster.states().items() if 'dr' in s]
    row['left'] = len(self.run.left())
    return row

  def processes(self, node, words):
    return sorted(self.site.box.nodes[node].processes(words))

  def rank(self, node):
    """The rank of a node: older than those that stand by."""
    return self.processes(node, f'{self.run.run_dir}/aegis')[0]


@pytest.fixture
def job(cluster, site, request):
  """A function: name -> a run that Slurm ends when the test does."""
  made = []

  def make(name):
    made.append(Job(cluster, site, name))
    return made[-1]

  yield make
  for one in made:
    cluster.cancel(one.number)
  for name, node in site.box.nodes.items():
    if not node.runs:
      node.boot()
      cluster.start_node(name)
  cluster.await_nodes()


def assert_whole(row, *, requeued=0):
  trial.assert_whole(row)
  assert row['requeued'] == requeued


def test_undisturbed_run_equals_that_of_one_machine(job, expected, record):
  one = job('undisturbed').submit()
  one.wait()
  row = record(one.result(expected))
  assert_whole(row)
  assert not row['incidents'] and not row['drained']


def test_killed_rank_is_restarted_on_the_same_nodes(job, expected, record):
  one = job('kill_rank').submit()
  one.disturb()
  os.kill(one.rank(one.second), signal.SIGKILL)
  one.wait()
  row = record(one.result(expected))
  assert_whole(row)
  assert row['incidents'] == ['exit'] and not row['drained']


@pytest.mark.parametrize('victim', ['agent', 'srun'])
def test_lost_agent_gives_its_place_to_the_spare(
  job, expected, record, cluster, victim
):
  one = job(f'kill_{victim}').submit(flags=['--aegis.drain_act'])
  one.disturb()
  words = {
    'agent': (one.second, 'zaya_jax.aegis.agent'),
    'srun': (one.first, f'={one.second} '),
  }
  rank = one.rank(one.second)
  for pid in one.processes(*words[victim]):
    os.kill(pid, signal.SIGKILL)
  there = f'{one.run.run_dir}/aegis'
  trial.await_(
    lambda: rank not in one.processes(one.second, there),
    'the end of its rank',
    30,
  )
  one.wait()
  row = record(one.result(expected))
  assert_whole(row)
  assert row['incidents'] == ['agent_lost'] and row['drained'] == [one.second]


def test_lost_node_gives_its_place_to_the_spare(job, expected, record, site):
  one = job('kill_node').submit()
  one.disturb()
  site.box.nodes[one.second].power_off()
  one.wait()
  row = record(one.result(expected))
  assert_whole(row)
  assert row['incidents'] == ['agent_lost']


def test_loss_of_the_first_node_queues_the_job_again(
  job, expected, record, site
):
  one = job('kill_first_node').submit()
  one.disturb()
  site.box.nodes[one.first].power_off()
  try:
    one.wait(120)
  except TimeoutError:
    pass
  row = record(one.result(expected))
  assert_whole(row, requeued=1)


def test_killed_supervisor_is_queued_again(job, expected, record):
  one = job('kill_supervisor').submit()
  one.disturb()
  for pid in one.processes(one.first, 'zaya_jax.main --mode=supervise'):
    os.kill(pid, signal.SIGKILL)
  one.wait()
  row = record(one.result(expected))
  assert_whole(row, requeued=1)
  assert row['supervisors'] == 2


def test_controller_away_for_a_minute_stops_nothing(
  job, expected, record, cluster
):
  one = job('controller_away').submit(
    flags=[PATIENT],
    ZAYA_JAX_FAULTS=trial.stalls(range(60, 110, 10), 2),
  )
  one.disturb()
  cluster.pause()
  try:
    os.kill(one.rank(one.second), signal.SIGKILL)
    until = time.monotonic() + 60
    trial.await_(lambda: one.run.rows('running')[1:], 'the next generation', 60)
    time.sleep(max(0, until - time.monotonic()))
  finally:
    cluster.resume()
  one.wait()
  row = record(one.result(expected))
  assert_whole(row)
  assert row['incidents'] == ['exit']


def test_cancelled_job_ends_and_can_go_on(job, expected, record, cluster):
  one = job('cancelled').submit()
  one.disturb()
  cluster.command(f'scancel {one.number}')
  trial.await_(lambda: one.state() != 'RUNNING', 'the end', 30)
  trial.await_(lambda: not one.run.left(), 'the end of all ranks', 30)
  time.sleep(3)
  state = one.state()
  cluster.command(f'scancel {one.number}', check=False)  # If it lives again.
  one.submit()
  one.wait()
  row = record(one.result(expected) | {'after_scancel': state})
  assert_whole(row)
  assert state == 'CANCELLED'
  assert one.run.rows('drained'), 'it did not save'


def test_time_limit_saves_and_queues_the_job_again(job, expected, record):
  one = job('time_limit').submit(
    '--time=1 --signal=B:USR1@20',
    [PATIENT],
    # Else it would be done before.
    ZAYA_JAX_FAULTS=trial.stalls(range(21, 120, 6), 1),
  )
  one.run.await_step(20)
  trial.await_(lambda: one.run.rows('stop_requested'), 'the signal', 90)
  one.disturbed = one.run.rows('stop_requested')[0]['time']
  one.wait()
  row = record(one.result(expected))
  # A minute with the start in it may not do at the second time either.
  assert_whole(row, requeued=max(1, row['requeued']))
  assert one.run.rows('drained')


def test_requeued_job_goes_on(job, expected, record, cluster):
  one = job('requeued').submit()
  one.disturb()
  cluster.command(f'scontrol requeue {one.number}')
  one.wait()
  row = record(one.result(expected))
  assert_whole(row, requeued=1)
