# SPDX-License-Identifier: Apache-2.0
"""One JSON object per checkpoint, on any machine."""

import json

import pytest

from tests.support import hashes
from zaya_jax import config as config_lib
from zaya_jax.checkpoint import errors, seal
from zaya_jax.checkpoint.actions import listing

SCRIPT = """
import sys
from zaya_jax import config
from zaya_jax.checkpoint.actions import listing
assert not listing.main(config.Config(source=sys.argv[1]))
# Each takes longer to import than three checkpoints to list.
assert not {'jax', 'orbax', 'flax'} & set(sys.modules)
"""


def test_one_device_lists_what_eight_have_written(
  make_manager, make_state, tmp_path, run_python
):
  states = {step: make_state(step, shards=8) for step in (1, 2)}
  with make_manager() as checkpoints:
    for step, state in states.items():
      meta = {'tokens': step, 'metrics': {'val/bpb': 3.0 / step}}
      checkpoints.save(step, state, data_index=step * 10, meta=meta)
  done = run_python(SCRIPT, tmp_path / 'run', devices=1)
  assert done.stderr == ''
  lines = [json.loads(line) for line in done.stdout.splitlines()]
  assert [line['step'] for line in lines] == [1, 2]
  for line in lines:
    state = states[line['step']]
    assert line['valid'] is True
    assert line['params_hash'] == hashes.params_hash(state)
    assert line['state_hash'] == hashes.state_hash(state)
    assert line['val/bpb'] == 3.0 / line['step']
    assert line['data_index'] == 10 * line['step']
    assert line['bytes'] > 16 * 8 * 4 and line['time'].endswith('+00:00')


def test_damage_is_told_and_the_rest_still_listed(
  saved, make_manager, make_state, tmp_path, capsys
):
  with make_manager() as checkpoints:
    checkpoints.save(5, make_state(2), data_index=1, meta={})
  (saved / 'state' / 'manifest.ocdbt').write_bytes(b'')
  config = config_lib.Config(run_dir=str(tmp_path / 'run'))
  assert listing.main(config) == 3
  capsys.readouterr()
  (saved.parent / '77').mkdir()
  (saved.parent / '78.unsealed').mkdir()
  assert listing.main(config) == 3
  printed = capsys.readouterr()
  first, second, third = map(json.loads, printed.out.splitlines())
  assert (first['step'], first['valid']) == (4, False)
  assert str(saved) in first['reason'] and 'params_hash' not in first
  assert (second['step'], second['valid']) == (5, True)
  assert (third['step'], third['sealed'], third['valid']) == (77, False, False)
  assert '78.unsealed: left by a killed save, ignored' in printed.err


def test_array_swapped_for_another_is_not_valid(saved):
  meta = saved / 'meta' / 'metadata'
  meta.write_text(meta.read_text().replace('bfloat16[3]', 'bfloat16[4]'))
  seal.write(str(saved), {'step': 4, 'time': 0.0})
  found = listing.entry(str(saved))
  assert found['valid'] is False and 'disagree' in found['reason']


def test_unknown_metric_is_left_out(make_manager, make_state, tmp_path):
  with make_manager() as checkpoints:
    metrics = {'train/loss': float('nan')}
    checkpoints.save(1, make_state(), data_index=0, meta={'metrics': metrics})
  found = listing.entry(str(tmp_path / 'run' / 'checkpoints' / '1'))
  assert found['valid'] is True and 'train/loss' not in found


def test_nothing_to_list_is_a_usage_error(tmp_path):
  for config in (config_lib.Config(), config_lib.Config(source=str(tmp_path))):
    with pytest.raises(errors.CheckpointError) as caught:
      listing.main(config)
    assert caught.value.exit_code == 2
