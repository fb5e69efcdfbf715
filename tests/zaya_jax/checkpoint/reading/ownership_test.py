# SPDX-License-Identifier: Apache-2.0
"""What rank 0 asks the lease store before a checkpoint gets its name."""

import contextlib

import pytest

from zaya_jax.checkpoint.reading import high_water, ownership
from zaya_jax.runtime import fence, lease, run_files, supervised


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_STATE_HOME', str(tmp_path / 'state'))
  return str(tmp_path / 'run')


@pytest.fixture
def owned(run_dir):
  """A store in which this process owns the run, in generation 3."""
  run = run_files.run_id(run_dir)
  store = lease.open('local', run_id=run, run_dir=run_dir)
  with contextlib.closing(store):
    token = store.acquire('me', 10)
    fact = {'number': 3, 'start_step': 0, **vars(token)}
    store.write('generation', fact, token)
    yield store, token


@pytest.fixture
def of_generation(run_dir, monkeypatch):
  """Makes this process rank 0 of a generation."""

  def make(number):
    place = supervised.Place(
      rank=0, generation=number, run_dir=run_dir, environment={}
    )
    monkeypatch.setattr(supervised, '_place', place)

  return make


def test_generation_of_this_owner_may_write(owned, of_generation):
  of_generation(3)
  with ownership.using(*owned):
    ownership.check_fence()


def test_without_a_store_nobody_is_asked(of_generation):
  of_generation(3)
  assert ownership.current() is None
  ownership.check_fence()


def test_older_generation_is_fenced(owned, of_generation):
  of_generation(2)
  with ownership.using(*owned):
    with pytest.raises(fence.FencedError, match='knows generation 3 of me'):
      ownership.check_fence()


def test_same_generation_of_another_owner_is_fenced(owned, of_generation):
  of_generation(3)
  store, token = owned
  for other in (lease.Token('you', token.epoch), lease.Token('me', 7)):
    with ownership.using(store, other):
      with pytest.raises(fence.FencedError):
        ownership.check_fence()


def test_store_that_does_not_answer_fails_the_save(
  owned, of_generation, monkeypatch
):
  of_generation(3)
  store, token = owned

  def read(key):
    raise lease.StoreError('the store is away')

  monkeypatch.setattr(store, 'read', read)
  with ownership.using(store, token):
    with pytest.raises(
      ownership.UnconfirmedError, match='the store is away'
    ) as caught:
      ownership.check_fence()
    assert ownership.is_unconfirmed(str(caught.value))
    assert not ownership.is_unconfirmed('the disk is full')


def test_local_lease_is_not_borrowed(run_dir):
  with ownership.borrowed('local', run_dir):
    assert ownership.current() is None


def test_mark_is_kept_in_the_store(owned, run_dir, tmp_path):
  store, token = owned
  mark = high_water.Mark(7, 'x', run_files.run_id(run_dir))
  with ownership.using(store, token):
    high_water.home(run_dir).write(mark)
    assert high_water.read(run_dir) == mark
  assert store.read('high_water')['step'] == 7
  # The file of this user knows nothing of it.
  assert high_water.read(run_dir) is None
  with ownership.using(store, lease.Token('zombie', token.epoch - 1)):
    with pytest.raises(lease.LostError):
      high_water.home(run_dir).write(mark._replace(step=9))
  with ownership.using(store, token):
    assert high_water.read(run_dir) == mark
    high_water.home(run_dir).write(None)
    assert high_water.read(run_dir) is None
