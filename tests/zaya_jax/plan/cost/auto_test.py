# SPDX-License-Identifier: Apache-2.0
"""What is chosen where nobody says: the fastest way that fits, and no other."""

import dataclasses

import pytest

from tests.support import released
from zaya_jax import config as config_lib
from zaya_jax.plan.cost import auto

SMALL = (
  '--model.num_layers=8 --model.d_model=512 --model.d_expert=512 '
  '--data.seq_len=1024 --data.batch_size=64 --plan.devices=1'
).split()


def ways(*words, platform='cuda', capacity=1e15):
  config = config_lib.Config.parse([*SMALL, *words])
  return auto.ways(config, platform, capacity, 2)


def preset(*words):
  flagfile = f'--flagfile={released.FLAGFILE}'
  return config_lib.Config.parse([flagfile, *words])


def settings(way):
  model, optim = way.config.model, way.config.optim
  return (
    *(model.scan_layers, model.remat),
    *(optim.newton_schulz_gram, optim.accumulation),
  )


@pytest.mark.parametrize(
  'platform, chosen',
  [
    ('cpu', ('true', 'none', 'false', 1)),
    ('cuda', ('false', 'cheap', 'false', 1)),
    ('rocm', ('true', 'none', 'false', 1)),
  ],
)
def test_with_room_the_fastest_way_is_taken(platform, chosen):
  assert settings(ways(platform=platform)[0]) == chosen


@pytest.mark.parametrize('width, gram', [(1024, 'false'), (2048, 'true')])
def test_gram_form_is_for_wide_matrices_on_cuda(width, gram):
  words = f'--model.d_model={width}'
  assert settings(ways(words)[0])[2] == gram
  assert settings(ways(words, platform='rocm')[0])[2] == 'false'


def test_with_less_memory_come_parts_then_recomputation_then_a_loop():
  needs = {settings(way): way.needs for way in ways()}
  order = list(needs)
  assert order[:4] == [('false', 'cheap', 'false', n) for n in (1, 2, 4)] + [
    ('false', 'block', 'false', 1)
  ]
  assert order[-1] == ('true', 'block', 'false', 64)
  # A byte less than a way needs, and it is not taken, nor a larger one.
  for way in (order[0], order[3]):
    found = ways(capacity=needs[way] - 1)
    assert found
    assert all(each.needs < needs[way] for each in found)
  assert settings(ways(capacity=needs[order[0]])[0]) == order[0]


def test_parts_divide_the_rows_of_each_device():
  words = '--plan.devices=4 --mesh.fsdp=4 --data.batch_size=24'.split()
  for way in ways(*words):
    assert 6 % way.config.optim.accumulation == 0


@pytest.mark.parametrize(
  'said',
  [
    ('--model.remat=none', ('false', 'none', 'false', 1)),
    ('--model.scan_layers=true', ('true', 'cheap', 'false', 1)),
    ('--optim.newton_schulz_gram=true', ('false', 'cheap', 'true', 1)),
    ('--optim.accumulation=8', ('false', 'cheap', 'false', 8)),
  ],
)
def test_what_is_said_is_kept(said):
  word, chosen = said
  assert settings(ways(word)[0]) == chosen
  name, value = word[2:].split('=')
  section, field = name.split('.')
  for way in ways(word, capacity=1.0):
    assert str(getattr(getattr(way.config, section), field)) == value


def test_next_way_is_the_first_that_fits_as_wrong_as_the_plan_was():
  found = ways()
  first, second, third, *_ = found
  capacity = third.needs * 2
  way, left = auto.next_way(found, first.needs * 2, capacity)
  assert way is third
  assert left[0] is third
  # With a plan that was right, the second is taken.
  assert second.needs <= capacity
  assert auto.next_way(found, first.needs, second.needs)[0] is second
  last, left = auto.next_way(found, first.needs, 1.0)
  assert last is found[-1]
  assert auto.next_way(left, first.needs, 1.0) == (None, [])


def test_far_too_large_a_run_says_what_to_lower_and_that_fits(tmp_path):
  rows = (
    '--data.batch_size=1 --data.seq_len=262144 --data.record_tokens=262144'
  ).split()
  found = ways(*rows, capacity=1.0)
  [least] = found
  auto.check_fits(found, least.needs, 2)
  with pytest.raises(config_lib.UsageError) as caught:
    auto.check_fits(found, least.needs * 0.9, 2)
  flag = next(w for w in str(caught.value).split() if w.startswith('--data.s'))
  path = tmp_path / 'config.flags'
  path.write_text(least.config.to_flagfile())
  again = config_lib.Config.parse([f'--flagfile={path}', flag])
  [fits] = auto.ways(again, 'cuda', 1.0, 2)
  assert fits.needs <= least.needs * 0.9


def test_a_state_that_is_too_large_asks_for_fewer_layers():
  config = preset('--plan.devices=1', '--data.batch_size=4')
  found = auto.ways(config, 'cuda', 80e9, 2)
  with pytest.raises(config_lib.UsageError, match='--model.num_layers=') as no:
    auto.check_fits(found, 80e9, 2)
  layers = int(str(no.value).split('num_layers=')[1].split()[0])
  for count, fits in ((layers, True), (layers + 1, False)):
    model = dataclasses.replace(config.model, num_layers=count)
    fewer = dataclasses.replace(config, model=model)
    assert (auto.ways(fewer, 'cuda', 80e9, 2)[-1].needs <= 80e9) == fits


def test_of_a_plan_nothing_is_left_open_and_the_preset_stays_as_it_was():
  config = auto.of_plan(preset('--plan.devices=1024'))
  assert not auto.is_open(config)
  assert config.model.remat == 'block'
  assert config.model.scan_layers == 'true'
  assert auto.of_plan(config) == config


@pytest.mark.parametrize('devices', [1, 8])
def test_a_dial_that_does_not_fit_names_the_largest_that_does(devices):
  def refused(dial, capacity=20e9):
    words = [f'--dial={dial}', f'--plan.devices={devices}']
    found = auto.ways(config_lib.Config.parse(words), 'cuda', capacity, 2)
    auto.check_fits(found, capacity, 2)

  with pytest.raises(config_lib.UsageError, match='^--dial=40 does') as error:
    refused(40)
  named = int(str(error.value).split('--dial=')[2].split()[0])
  refused(named)
  with pytest.raises(config_lib.UsageError):
    refused(named + 4)
