# SPDX-License-Identifier: Apache-2.0
"""Checkpoints verified, sealed afterwards and removed."""

import os
import shutil

import pytest

from zaya_jax.checkpoint import errors, folders, seal, seal_key
from zaya_jax.checkpoint.actions import upkeep


def test_verify_reads_all_and_its_exit_code_tells(run, act):
  code, lines = act('verify')
  assert code == 0 and [line['valid'] for line in lines] == [True] * 4
  (run / '2' / 'meta' / 'metadata').write_text('{}')
  facts = seal.read(str(run / '3'))
  facts['fingerprint']['params/scale'] = '0' * 16
  del facts['files']
  seal.write(str(run / '3'), facts)
  code, lines = act('verify')
  assert code == 3
  assert [line.get('reason') for line in lines] == [
    None, 'size', 'fingerprint', None,
  ]  # fmt: skip
  assert 'params/scale' in lines[2]['what']
  code, lines = act('verify', run / '4')
  assert code == 0 and len(lines) == 1


def test_what_has_no_seal_is_sealed_if_it_can_be_read(run, act):
  for step in ('3', '4'):
    os.remove(run / step / seal.NAME)
  (run / '3' / 'state' / 'manifest.ocdbt').write_bytes(b'')
  with pytest.raises(errors.CheckpointError, match='checkpoints/3'):
    act('seal')
  code, lines = act('seal', run / '4')
  assert code == 0 and lines[0]['sealed']
  _, lines = act('verify', run / '4')
  assert lines[0]['valid']
  assert not (run / '3' / seal.NAME).exists()


def test_prune_keeps_what_a_run_would(run, act):
  os.remove(run / '1' / seal.NAME)  # Unknown: not ours to remove.
  _, lines = act('prune', keep=1)
  assert lines == [{'step': 3, 'removed': True}]
  assert sorted(os.listdir(run)) == ['1', '2', '4']


@pytest.mark.parametrize('flags, left', [({}, '4'), ({'keep_every': 3}, '234')])
def test_prune_keeps_what_the_run_itself_would_unless_told(
  run, act, monkeypatch, flags, left
):
  own = {'config': {'checkpoint': {'keep': 1, 'keep_every': 4}}}
  monkeypatch.setattr(upkeep.meta, 'read', lambda _: own)
  act('prune', **flags)
  assert sorted(os.listdir(run)) == sorted({'2', *left})  # And the best.


def test_what_has_a_seal_is_not_sealed_again(run, act):
  os.remove(run / '4' / seal.NAME)
  _, lines = act('seal')
  assert [line['checkpoint'] for line in lines] == [str(run / '4')]


def test_what_an_older_key_has_signed_is_signed_with_the_newest(
  run, act, tmp_path
):
  old, ring, new = (tmp_path / name for name in ('old', 'ring', 'new'))
  old.write_text('o' * 16)
  ring.write_text(f'b:{"n" * 16}\na:{"o" * 16}\n')
  new.write_text(f'b:{"n" * 16}\n')
  bodies = {step: seal.read(str(run / step)) for step in ('2', '4')}
  with seal_key.trusting(str(old)):
    for step, body in bodies.items():
      facts = {k: v for k, v in body.items() if k != 'files'}
      seal.write(str(run / step), facts)
  data = run / '4' / 'meta' / 'metadata'
  kept = data.read_bytes()
  data.write_bytes(kept[::-1])  # What is damaged is not signed.
  with seal_key.trusting(str(ring)):
    with pytest.raises(seal.BrokenError, match='meta/metadata has changed'):
      act('seal')
    data.write_bytes(kept)
    _, lines = act('seal')
    assert lines[-1]['checkpoint'] == str(run / '4')
    assert act('seal') == (0, [])
  with seal_key.trusting(str(new)):
    for step, body in bodies.items():
      assert folders.check(str(run / step)) == body
    with pytest.raises(seal.BrokenError) as unsigned:
      folders.check(str(run / '3'))  # Nobody has signed it: nor do we.
    assert unsigned.value.reason == 'key'


def test_run_goes_on_without_its_newest_when_that_is_accepted(
  run, act, make_manager
):
  shutil.rmtree(run / '4')
  with make_manager() as checkpoints:
    with pytest.raises(errors.CheckpointError, match='step 4 was sealed'):
      checkpoints.check(checkpoints.latest_step())
  assert act('accept') == (0, [{'step': 3, 'accepted': True}])
  with make_manager() as checkpoints:
    checkpoints.check(checkpoints.latest_step())
  shutil.rmtree(run)
  assert act('accept') == (0, [{'step': None, 'accepted': True}])
  with make_manager() as checkpoints:
    checkpoints.check(checkpoints.latest_step())
