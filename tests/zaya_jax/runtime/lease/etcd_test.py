# SPDX-License-Identifier: Apache-2.0
"""A lease in three etcd members that are killed, stopped, emptied and slow."""

import base64
import json
import shutil
import sys
import time
import uuid

import pytest

pytest.importorskip('etcd3gw', reason="needs the extra 'etcd'")

from tests.support import etcd as cluster_lib
from tests.support import quick
from zaya_jax.runtime import lease, run_files
from zaya_jax.runtime.lease import endpoints, etcd

pytestmark = cluster_lib.needed


@pytest.fixture(scope='module')
def cluster(tmp_path_factory):
  with cluster_lib.Cluster(tmp_path_factory.mktemp('etcd')) as members:
    yield members


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
  monkeypatch.delenv('ZAYA_LEASE_ACCEPT', raising=False)
  for name in ('USER', 'PASSWORD_FILE', 'CACERT', 'CERT', 'KEY'):
    monkeypatch.delenv(f'ZAYA_ETCD_{name}', raising=False)
  (tmp_path / 'run').mkdir()
  return tmp_path / 'run'


@pytest.fixture
def opened(cluster, run_dir):
  """Opens stores of one run, and of others with the same prefix."""
  prefix = uuid.uuid4().hex
  stores = []

  def open_(folder=run_dir, hosts=cluster.hosts):
    folder.mkdir(exist_ok=True)
    store = lease.open(
      f'etcd://{hosts}/{prefix}',
      run_id=run_files.run_id(folder),
      run_dir=folder,
    )
    stores.append(store)
    return store

  yield open_
  for store in stores:
    store.close()


def eventually(ask, error):
  """The answer of `ask` once it no longer raises `error`."""
  end = time.monotonic() + 60
  while True:
    try:
      return ask()
    except error:
      assert time.monotonic() < end


def test_owner_is_one_and_its_epoch_grows(opened):
  first, second = opened(), opened()
  assert first.holder() is None
  token = first.acquire('a', 60)
  assert token == lease.Token('a', 1)
  assert first.holder() == second.holder() == token
  with pytest.raises(lease.HeldError, match='owned by a .epoch 1.') as caught:
    second.acquire('b', 60)
  assert caught.value.holder == token
  first.release(token)
  first.release(token)  # Nothing is left to do.
  assert second.holder() is None
  assert second.acquire('a', 60).epoch == 2


def test_lease_that_is_not_renewed_is_taken_but_not_before(opened):
  first, second = opened(), opened()
  before = time.monotonic()
  old = first.acquire('a', 1)
  new = eventually(lambda: second.acquire('b', 60), lease.HeldError)
  assert time.monotonic() >= before + 1
  assert new == lease.Token('b', 2)
  with pytest.raises(lease.LostError, match='ran out before'):
    first.renew(old)
  first._deadline = float('inf')  # A clock that stood still.
  with pytest.raises(lease.LostError, match='b .epoch 2. owns it'):
    first.renew(old)
  with pytest.raises(lease.LostError, match='b .epoch 2. owns it'):
    first.write('generation', {'number': 9}, old)
  assert second.read('generation') is None


def test_lease_that_is_renewed_is_not_taken(opened):
  first, second = opened(), opened()
  token = first.acquire('a', 2)
  end = time.monotonic() + 3
  deadline = 0
  while time.monotonic() < end:
    before = time.monotonic()
    deadline, last = first.renew(token), deadline
    assert before + 2 <= deadline <= time.monotonic() + 2
    assert deadline > last
    with pytest.raises(lease.HeldError):
      second.acquire('b', 2)


def test_facts_are_written_by_the_owner_alone(opened):
  owner, rank = opened(), opened()
  old = owner.acquire('a', 60)
  rank.write('generation', {'number': 1}, old)
  owner.release(old)
  with pytest.raises(lease.LostError):  # Nobody owns it.
    rank.write('generation', {'number': 9}, old)
  new = owner.acquire('a', 60)
  with pytest.raises(lease.LostError):
    rank.write('generation', {'number': 9}, old)
  assert rank.read('generation') == {'number': 1}
  owner.write('generation', {'number': 2}, new)
  assert rank.read('generation') == {'number': 2}
  assert rank.read('high_water') is None


def test_write_that_compares_nothing_is_caught(opened, monkeypatch):
  owner = opened()
  old = owner.acquire('a', 60)
  owner.release(old)
  owner.acquire('b', 60)
  without_compare(monkeypatch)
  owner.write('generation', {'number': 9}, old)
  assert owner.read('generation') == {'number': 9}


@pytest.mark.parametrize('compares', [True, False])
def test_only_the_transaction_keeps_two_at_once_apart(
  opened, monkeypatch, compares
):
  """The first one is asked for before it is there."""
  first, second = opened(), opened()
  first.acquire('a', 60)
  monkeypatch.setattr(etcd.Etcd, '_raise_if_held', lambda self: None)
  if compares:
    with pytest.raises(lease.StoreError, match='too many others'):
      second.acquire('b', 60)
    assert first.holder().owner == 'a'
  else:
    without_compare(monkeypatch, least=2)
    second.acquire('b', 60)
    assert first.holder().owner == 'b'


@pytest.mark.parametrize('at_once', [True, False])
def test_copy_with_the_same_id_waits_for_the_run(
  opened, run_dir, tmp_path, monkeypatch, at_once
):
  first = opened()
  token = first.acquire('a', 60)
  shutil.copytree(run_dir, tmp_path / 'copy')
  if at_once:
    monkeypatch.setattr(etcd.Etcd, '_raise_if_held', lambda self: None)
  with pytest.raises(lease.StoreError if at_once else lease.HeldError):
    opened(tmp_path / 'copy').acquire('b', 60)
  first.renew(token)


@pytest.mark.parametrize('key', ['owner', 'lease'])
def test_owner_whose_key_or_lease_somebody_takes_away_has_lost(
  cluster, opened, key
):
  owner = opened()
  token = owner.acquire('a', 60)
  if key == 'owner':
    cluster.ctl('del', owner._owner)
  else:
    cluster.ctl('lease', 'revoke', f'{int(owner._lease):x}')
  with pytest.raises(lease.LostError, match='must acquire the run anew'):
    owner.renew(token)


def without_compare(monkeypatch, least=1):
  """Drops the comparisons of transactions that have `least` or more."""
  transact = etcd.Etcd._transact

  def transact_anyway(self, compare, *more):
    return transact(self, compare if len(compare) < least else [], *more)

  monkeypatch.setattr(etcd.Etcd, '_transact', transact_anyway)


def test_answer_that_was_lost_makes_nobody_an_owner_twice(opened, monkeypatch):
  """The transaction was done, and put to the next member as well."""
  ask = endpoints.Endpoints._ask_member

  def twice(self, member, path, question):
    answer = ask(self, member, path, question)
    return ask(self, member, path, question) if path == '/kv/txn' else answer

  monkeypatch.setattr(endpoints.Endpoints, '_ask_member', twice)
  owner = opened()
  token = owner.acquire('a', 60)
  assert token == owner.holder() == lease.Token('a', 1)
  owner.renew(token)
  with pytest.raises(lease.HeldError):  # Not by the name alone.
    opened().acquire('a', 60)


def test_lease_that_runs_out_before_its_use_is_one_sentence(
  opened, monkeypatch
):
  owner = opened()
  put = owner._put_owner

  def put_late(*claim):
    owner._revoke()
    return put(*claim)

  monkeypatch.setattr(owner, '_put_owner', put_late)
  with pytest.raises(lease.StoreError, match='60 s ran out before'):
    owner.acquire('a', 60)
  assert owner.holder() is None


@pytest.mark.parametrize('i', quick.only(range(3), 0))
def test_any_member_may_be_killed(cluster, opened, i):
  """Long: the members that may not be the first that is asked."""
  owner = opened()
  token = owner.acquire('a', 120)
  cluster.kill(i)
  try:
    eventually(lambda: owner.renew(token), lease.StoreError)
    owner.write('generation', {'number': 1}, token)
    assert owner.read('generation') == {'number': 1}
  finally:
    cluster.start()


@pytest.mark.parametrize('i', quick.only(range(3), 0))
def test_any_member_may_be_cut_off(cluster, opened, i):
  """Long: the members that may not be the first that is asked."""
  owner = opened()
  token = owner.acquire('a', 120)
  with cluster.paused(i):
    eventually(lambda: owner.renew(token), lease.StoreError)
    eventually(
      lambda: owner.write('generation', {'number': 1}, token), lease.StoreError
    )
  cluster.wait()


def test_one_member_of_three_knows_nothing(cluster, opened, monkeypatch):
  monkeypatch.setattr(endpoints, 'REQUEST_S', 0.3)
  owner = opened()
  token = owner.acquire('a', 60)
  cluster.kill(0)
  cluster.kill(1)
  try:
    for ask in (
      lambda: owner.renew(token),
      lambda: owner.read('generation'),
      lambda: owner.write('generation', {'number': 9}, token),
      lambda: opened().acquire('b', 60),
    ):
      with pytest.raises(lease.StoreError, match='does not answer') as caught:
        ask()
      assert '\n' not in str(caught.value) and caught.value.exit_code == 75
    now = time.monotonic
    owner._now = lambda: now() + 60  # No answer is waited for.
    with pytest.raises(lease.LostError, match='ran out before'):
      owner.renew(token)
    owner._now = now
  finally:
    cluster.start()
  with pytest.raises(lease.HeldError):  # By its own old lease.
    eventually(lambda: owner.acquire('a', 60), lease.StoreError)
  eventually(lambda: owner.release(token), lease.StoreError)
  token = eventually(lambda: owner.acquire('a', 60), lease.StoreError)
  assert token.epoch == 2


def test_member_that_does_not_answer_is_given_up(cluster, opened, monkeypatch):
  monkeypatch.setattr(endpoints, 'REQUEST_S', 0.2)
  alone = opened(hosts=f'127.0.0.1:{cluster.ports[0]}')
  with cluster.paused(0):
    with pytest.raises(lease.StoreError, match='no answer in 0.2 s'):
      alone.read('generation')
  cluster.wait()


def test_emptied_store_is_refused_until_it_is_accepted(
  cluster, opened, run_dir, monkeypatch
):
  owner = opened()
  for _ in range(3):
    token = owner.acquire('a', 60)
    owner.write('generation', {'number': 7}, token)
    owner.write('high_water', {'step': 300}, token)
    owner.release(token)
  token = owner.acquire('a', 60)
  cluster.wipe()
  with pytest.raises(lease.LostError):
    owner.renew(token)
  with pytest.raises(lease.StoreError, match='was emptied') as caught:
    owner.acquire('a', 60)
  assert caught.value.exit_code == 2
  [accept] = [w for w in str(caught.value).split() if 'ZAYA_LEASE_ACCEPT=' in w]
  monkeypatch.setenv(*accept.split('='))
  assert owner.acquire('b', 60) == lease.Token('b', 5)
  # Ranks on hosts without the run directory know it again.
  assert owner._read('generation') == {'number': 7}
  assert owner._read('high_water') == {'step': 300}
  monkeypatch.delenv('ZAYA_LEASE_ACCEPT')
  owner.release(lease.Token('b', 5))
  assert owner.acquire('c', 60).epoch == 6


def test_without_a_memory_an_emptied_store_begins_anew(
  cluster, opened, monkeypatch
):
  owner = opened()
  for _ in range(3):
    owner.release(owner.acquire('a', 60))
  cluster.wipe()
  monkeypatch.setattr(owner._memory, 'read', lambda key: None)
  assert owner.acquire('b', 60).epoch == 1


def test_store_that_went_back_in_time_is_refused(cluster, opened, monkeypatch):
  owner = opened()
  for i in range(3):
    token = owner.acquire('a', 60)
    owner.write('generation', {'number': i}, token)
    owner.release(token)
  cluster.ctl('put', f'{owner._run}/epoch', '{"epoch": 2}')
  cluster.ctl('put', f'{owner._run}/facts/generation', '{"number": 1}')
  with pytest.raises(lease.StoreError, match='from an older copy') as caught:
    owner.acquire('a', 60)
  identity = str(caught.value).split('ZAYA_LEASE_ACCEPT=')[1].split()[0]
  monkeypatch.setenv('ZAYA_LEASE_ACCEPT', identity)
  assert owner.acquire('a', 60).epoch == 4
  assert owner.read('generation') == {'number': 2}


def test_run_that_was_local_takes_its_past_along(opened, run_dir, monkeypatch):
  monkeypatch.setenv('XDG_STATE_HOME', str(run_dir.parent / 'state'))
  run = run_files.run_id(run_dir)
  before = lease.open('local', run_id=run, run_dir=run_dir)
  for _ in range(2):
    token = before.acquire('a', 60)
    before.write('generation', {'number': 4}, token)
    before.release(token)
  store = opened()
  assert store.acquire('a', 60).epoch == 3
  assert store._read('generation') == {'number': 4}
  with pytest.raises(lease.StoreError, match='ZAYA_LEASE_ACCEPT=local'):
    before.acquire('b', 60)  # The owner in etcd may be alive.


def test_directory_has_one_owner_whatever_its_id_is(opened, run_dir, tmp_path):
  first = opened()
  token = first.acquire('a', 60)
  (run_dir / 'run_id').unlink()
  second = opened()
  assert first.run_id != second.run_id
  with pytest.raises(lease.HeldError, match='by a as run') as caught:
    second.acquire('b', 60)
  assert first.run_id in str(caught.value)
  assert second.run_id in str(caught.value)
  opened(tmp_path / 'other').acquire('b', 60)
  first.release(token)
  second.acquire('b', 60)


def test_clock_that_jumps_changes_nothing(opened, monkeypatch):
  owner = opened()
  token = owner.acquire('a', 60)
  for now in (0.0, 4e9):
    with monkeypatch.context() as patch:
      patch.setattr(time, 'time', lambda now=now: now)
      assert abs(owner.renew(token) - time.monotonic() - 60) < 30
      assert owner.holder() == token


@pytest.mark.parametrize('compares', [True, False])
def test_quarantine_loses_no_update(opened, tmp_path, monkeypatch, compares):
  first, second = opened(), opened(tmp_path / 'other')
  assert first.read_site('quarantine') is None
  late = ['late']

  def add(old):
    if late:  # Another run is faster.
      first.update_site('quarantine', lambda now: {late.pop(): 1})
    return {**(old or {}), 'b': 2}

  if not compares:
    without_compare(monkeypatch)
  second.update_site('quarantine', add)
  expected = {'late': 1, 'b': 2} if compares else {'b': 2}
  assert first.read_site('quarantine') == expected


def test_value_of_somebody_else_is_one_sentence(cluster, opened):
  store = opened()
  cluster.ctl('put', f'{store._run}/facts/generation', 'seven')
  with pytest.raises(lease.StoreError, match='something else than') as caught:
    store.read('generation')
  assert caught.value.exit_code == 3


@pytest.mark.parametrize(
  'address',
  [
    'etcd://',
    'etcd:///prefix',
    'etcd://127.0.0.1',
    'etcd://127.0.0.1:x',
    'etcd://127.0.0.1:1,,127.0.0.1:2',
    'etcd://zaya:secret@127.0.0.1:1',
    'etcd://127.0.0.1:1/a b',
  ],
)
def test_address_that_is_none_is_refused(run_dir, address):
  with pytest.raises(lease.StoreError, match='HOST:PORT') as caught:
    lease.open(address, run_id='0' * 32, run_dir=run_dir)
  assert caught.value.exit_code == 2
  assert 'secret' not in str(caught.value)


def test_missing_library_is_one_sentence(run_dir, monkeypatch):
  for name in ('etcd', 'endpoints'):
    monkeypatch.delitem(sys.modules, f'zaya_jax.runtime.lease.{name}')
    monkeypatch.delattr(f'zaya_jax.runtime.lease.{name}')
  monkeypatch.setitem(sys.modules, 'etcd3gw', None)
  with pytest.raises(lease.StoreError, match=r'zaya_jax\[etcd\]') as caught:
    lease.open('etcd://127.0.0.1:1', run_id='0' * 32, run_dir=run_dir)
  assert caught.value.exit_code == 2


def test_keys_in_the_store_are_those_of_the_page(cluster, opened):
  store = opened()
  token = store.acquire('a', 60)
  store.write('generation', {'number': 1}, token)
  store.update_site('quarantine', lambda old: {})
  kvs = json.loads(
    cluster.ctl('get', '--prefix', store._prefix, '--write-out=json')
  )['kvs']
  names = [base64.b64decode(kv['key']).decode() for kv in kvs]
  run = f'runs/{store.run_id}'
  assert [name.removeprefix(f'{store._prefix}/') for name in names] == [
    store._dir.removeprefix(f'{store._prefix}/'),
    'identity',
    f'{run}/epoch',
    f'{run}/facts/generation',
    f'{run}/owner',
    'site/quarantine',
  ]
  bound = [name for name, kv in zip(names, kvs, strict=True) if 'lease' in kv]
  assert bound == [store._dir, store._owner]
