# SPDX-License-Identifier: Apache-2.0
"""--mode=checkpoints: verify, seal, diff, reshape and prune."""

import json
import os

import jax
import numpy as np
import pytest

from zaya_jax import config as config_lib
from zaya_jax.checkpoint import errors, seal
from zaya_jax.checkpoint.actions import hashing, listing
from zaya_jax.checkpoint.reading import lazy, reader


@pytest.fixture
def act(capsys, tmp_path):
  """A function: settings of checkpoints -> (exit code, JSON lines)."""

  def run(action, source=None, output='', **settings):
    config = config_lib.Config(
      mode='checkpoints',
      source=str(source or tmp_path / 'run'),
      output=str(output),
      checkpoint=config_lib.CheckpointConfig(action=action, **settings),
    )
    code = listing.main(config)
    lines = capsys.readouterr().out.splitlines()
    return code, [json.loads(line) for line in lines]

  return run


@pytest.fixture
def run(make_manager, make_state, tmp_path):
  """A run with the checkpoints 1 to 4, of which 2 is the best."""
  (tmp_path / 'run').mkdir()
  (tmp_path / 'run' / 'config.flags').write_text('--seed=3\n')
  with make_manager(keep=9) as checkpoints:
    for step, bpb in ((1, 5.0), (2, 1.0), (3, 4.0), (4, 3.0)):
      meta = {'metrics': {'val/bpb': bpb}, 'config': {'optim': {'lr': step}}}
      state = make_state(step, shards=4)
      checkpoints.save(step, state, data_index=step, meta=meta)
  return tmp_path / 'run' / 'checkpoints'


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


def test_difference_is_exact_and_drift_is_told_apart(
  run, act, make_manager, make_state, tmp_path
):
  _, lines = act('diff', run / '4', other=str(run / '4'))
  assert lines[-1]['different_arrays'] == 0 and len(lines) == 1
  _, lines = act('diff', run / '4', other=str(run / '3'))
  found = {line['array']: line for line in lines if 'array' in line}
  a, b = (np.asarray(make_state(s).params['blocks']['w']) for s in (4, 3))
  w = found['params/blocks/w']
  assert w['different'] == np.sum(a != b) and w['elements'] == a.size
  drift = a.astype(np.float64) - b
  np.testing.assert_allclose(w['largest_drift'], np.max(np.abs(drift)))
  relative = np.linalg.norm(drift) / np.linalg.norm(a.astype(np.float64))
  np.testing.assert_allclose(w['relative_drift'], relative, rtol=1e-6)
  assert 'params/scale' not in found  # The same in both.
  settings = {x['setting']: x for x in lines if 'setting' in x}
  assert settings['optim.lr'] == {
    'setting': 'optim.lr', 'first': 4, 'second': 3,
  }  # fmt: skip
  assert lines[-1]['different_arrays'] == len(found)


def test_minus_zero_differs_without_drift(
  run, act, make_manager, make_state, tmp_path
):
  state = make_state(4)
  state.params['scale'] = state.params['scale'] * 0
  with make_manager(keep=9) as checkpoints:
    checkpoints.save(5, state, data_index=4, meta={})
    state.params['scale'] = -state.params['scale']
    checkpoints.save(6, state, data_index=4, meta={})
  _, lines = act('diff', run / '5', other=str(run / '6'))
  [line] = [line for line in lines if 'array' in line]
  assert (line['array'], line['different']) == ('params/scale', 3)
  assert line['largest_drift'] == 0.0


def test_reshaped_checkpoint_is_equal_and_cut_for_the_ranks(
  run, act, make_state, abstract, tmp_path
):
  output = tmp_path / 'out'
  code, lines = act('reshape', output=output, ranks=2)
  directory = output / 'checkpoints' / '4'
  assert code == 0 and lines[0]['checkpoint'] == str(directory)
  assert (output / 'config.flags').read_text() == '--seed=3\n'
  assert sorted(os.listdir(output)) == ['checkpoints', 'config.flags']
  assert lazy.leaves(str(directory))['params/blocks/w'].rows == 8
  assert lazy.leaves(str(run / '4'))['params/blocks/w'].rows == 4
  state, wanted = make_state(4), abstract(make_state(0, shards=8))
  restored, index, _ = reader.restore(str(directory), wanted)
  assert hashing.state_hash(restored) == hashing.state_hash(state)
  assert index == 4
  _, lines = act('diff', directory, other=str(run / '4'))
  assert lines[-1]['different_arrays'] == lines[-1]['different_settings'] == 0
  with pytest.raises(errors.CheckpointError, match='a new folder'):
    act('reshape', output=output)


def test_prune_keeps_what_a_run_would(run, act):
  os.remove(run / '1' / seal.NAME)  # Unknown: not ours to remove.
  _, lines = act('prune', keep=1)
  assert lines == [{'step': 3, 'removed': True}]
  assert sorted(os.listdir(run)) == ['1', '2', '4']


def test_listing_needs_no_devices_of_the_run(run, act):
  code, lines = act('list')
  assert code == 0 and all(line['sealed'] for line in lines)
  assert len(jax.devices()) == 8
