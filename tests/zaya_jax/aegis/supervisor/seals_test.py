# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as a supervisor sees them, and those that it sets aside."""

from tests.support import fake_rank
from zaya_jax.aegis.supervisor import seals
from zaya_jax.checkpoint import seal
from zaya_jax.checkpoint.reading import high_water


def test_only_sealed_checkpoints_count(tmp_path):
  found = seals.Seals(str(tmp_path))
  assert (found.steps(), found.newest()) == ((), None)
  for step in (10, 5):
    fake_rank.save(tmp_path, step, step)
  (tmp_path / 'checkpoints' / '99').mkdir()
  assert (found.steps(), found.newest()) == ((5, 10), 10)


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


def test_rollback_takes_the_mark_of_the_newest_down(tmp_path):
  for step in (5, 10, 15):
    fake_rank.save(tmp_path, step, step)
  newest = seal.read(str(tmp_path / 'checkpoints' / '15'))
  high_water.set_to(str(tmp_path), newest)
  seals.Seals(str(tmp_path)).roll_back(10)
  assert high_water.read(str(tmp_path)).step == 10
