# SPDX-License-Identifier: Apache-2.0
"""Each rule of sizes on MI300X: it holds for the released model, and breaks."""

import pytest

from tests.support import released
from zaya_jax.plan.cost import collectives as collectives_lib
from zaya_jax.plan.cost import division, lint
from zaya_jax.runtime import chips


@pytest.mark.parametrize(
  'words, rule',
  [
    ([], None),
    (['--model.vocab_size=262273'], 'vocabulary'),
    (['--model.head_dim=96'], 'head width'),
    (['--model.d_expert=2000'], 'expert width'),
    (['--data.record_tokens=32736', '--data.seq_len=4092'], 'micro-batch'),
    (
      ['--data.batch_size=1024', '--model.d_expert=2560'],
      'compute units',
    ),
    (['--plan.devices=4'], 'gradients'),
  ],
)
def test_each_rule_of_sizes_can_be_broken(words, rule):
  config = released.parse('--plan.devices=1024', *words)
  shape, chip = division.make(config), chips.CHIPS['mi300x']
  messages = collectives_lib.plan(config, shape, chip)
  found = lint.check(config, shape, chip, messages)
  broken = [f.rule for f in found if not f.good]
  assert bool(broken) == (rule is not None)
  assert rule is None or any(rule in b for b in broken)


def test_advice_is_the_next_multiple():
  (found, _) = (lint._multiple('width', '--w', n, 256) for n in (2000, 2048))
  assert found.advice == '--w gives only 16; 2,048 would do.'


def test_waves_by_hand():
  """16 experts of 1,024 tokens and 4,096 columns: 16 x 4 x 16 tiles of 256."""
  config = released.parse('--plan.devices=1024')
  found = lint._waves(config, division.make(config))
  # 1,024 tiles in four waves of 304 units.
  assert 1024 / (4 * 304) == pytest.approx(0.842, abs=1e-3)
  assert (found.value, found.good) == ('84% of 4 waves', True)
