# SPDX-License-Identifier: Apache-2.0
"""Seconds of a step against rooflines worked out by hand.

The released model on 1,024 MI300X: 40 layers of width 2,048, 8 heads and 2 of
keys, 128 wide; 16 experts; 16,384 tokens a device in windows of 4,096.
"""

import dataclasses

import pytest

from tests.support import released
from zaya_jax.plan.cost import collectives as collectives_lib
from zaya_jax.plan.cost import division, rates, timing
from zaya_jax.runtime import chips

TOKENS = 16_384
# Of the data sheet what large products reach, and a streaming kernel.
FLOPS, BANDWIDTH = 0.56 * 1307.4e12, 4.33e12


@pytest.fixture(scope='module')
def times():
  config = released.parse('--plan.devices=1024')
  return timing.plan(
    config, division.make(config), rates.Rates(chips.CHIPS['mi300x']), []
  )


@pytest.mark.parametrize(
  'name, flops',
  [
    # Six for each weight and token; with remat the forward pass twice.
    ('projections', 8 * 40 * 2048 * 2560),
    ('convolutions', 8 * 40 * 1280 * (2 + 2 * 128)),
    ('router', 8 * 40 * (2048 * 256 + 2 * 256**2 + 256 * 17)),
    # The backward pass makes two of three matrices anew, too.
    ('experts', (8 + 4 / 3) * 40 * 3 * 2048**2),
    ('head', 6 * 2048 * 262_272),
  ],
)
def test_products_take_their_flops(times, name, flops):
  (part,) = [part for part in times.parts if part.name == name]
  assert part.flops == pytest.approx(flops * TOKENS)
  assert part.seconds == pytest.approx(flops * TOKENS / FLOPS)


@pytest.mark.parametrize(
  'name, moved',
  [
    # Eight passes over float32 scores of 8 heads, of which 5/8 are computed.
    ('attention', 40 * 8 * 4 * 8 * TOKENS * 4096 * 5 / 8),
    # Four passes over what a layer keeps of a token.
    (
      'elementwise',
      40 * 4 * TOKENS
      * (4 * (10 * 2048 + 4 * 1280 + 8 * 256 + 2 * 17)
         + 2 * (5 * 2048 + 2 * 1280 + 2 * 256 + 1024)),
    ),
  ],
)  # fmt: skip
def test_passes_over_memory_take_their_bytes(times, name, moved):
  (part,) = [part for part in times.parts if part.name == name]
  assert part.bytes == pytest.approx(moved)
  assert part.seconds == pytest.approx(moved / BANDWIDTH)


@pytest.mark.parametrize(
  'remat, owners, passes',
  [('none', 1, 3), ('cheap', 1, 3), ('block', 1, 4), ('block', 4, 4)],
)
def test_each_pass_reads_the_weights_of_a_device(remat, owners, passes):
  words = f'--model.remat={remat}', f'--mesh.expert={owners}'
  config = released.parse('--plan.devices=4', *words)
  found = timing.plan(
    config, division.make(config), rates.Rates(chips.CHIPS['h200']), []
  )
  (part,) = [part for part in found.parts if part.name == 'experts']
  # float32, from which a bfloat16 copy is written and read.
  assert part.bytes == passes * 8 * 40 * 16 / owners * 3 * 2048**2


def test_update_moves_parts_alone(times):
  products, update = times.update
  # Eleven passes over what a device keeps: most of it a part of 1,024, and 1.9
  # MB of float32 router matrices and convolutions that nothing divides.
  least = 11 * 4 * 8_840_489_040 / 1024 / BANDWIDTH
  assert least < update.seconds < 4 * least
  assert products.seconds == pytest.approx(products.flops / FLOPS)


def test_longer_of_flops_and_bytes_counts():
  chip = dataclasses.replace(
    chips.CHIPS['h200'], peak=100.0, achievable=0.5, bandwidth=10.0, nic=1.0
  )
  seconds = lambda flops, moved: (
    timing._part(rates.Rates(chip, None, 0.5), 'part', flops, moved).seconds
  )
  assert seconds(flops=500.0, moved=20.0) == 2 * 10.0
  assert seconds(flops=50.0, moved=200.0) == 2 * 20.0


@pytest.mark.parametrize(
  'remat, passes', [('none', 3), ('cheap', 3), ('block', 4)]
)
def test_only_whole_blocks_are_computed_again(remat, passes):
  model = released.parse(f'--model.remat={remat}').model
  found = timing.executed(model, 4096)
  forward = 2 * 40 * 2048 * 2560
  assert found['projections'] == pytest.approx(passes * forward)
  assert found['head'] == 6 * 2048 * 262_272  # Is in no block.


def test_half_the_efficiency_doubles_the_work():
  config = released.parse('--plan.devices=8')
  slow = released.parse('--plan.devices=8', '--plan.efficiency=0.5')
  fast, slow = (
    timing.plan(
      c,
      division.make(c),
      rates.Rates(chips.CHIPS['h200'], None, c.plan.efficiency),
      [],
    )
    for c in (config, slow)
  )
  assert slow.step == pytest.approx(2 * fast.step)


@pytest.mark.parametrize('name, share', [('forward', 1), ('backward', 2)])
def test_messages_hide_behind_their_pass_and_no_further(name, share):
  config = released.parse('--plan.devices=1024')
  shape = division.make(config)
  chip = rates.Rates(chips.CHIPS['mi300x'])
  alone = timing.plan(config, shape, chip, [])
  late = collectives_lib.Collective(
    what='gradients', kind='reduce-scatter', axes=('replica',), count=10**9,
    bytes=1.0, seconds=2 * alone.compute, low=0.0, high=0.0, source='',
    local=8, size=8, hidden=name,
  )  # fmt: skip
  times = timing.plan(config, shape, chip, [late])
  hidden = alone.compute * share / 3
  assert {n: s for n, s in times.hidden.items() if s} == {
    name: pytest.approx(hidden)
  }
  assert times.exposed == pytest.approx(alone.compute * 2 - hidden)


def test_the_last_message_of_a_pass_is_not_hidden():
  config = released.parse('--plan.devices=1024')
  shape = division.make(config)
  chip = rates.Rates(chips.CHIPS['mi300x'])
  four = collectives_lib.Collective(
    what='gradients', kind='reduce-scatter', axes=('replica',), count=4,
    bytes=1.0, seconds=8e-3, low=8e-3, high=8e-3, source='',
    local=8, size=8, hidden='backward',
  )  # fmt: skip
  times = timing.plan(config, shape, chip, [four])
  assert times.exposed == pytest.approx(2e-3)
  assert times.hidden['backward'] == pytest.approx(6e-3)
