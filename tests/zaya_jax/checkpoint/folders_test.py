# SPDX-License-Identifier: Apache-2.0
"""Which directories count as checkpoints."""

import os

from zaya_jax.checkpoint import folders as folders_lib
from zaya_jax.checkpoint import seal
from zaya_jax.runtime import fence, supervised


def make(folder, step, *, sealed=True, says=None):
  path = folder / str(step) / 'state'
  path.mkdir(parents=True)
  (path / 'data').write_text(f'of step {step}')
  if sealed:
    seal.write(str(path.parent), {'step': step if says is None else says})


def test_only_sealed_checkpoints_under_their_own_name_count(tmp_path):
  make(tmp_path, 9)
  make(tmp_path, 10)
  make(tmp_path, 11, sealed=False)
  make(tmp_path, 12, says=9)  # A copy of another.
  (tmp_path / '13').mkdir()
  (tmp_path / '0014').symlink_to(tmp_path / '9')
  (tmp_path / '009').symlink_to(tmp_path / '9')
  (tmp_path / '14.unsealed.orbax-checkpoint-tmp').mkdir()
  (tmp_path / 'notes').mkdir()
  assert folders_lib.steps(str(tmp_path)) == [9, 10]
  assert folders_lib.incomplete(str(tmp_path)) == [
    '0014', '009', '11', '12', '13', '14.unsealed.orbax-checkpoint-tmp',
  ]  # fmt: skip


def test_what_is_measured_later_is_added_to_the_seal(tmp_path):
  make(tmp_path, 7)
  path = str(tmp_path / '7')
  before = seal.read(path)
  folders_lib.amend(path, {'val/loss': 1.5, 'val/bpb': float('nan')})
  folders_lib.amend(path, {'val/zlib': 2.0})
  after = folders_lib.check(path)
  assert after.pop('metrics') == {'val/loss': 1.5, 'val/zlib': 2.0}
  assert after == before
  folders_lib.amend(str(tmp_path / '8'), {'val/loss': 1.5})  # Was not saved.
  assert os.listdir(tmp_path) == ['7']


def test_seal_that_is_not_replaced_still_holds(tmp_path, monkeypatch, caplog):
  make(tmp_path, 7)
  path = str(tmp_path / '7')

  def fail(*_):
    raise OSError('killed')

  monkeypatch.setattr(os, 'replace', fail)
  folders_lib.amend(path, {'val/loss': 1.5})
  assert 'killed' in caplog.text
  assert 'metrics' not in folders_lib.check(path)
  monkeypatch.undo()
  folders_lib.amend(path, {'val/loss': 2.5})
  assert folders_lib.check(path)['metrics'] == {'val/loss': 2.5}


def test_generation_that_was_given_up_amends_no_seal(
  tmp_path, monkeypatch, caplog
):
  make(tmp_path, 7)
  place = supervised.Place(
    rank=0, generation=1, run_dir=str(tmp_path), environment={}
  )
  monkeypatch.setattr(supervised, '_place', place)
  fence.raise_to(str(tmp_path), 2)
  folders_lib.amend(str(tmp_path / '7'), {'val/loss': 1.5})
  assert 'was given up' in caplog.text
  assert 'metrics' not in folders_lib.check(str(tmp_path / '7'))
