# SPDX-License-Identifier: Apache-2.0
"""A lease in a fake API server that conflicts, fails, hangs and loses."""

import datetime
import traceback

import pytest

pytest.importorskip('kubernetes', reason="needs the extra 'kubernetes'")

from tests.support import kube as kube_lib
from zaya_jax.runtime import lease, run_files
from zaya_jax.runtime.lease import api_server, kube


@pytest.fixture
def server(tmp_path, monkeypatch):
  monkeypatch.delenv('KUBERNETES_SERVICE_HOST', raising=False)
  monkeypatch.delenv('ZAYA_LEASE_ACCEPT', raising=False)
  monkeypatch.setenv('KUBECONFIG', str(tmp_path / 'config'))
  with kube_lib.Server() as running:
    running.write_kubeconfig(tmp_path / 'config')
    yield running


class Clock:
  now = 1000.0

  def __call__(self):
    return self.now


@pytest.fixture
def clock():
  return Clock()


@pytest.fixture
def opened(server, tmp_path, clock):
  stores = []

  def open_(name='run', address='kubernetes://training'):
    folder = tmp_path / name
    folder.mkdir(exist_ok=True)
    store = lease.open(address, run_id=run_files.run_id(folder), run_dir=folder)
    store._now = clock
    stores.append(store)
    return store

  yield open_
  for store in stores:
    store.close()


def test_owner_is_one_and_its_epoch_grows(opened, server):
  first, second = opened(), opened()
  assert first.holder() is None
  token = first.acquire('a', 20)
  assert token == lease.Token('a', 1)
  assert first.holder() == second.holder() == token
  with pytest.raises(lease.HeldError, match='by a .epoch 1.') as caught:
    second.acquire('b', 20)
  assert caught.value.holder == token
  first.release(token)
  assert second.holder() is None
  assert second.acquire('b', 20).epoch == 2
  [path] = server.objects
  assert path == (
    '/apis/coordination.k8s.io/v1/namespaces/training/leases/zaya-jax-'
    + first.run_id
  )
  spec = server.objects[path]['spec']
  assert spec['holderIdentity'] == 'b'
  assert spec['leaseDurationSeconds'] == 20 and spec['leaseTransitions'] == 2
  # Its fraction must be there.
  datetime.datetime.strptime(spec['renewTime'], '%Y-%m-%dT%H:%M:%S.%f%z')


def test_silent_owner_is_replaced_after_a_whole_ttl_and_not_before(
  opened, clock
):
  first, second = opened(), opened()
  old = first.acquire('a', 20)
  clock.now += 100  # Whatever was before it looked does not count.
  with pytest.raises(lease.HeldError, match='for 20.0 s more'):
    second.acquire('b', 20)
  clock.now += 19.9
  with pytest.raises(lease.HeldError, match='for 0.1 s more'):
    second.acquire('b', 20)
  clock.now += 0.1
  assert second.acquire('b', 20) == lease.Token('b', 2)
  with pytest.raises(lease.LostError, match='ran out'):
    first.renew(old)
  first._deadline = float('inf')  # A clock that stood still.
  with pytest.raises(lease.LostError, match='b .epoch 2. owns it'):
    first.renew(old)
  with pytest.raises(lease.LostError, match='b .epoch 2. owns it'):
    first.write('generation', {'number': 9}, old)
  first.release(old)
  assert second.holder() == lease.Token('b', 2)


@pytest.mark.parametrize('counts', [True, False])
def test_each_renewal_begins_the_wait_anew(opened, clock, monkeypatch, counts):
  if not counts:  # All look like the first.
    monkeypatch.setattr(kube.secrets, 'token_hex', lambda n: '0' * (2 * n))
  # A wall clock that stands still must not look like silence.
  monkeypatch.setattr(
    kube, '_now', lambda: datetime.datetime(2026, 1, 1, 0, 0, 0, 1)
  )
  first, second = opened(), opened()
  second._renewal = 'none'
  token = first.acquire('a', 20)
  for _ in range(2):
    with pytest.raises(lease.HeldError):
      second.acquire('b', 20)
    clock.now += 15
    assert first.renew(token) == clock.now + 20
  if counts:
    with pytest.raises(lease.HeldError):
      second.acquire('b', 20)
  else:
    second.acquire('b', 20)


def test_facts_are_written_by_the_owner_alone(opened):
  owner, rank = opened(), opened()
  old = owner.acquire('a', 20)
  rank.write('generation', {'number': 1}, old)
  owner.release(old)
  with pytest.raises(lease.LostError):
    rank.write('generation', {'number': 9}, old)
  new = owner.acquire('a', 20)
  with pytest.raises(lease.LostError):
    rank.write('generation', {'number': 9}, old)
  assert rank.read('generation') == {'number': 1}
  owner.write('generation', {'number': 2}, new)
  owner.renew(new)
  assert rank.read('generation') == {'number': 2}
  assert rank.read('high_water') is None


@pytest.mark.parametrize('compares', [True, False])
def test_write_and_change_of_owner_at_one_time_leave_one(
  opened, monkeypatch, compares
):
  """The run changes hands between the look at its owner and the write."""
  first, second, third = opened(), opened(), opened()
  old = first.acquire('a', 20)
  get, turns = first._get, iter([1])

  def get_then_lose():
    found = get()
    for _ in turns:
      second._held = old
      second.release(old)
      third.acquire('b', 20)
      if not compares:
        found.metadata.resource_version = None
    return found

  monkeypatch.setattr(first, '_get', get_then_lose)
  if compares:
    with pytest.raises(lease.LostError, match='b .epoch 2. owns it'):
      first.write('generation', {'number': 9}, old)
    assert third.read('generation') is None
  else:
    first.write('generation', {'number': 9}, old)
    assert third.holder() == old


def test_memory_of_the_run_directory_is_that_of_the_newest_owner(
  opened, server, monkeypatch
):
  owner, rank = opened(), opened()
  token = owner.acquire('a', 20)
  write = rank._write

  def write_then_pause(*fact):
    write(*fact)
    owner.release(token)
    owner.write('generation', {'number': 2}, owner.acquire('b', 20))

  monkeypatch.setattr(rank, '_write', write_then_pause)
  rank.write('generation', {'number': 1}, token)
  server.objects.clear()
  assert owner.read('generation') == {'number': 2}


@pytest.mark.parametrize('compares', [True, False])
def test_quarantine_loses_no_update(opened, monkeypatch, compares):
  first, second = opened(), opened('other')
  first.update_site('quarantine', lambda old: {'a': 1})
  late = ['late']

  def add(old):
    if late:  # Another run is faster.
      first.update_site('quarantine', lambda now: {**now, late.pop(): 2})
    return {**old, 'b': 3}

  if not compares:
    put = second._maps.replace_namespaced_config_map

    def put_anyway(name, namespace, body, **more):
      body.metadata.resource_version = None
      return put(name, namespace, body, **more)

    second._maps.replace_namespaced_config_map = put_anyway
  second.update_site('quarantine', add)
  expected = {'a': 1, 'late': 2, 'b': 3} if compares else {'a': 1, 'b': 3}
  assert first.read_site('quarantine') == expected
  assert opened(address='kubernetes://training/mine').read_site('x') is None


def test_two_that_make_the_first_entry_lose_none(opened):
  first, second = opened(), opened('other')
  late = ['late']

  def add(old):
    if late:
      first.update_site('quarantine', lambda now: {late.pop(): 1})
    return {**(old or {}), 'b': 2}

  assert second.update_site('quarantine', add) == {'late': 1, 'b': 2}


@pytest.mark.parametrize('fault', [429, 500, 503, 'lose', 'hang'])
def test_failing_server_is_one_sentence_and_the_deadline_stands(
  opened, server, clock, monkeypatch, fault
):
  monkeypatch.setattr(api_server, 'REQUEST_S', (0.2, 0.2))
  owner = opened()
  token = owner.acquire('a', 20)
  asks = (
    lambda: owner.renew(token),
    owner.holder,
    lambda: owner.read('generation'),
    lambda: owner.write('generation', {'number': 1}, token),
    opened,
  )
  for ask in asks:
    server.faults.append(fault)
    with pytest.raises(lease.StoreError, match='does not answer') as caught:
      ask()
    text = ''.join(traceback.format_exception(caught.value))
    assert '\n' not in str(caught.value) and 'correct-horse' not in text
    assert caught.value.exit_code == 75
  owner.renew(token)
  clock.now += 20
  with pytest.raises(lease.LostError, match='ran out'):
    owner.renew(token)


def test_acquisition_with_a_lost_answer_is_made_anew_at_once(opened, server):
  owner, other = opened(), opened()
  owner.release(owner.acquire('a', 20))
  server.faults.extend([None, None, 'lose'])  # Two looks, then the change.
  with pytest.raises(lease.StoreError):
    owner.acquire('a', 20)
  assert other.holder() == lease.Token('a', 2)
  with pytest.raises(lease.HeldError):
    other.acquire('b', 20)
  token = owner.acquire('a', 20)
  assert token == owner.holder() == lease.Token('a', 3)
  with pytest.raises(lease.LostError):
    owner.write('generation', {'number': 9}, lease.Token('a', 2))


def test_lease_whose_creation_was_not_answered_is_used(opened, server):
  owner = opened()
  server.faults.extend([None, 'lose'])
  with pytest.raises(lease.StoreError):
    owner.acquire('a', 20)
  assert owner.acquire('a', 20).epoch == 1


@pytest.mark.parametrize('status', [401, 403])
def test_refused_credentials_name_the_role(opened, server, status):
  server.faults.append(status)
  with pytest.raises(lease.StoreError, match='has the role') as caught:
    opened()
  assert caught.value.exit_code == 2


def test_deleted_lease_is_lost_and_refused_until_it_is_accepted(
  opened, server, monkeypatch
):
  owner = opened()
  owner.release(owner.acquire('a', 20))
  token = owner.acquire('a', 20)
  owner.write('generation', {'number': 7}, token)
  server.objects.clear()
  with pytest.raises(lease.LostError):
    owner.renew(token)
  with pytest.raises(lease.StoreError, match='was emptied') as caught:
    owner.acquire('a', 20)
  identity = str(caught.value).split('ZAYA_LEASE_ACCEPT=')[1].split()[0]
  monkeypatch.setenv('ZAYA_LEASE_ACCEPT', identity)
  assert owner.acquire('b', 20) == lease.Token('b', 3)
  assert owner._read('generation') == {'number': 7}


@pytest.mark.parametrize(
  'address', ['kubernetes://', 'kubernetes://Upper', 'kubernetes://a/b/c']
)
def test_address_that_is_none_is_refused(tmp_path, address):
  with pytest.raises(lease.StoreError, match='NAMESPACE') as caught:
    lease.open(address, run_id='0' * 32, run_dir=tmp_path)
  assert caught.value.exit_code == 2


def test_no_kubeconfig_is_one_sentence(tmp_path, monkeypatch):
  monkeypatch.delenv('KUBERNETES_SERVICE_HOST', raising=False)
  monkeypatch.setenv('KUBECONFIG', str(tmp_path / 'none'))
  with pytest.raises(lease.StoreError, match='a kubeconfig') as caught:
    lease.open('kubernetes://x', run_id='0' * 32, run_dir=tmp_path)
  assert caught.value.exit_code == 2


def test_value_of_somebody_else_is_one_sentence(opened, server):
  store = opened()
  token = store.acquire('a', 20)
  store.write('generation', {'number': 1}, token)
  [found] = server.objects.values()
  found['metadata']['annotations']['zaya-jax/fact.generation'] = '[]'
  with pytest.raises(lease.StoreError, match='something else') as caught:
    store.read('generation')
  assert caught.value.exit_code == 3
