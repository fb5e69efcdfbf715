# SPDX-License-Identifier: Apache-2.0
"""Whatever the order of many owners' steps: one at a time, and no way back.

Owners acquire, renew, write with new and with old tokens, release, pause and
crash, in an order drawn by a seed, step by step: between any two requests, or
any two files, others may do theirs. Answers are lost.
"""

import dataclasses
import functools
import os
import random
import uuid

import pytest

from tests.support import etcd as cluster_lib
from tests.support import kube as kube_lib
from tests.support import turns as turns_lib
from zaya_jax.runtime import lease, run_files
from zaya_jax.runtime.lease import facts, local, locks

OWNERS, LIVES, ACTIONS, TTL_S = 3, 2, 9, 20


@dataclasses.dataclass
class History:
  """What owners were told, in the order of the telling."""

  now: float = 1000.0
  acquired: list[lease.Token] = dataclasses.field(default_factory=list)
  # Who believes to own the run, and until when.
  owned: dict[lease.Token, float] = dataclasses.field(default_factory=dict)
  writes: int = 0
  number: int = 0  # The newest that was written or read.

  def check_one(self):
    owned = [token for token, end in self.owned.items() if end > self.now]
    assert len(owned) <= 1, f'two at one time: {owned}'

  def acquire(self, token, end):
    newest = self.acquired[-1].epoch if self.acquired else 0
    assert token.epoch > newest, f'{token} after {newest}'
    self.acquired.append(token)
    self.owned[token] = end

  def accept(self, token):
    assert token == self.acquired[-1], f'{token} after {self.acquired[-1]}'
    self.writes += 1
    self.number = max(self.number, token.epoch)

  def read(self, number, before):
    assert number >= before, f'{number} after {before}'
    self.number = max(self.number, number)


def live(name, store, draw, history):
  """One process: it does what is drawn until it crashes or has had enough."""
  mine = []
  try:
    for _ in range(ACTIONS):
      try:
        _act(name, store, draw, history, mine)
      except lease.StoreError:  # Nobody knows whether it was done.
        pass
  finally:
    for token in mine:
      history.owned.pop(token, None)
    store.close()  # So does the kernel.


def _act(name, store, draw, history, mine):
  if draw.random() < 0.2:
    before = history.number
    history.read((store.read('generation') or {}).get('number', 0), before)
    return
  token = mine[-1] if mine else None
  if token not in history.owned:
    try:
      before = history.now
      mine.append(store.acquire(name, TTL_S))
      history.acquire(mine[-1], before + TTL_S)
    except lease.HeldError:
      pass
    return
  action = draw.choice(['renew', 'write', 'write', 'write old', 'release'])
  try:
    if action == 'renew':
      end = store.renew(token)
      assert token == history.acquired[-1]
      history.owned[token] = end
    elif action == 'release':
      history.owned.pop(token)
      store.release(token)
    else:
      old = history.acquired if action == 'write old' else [token]
      writer = draw.choice(old)
      store.write('generation', {'number': writer.epoch}, writer)
      history.accept(writer)
  except lease.LostError:
    if action == 'renew':
      history.owned.pop(token, None)


def play(seed, open_, between=lambda turns, history: None, crash_share=0.02):
  """Lets owners live; gives what they were told."""
  turns, history = turns_lib.Turns(seed), History()

  def lives(i):
    for life in range(LIVES):
      draw = random.Random(f'{seed} {i} {life}')
      store = open_(turns)
      store._now = lambda: history.now
      live(f'owner {i}.{life}', store, draw, history)

  for i in range(OWNERS):
    turns.add(lambda i=i: lives(i))

  def step():
    between(turns, history)
    history.check_one()

  turns.run(step, crash_share)
  return history


def giving(turns, function):
  """The function, which gives its turn away first."""

  def give(*args, **more):
    turns.give()
    return function(*args, **more)

  return give


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_STATE_HOME', str(tmp_path / 'state'))
  monkeypatch.delenv('ZAYA_LEASE_ACCEPT', raising=False)
  monkeypatch.setattr(locks, '_PAUSE_S', 0.0)
  (tmp_path / 'run').mkdir()
  run_files.run_id(tmp_path / 'run')
  return tmp_path / 'run'


@pytest.fixture
def local_home(run_dir, monkeypatch):
  """Opens local stores; each file and each lock is a turn."""
  flock, read, write = locks.fcntl.flock, facts.Folder.read, facts.Folder.write

  def open_(turns):
    monkeypatch.setattr(locks.fcntl, 'flock', giving(turns, flock))
    monkeypatch.setattr(facts.Folder, 'read', giving(turns, read))
    monkeypatch.setattr(facts.Folder, 'write', giving(turns, write))
    return lease.open(
      'local', run_id=run_files.run_id(run_dir), run_dir=run_dir
    )

  def forever(turns, history):
    history.owned = dict.fromkeys(history.owned, float('inf'))

  return open_, forever


@pytest.fixture
def kube_home(run_dir, monkeypatch):
  """Opens stores of a fake API server; each request is a turn."""
  pytest.importorskip('kubernetes', reason="needs the extra 'kubernetes'")
  from zaya_jax.runtime.lease import api_server

  monkeypatch.delenv('KUBERNETES_SERVICE_HOST', raising=False)
  config = run_dir.parent / 'config'
  monkeypatch.setenv('KUBECONFIG', str(config))
  ask = api_server.ApiServer.ask
  with kube_lib.Server() as server:
    server.write_kubeconfig(config)

    def open_(turns):
      monkeypatch.setattr(api_server.ApiServer, 'ask', giving(turns, ask))
      while True:
        try:
          return lease.open(
            'kubernetes://x', run_id=run_files.run_id(run_dir), run_dir=run_dir
          )
        except lease.StoreError:
          pass

    def between(turns, history):
      if turns.random.random() < 0.2:
        history.now += turns.random.uniform(1, TTL_S)
      server.faults.clear()
      if turns.random.random() < 0.1:
        server.faults.append(turns.random.choice(['lose', 500]))

    yield open_, between


@pytest.fixture(scope='module')
def cluster(tmp_path_factory):
  with cluster_lib.Cluster(tmp_path_factory.mktemp('etcd')) as members:
    yield members


@pytest.fixture
def etcd_home(cluster, run_dir, monkeypatch):
  """Opens stores of three members; each request is a turn.

  The cluster ends leases when the order says so, which is sooner than their
  owners expect: who believes what until when is not asked here.
  """
  from etcd3gw import exceptions

  from zaya_jax.runtime.lease import endpoints, etcd

  real, prefix, opened = endpoints.Endpoints._ask_member, uuid.uuid4().hex, []

  def open_(turns):
    def ask(self, *question):
      turns.give()
      is_lost = turns.random.random() < 0.1
      answer = real(self, *question)
      if is_lost:
        raise exceptions.ConnectionTimeoutError('timed out')
      return answer

    monkeypatch.setattr(endpoints.Endpoints, '_ask_member', ask)
    while True:
      try:
        address = f'etcd://{cluster.hosts}/{prefix}'
        run_id = run_files.run_id(run_dir)
        opened.append(lease.open(address, run_id=run_id, run_dir=run_dir))
        return opened[-1]
      except lease.StoreError:
        pass

  def between(turns, history):
    history.owned = dict.fromkeys(history.owned, history.now)
    if not opened or turns.random.random() > 0.15:
      return
    store = opened[-1]
    ask = functools.partial(
      real, store._endpoints, store._endpoints._members[0]
    )
    question = {'key': etcd._encode(store._owner)}
    for kv in ask('/kv/range', question).get('kvs', []):
      ask('/lease/revoke', {'ID': kv['lease']})

  return open_, between


def _check(histories):
  """They were lively enough to show something."""
  assert sum(len(history.acquired) for history in histories) > 5
  assert sum(history.writes for history in histories) > 5


def test_local_owners_are_one_at_a_time(local_home):
  _check([play(seed, *local_home) for seed in range(6)])


def test_owners_in_kubernetes_are_one_at_a_time(kube_home):
  _check([play(seed, *kube_home) for seed in range(6)])


@cluster_lib.needed
def test_owners_in_etcd_are_one_at_a_time(etcd_home):
  pytest.importorskip('etcd3gw', reason="needs the extra 'etcd'")
  _check([play(seed, *etcd_home) for seed in range(6)])


def found(home):
  """What an order among a few shows of something broken."""
  for seed in range(20):
    try:
      play(seed, *home)
    except AssertionError as error:
      return str(error)
  return ''


def test_local_home_without_its_locks_is_found(local_home, monkeypatch):
  def take_nothing(path):
    return locks.Lock(path, os.open(path, os.O_RDONLY))

  monkeypatch.setattr(locks, '_flock', lambda *unused: None)
  monkeypatch.setattr(locks, 'take_folder', take_nothing)
  assert found(local_home)


def test_local_write_that_does_not_ask_for_the_owner_is_found(
  local_home, monkeypatch
):
  class Anybody:
    __eq__ = lambda self, other: True
    __ne__ = lambda self, other: False

  monkeypatch.setattr(local.Local, '_holder', lambda self: Anybody())
  assert ' after ' in found(local_home)


def test_kubernetes_without_versions_is_found(kube_home, monkeypatch):
  from zaya_jax.runtime.lease import kube

  put = kube.Kubernetes._put

  def put_anyway(self, changed):
    changed.metadata.resource_version = None
    return put(self, changed)

  monkeypatch.setattr(kube.Kubernetes, '_put', put_anyway)
  assert ' after ' in found(kube_home)


def test_kubernetes_without_the_wait_is_found(kube_home, monkeypatch):
  from zaya_jax.runtime.lease import kube

  monkeypatch.setattr(
    kube.Kubernetes, '_raise_if_held', lambda self, found: None
  )
  assert found(kube_home)


@cluster_lib.needed
def test_etcd_without_its_comparison_is_found(etcd_home, monkeypatch):
  pytest.importorskip('etcd3gw', reason="needs the extra 'etcd'")
  from zaya_jax.runtime.lease import etcd

  transact = etcd.Etcd._transact

  def transact_anyway(self, compare, *more):
    # The identity of the store stays.
    return transact(self, compare if len(more[0]) < 2 else [], *more)

  monkeypatch.setattr(etcd.Etcd, '_transact', transact_anyway)
  assert ' after ' in found(etcd_home)
