# SPDX-License-Identifier: Apache-2.0
"""How devices and tokens are divided, and where devices of a group sit."""

import pytest

from tests.support import released
from zaya_jax import config as config_lib
from zaya_jax.plan.cost import division


def _layout(**sizes):
  sizes = {axis: sizes.get(axis, 1) for axis in division.AXES}
  return division.Layout(sizes=sizes, parts=1, rows=1, columns=64, seq_len=64)


@pytest.mark.parametrize(
  'axes, local',
  [(('context',), 2), (('expert',), 4), (('fsdp',), 1), (('replica',), 1),
   (('expert', 'context'), 8), (division.AXES, 8)],
)  # fmt: skip
def test_inner_axes_share_a_node(axes, local):
  shape = _layout(replica=16, fsdp=8, expert=4, context=2)
  assert shape.local(axes, 8) == local


def test_tokens_of_a_step_are_divided():
  words = '--plan.devices=64', '--mesh.fsdp=2', '--mesh.context=4'
  shape = division.make(released.parse(*words, '--optim.accumulation=8'))
  assert shape.sizes == {'replica': 8, 'fsdp': 2, 'expert': 1, 'context': 4}
  # 4,096 rows of 4,096 tokens: 16 groups take 8 parts each.
  assert (shape.rows, shape.columns) == (32, 1024)
  assert shape.step_tokens == 4096 * 4096


@pytest.mark.parametrize(
  'words, sentence',
  [
    (['--mesh.replica=3'], '--plan.devices=8 is not --mesh.replica=3'),
    (['--plan.devices=3'], 'must be a multiple of 3'),
    (
      ['--mesh.expert=3', '--plan.devices=3', '--data.batch_size=4095'],
      '--mesh.expert=3 does not divide --model.num_experts=16; choose',
    ),
  ],
)
def test_what_does_not_divide_is_refused(words, sentence):
  with pytest.raises(config_lib.UsageError, match=sentence):
    division.make(released.parse('--plan.devices=8', *words))
