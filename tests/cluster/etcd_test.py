# SPDX-License-Identifier: Apache-2.0
"""A run whose owner three members of etcd know: members that are away."""

import os
import shutil
import signal
import time

import pytest

from tests.cluster import box as box_lib
from tests.cluster import trial
from zaya_jax import config as config_lib

pytestmark = pytest.mark.skipif(
  not shutil.which('etcd') or not hasattr(config_lib.AegisConfig(), 'lease'),
  reason="needs Debian's etcd-server, and --aegis.lease",
)
_PORTS = {name: (2379 + 10 * i, 2380 + 10 * i) for i, name in enumerate('abc')}


class Members:
  """Three members on control."""

  def __init__(self, box, folder):
    self._box, self._folder = box, folder
    self._programs = {}
    for name in _PORTS:
      self.start(name)

  @property
  def address(self):
    hosts = ','.join(f'127.0.0.1:{client}' for client, _ in _PORTS.values())
    return f'--aegis.lease=etcd://{hosts}/box'

  def start(self, name):
    client, peer = _PORTS[name]
    url, between = f'http://127.0.0.1:{client}', f'http://127.0.0.1:{peer}'
    all_ = (f'{n}=http://127.0.0.1:{p}' for n, (_, p) in _PORTS.items())
    with (self._folder / f'etcd_{name}.log').open('a') as file:
      self._programs[name] = self._box.start(
        ['etcd', f'--name={name}', f'--data-dir={self._folder}/etcd_{name}']
        + [f'--listen-client-urls={url}', f'--advertise-client-urls={url}']
        + [f'--listen-peer-urls={between}']
        + [f'--initial-advertise-peer-urls={between}']
        + [f'--initial-cluster={",".join(all_)}', '--log-level=warn'],
        stdout=file,
        stderr=file,
      )

  def send(self, name, number):
    os.kill(box_lib.last_process(self._programs[name].pid), number)


@pytest.fixture(scope='module')
def members(box, folder):
  made = Members(box, folder)
  yield made
  for name in _PORTS:
    made.send(name, signal.SIGKILL)


@pytest.fixture
def start(site, members):
  """A function: name -> a run with its lease in etcd, and its flags."""
  made = []

  def make(name):
    flags = ('--aegis.nodes=a,b', members.address)
    made.append(trial.Trial(site, name))
    made[-1].start(*flags)
    return made[-1], flags

  yield make
  for one in made:
    one.close()


def test_killed_member_is_not_noticed(start, members, expected, record):
  run, _ = start('etcd_member_killed')
  run.await_step(20)
  since = time.time()
  members.send('a', signal.SIGKILL)
  row = record(trial.finish(run, expected, since))
  members.start('a')
  trial.assert_whole(row)
  assert row['incidents'] == []


@pytest.mark.parametrize('away_s', [8, 60])
def test_owner_that_cannot_renew_ends_with_75_and_goes_on_later(
  start, members, expected, record, away_s
):
  run, flags = start(f'etcd_away_{away_s}s')
  run.await_step(20)
  since = time.time()
  for name in _PORTS:
    members.send(name, signal.SIGSTOP)
  try:
    time.sleep(min(away_s, 45))
    left = len(run.left())
    time.sleep(max(0, away_s - 45))
  finally:
    for name in _PORTS:
      members.send(name, signal.SIGCONT)
  code = run.wait()
  if code == 75:
    run.start(*flags)
  row = trial.finish(run, expected, since)
  record(row | {'first_code': code, 'ranks_without_lease': left})
  trial.assert_whole(row)
  # The lease is one of 20 seconds, and the run may have been done before.
  assert code == (75 if away_s > 20 else 0)
  assert away_s < 20 or left == 0
