# SPDX-License-Identifier: Apache-2.0
"""Checkpoints verified, sealed afterwards and removed."""

import os

import pytest

from zaya_jax.checkpoint import errors, seal
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
