# SPDX-License-Identifier: Apache-2.0
"""For how long a supervisor owns its run."""

import asyncio
import math
import time

import pytest

from zaya_jax import config as config_lib
from zaya_jax.aegis.supervisor import tenure
from zaya_jax.runtime import lease

TOKEN = lease.Token('me', 3)


class Store:
  """A store that answers as a test says."""

  expires = True

  def __init__(self, *answers):
    self.answers, self.released = list(answers), []

  def acquire(self, owner, ttl_s):
    if self.answers and isinstance(self.answers[0], Exception):
      raise self.answers.pop(0)
    return TOKEN

  def renew(self, token):
    answer = self.answers.pop(0) if self.answers else lease.LostError('gone')
    if isinstance(answer, Exception):
      raise answer
    return answer

  def release(self, token):
    self.released.append(token)

  def close(self):
    pass


@pytest.fixture
def hold(tmp_path, monkeypatch):
  """A function: a store -> a tenure of it, of a tenth of a second."""

  def hold(store, lease_s=1.0):
    monkeypatch.setattr(lease, 'open', lambda *_, **__: store)
    monkeypatch.setattr(tenure, '_POLL_S', 0.01)
    aegis = config_lib.AegisConfig(lease_s=lease_s)
    config = config_lib.Config(run_dir=str(tmp_path), aegis=aegis)
    return tenure.Tenure(config)

  return hold


def test_run_is_held_for_as_long_as_the_store_says(hold):
  later = time.monotonic() + 50
  store = Store()
  with hold(store) as held:
    assert 0 < held.remaining_s() <= 1.0
    store.answers = [lease.StoreError('away'), later]
    asyncio.run(held.keep())  # Until the store says that it is lost.
    assert held._until == later
    assert held.lost == 'gone'
  assert store.released == [TOKEN]


def test_run_is_not_held_any_more_when_the_store_is_away(hold):
  store = Store()
  with hold(store) as held:
    store.answers = [lease.StoreError('away')] * 9
    asyncio.run(held.keep())
    assert held.remaining_s() == 0.0


def test_lease_of_the_kernel_has_no_end(hold):
  store = Store()
  store.expires = False
  with hold(store) as held:
    assert held.remaining_s() == math.inf


def test_lease_of_a_supervisor_that_was_killed_is_waited_for(hold):
  with hold(Store(lease.HeldError('held'), lease.HeldError('held'))) as held:
    assert held.token == TOKEN


def test_run_that_somebody_holds_is_refused(hold):
  store = Store()

  def acquire(owner, ttl_s):
    raise lease.HeldError('held by another')

  store.acquire = acquire
  held = hold(store)
  with pytest.raises(lease.HeldError, match='held by another'):
    with held:
      pass
