# SPDX-License-Identifier: Apache-2.0
"""A checkpoint cut anew is the same checkpoint."""

import os

import pytest

from tests.support import hashes
from zaya_jax.checkpoint import errors, seal
from zaya_jax.checkpoint.actions import reshape
from zaya_jax.checkpoint.reading import lazy, reader


def test_reshaped_checkpoint_is_equal_and_cut_for_the_ranks(
  run, act, make_state, abstract, tmp_path
):
  output = tmp_path / 'out'
  for name in ('log.txt', 'metrics.jsonl', 'incidents.jsonl', 'report.html'):
    (run.parent / name).write_text('')  # Of the past of the source.
  code, lines = act('reshape', output=output, ranks=2)
  directory = output / 'checkpoints' / '4'
  assert code == 0 and lines[0]['checkpoint'] == str(directory)
  assert (output / 'config.flags').read_text() == '--seed=3\n'
  assert sorted(os.listdir(output)) == [
    'checkpoints', 'config.flags', 'parent_id', 'run_id',
  ]  # fmt: skip
  was, now = (seal.read(str(path / '4')) for path in (run, directory.parent))
  assert now['parent'] == was['run'] != now['run']
  assert lazy.leaves(str(directory))['params/blocks/w'].rows == 8
  assert lazy.leaves(str(run / '4'))['params/blocks/w'].rows == 4
  state, wanted = make_state(4), abstract(make_state(0, shards=8))
  restored, index, _ = reader.restore(str(directory), wanted)
  assert hashes.state_hash(restored) == hashes.state_hash(state)
  assert index == 4
  _, lines = act('diff', directory, other=str(run / '4'))
  assert lines[-1]['different_arrays'] == lines[-1]['different_settings'] == 0
  with pytest.raises(errors.CheckpointError, match='a new folder'):
    act('reshape', output=output)


def test_parts_are_cut_along_the_first_axis_that_the_ranks_divide():
  assert reshape._chunk((6, 4, 8), 4, ranks=2) == (3, 4, 8)
  assert reshape._chunk((5, 4, 8), 4, ranks=2) == (5, 2, 8)
  assert reshape._chunk((5, 3), 4, ranks=2) == (5, 3)
