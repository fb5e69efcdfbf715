# SPDX-License-Identifier: Apache-2.0
"""Deadlines of owners, counted by their own clock, in a store that agrees."""

import pytest

from zaya_jax.runtime import lease


class Store(lease.Store):
  """Takes time for each answer; says yes to all."""

  def __init__(self, run_dir):
    super().__init__('a store', '0' * 32, run_dir)
    self._now = lambda: self.now
    self.now, self.takes_s, self.is_away = 100.0, 3.0, False

  def _answer(self):
    self.now += self.takes_s
    if self.is_away:
      raise lease.StoreError('away')

  def _acquire(self, owner, ttl_s, floor):
    self._answer()
    return lease.Token(owner, floor + 1)

  def _renew(self, token):
    self._answer()

  def _release(self, token):
    self._answer()

  def _write(self, key, value, token):
    self._answer()

  def _read(self, key):
    return None

  def _state(self):
    return 'this one', None

  def holder(self):
    return self._held

  def read_site(self, key):
    return None

  def update_site(self, key, function):
    return function(None)


@pytest.fixture
def store(tmp_path):
  return Store(tmp_path)


def test_lease_counts_from_before_the_question(store):
  token = store.acquire('a', 20)
  assert store.now == 103
  store.now = 119.5
  assert store.renew(token) == 139.5
  assert store.now == 122.5


def test_lease_ends_at_its_deadline_without_a_question(store):
  token = store.acquire('a', 20)
  store.now = 120.0
  with pytest.raises(lease.LostError, match='of 20 s in a store ran out'):
    store.renew(token)
  assert store.now == 120.0


def test_store_that_is_away_leaves_the_deadline(store):
  token = store.acquire('a', 20)
  store.is_away = True
  for _ in range(5):
    with pytest.raises(lease.StoreError):
      store.renew(token)
  assert store.now == 118.0
  store.is_away = False
  assert store.renew(token) == 138.0
  store.is_away, store.now = True, 138.0
  with pytest.raises(lease.LostError):
    store.renew(token)


def test_token_of_somebody_else_is_never_renewed(store):
  token = store.acquire('a', 20)
  for other in (lease.Token('b', 1), lease.Token('a', 2)):
    with pytest.raises(lease.LostError, match='acquire the run anew'):
      store.renew(other)
  store.release(token)
  with pytest.raises(lease.LostError):
    store.renew(token)


def test_release_that_was_not_heard_can_be_repeated(store):
  token = store.acquire('a', 20)
  store.is_away = True
  for _ in range(2):
    with pytest.raises(lease.StoreError):
      store.release(token)
  store.is_away, before = False, store.now
  store.release(token)
  store.release(token)
  assert store.now == before + store.takes_s


def test_epoch_is_above_that_which_the_run_directory_remembers(store, tmp_path):
  assert store.acquire('a', 20).epoch == 1
  assert Store(tmp_path).acquire('b', 20).epoch == 2


def test_memory_that_is_garbled_is_one_sentence(store, tmp_path):
  (tmp_path / 'aegis' / 'lease').mkdir(parents=True)
  (tmp_path / 'aegis' / 'lease' / 'store.json').write_text('{')
  with pytest.raises(lease.StoreError, match='holds no fact') as caught:
    store.acquire('a', 20)
  assert caught.value.exit_code == 3


def test_names_of_owners_differ():
  assert lease.owner_name() != lease.owner_name()
