# SPDX-License-Identifier: Apache-2.0
"""The alarm of the routers: when it rings, what it advises, when it ends."""

import pytest

from zaya_jax import config as config_lib
from zaya_jax.metrics import routers


def watch(experts=16, sections=None, **optim):
  model = config_lib.ModelConfig(num_experts=experts)
  optim = config_lib.OptimConfig(**optim)
  return routers.Watch(
    config_lib.Config(model=model, optim=optim, **(sections or {}))
  )


def look(watched, entropies, first=210, least=0.5):
  """What is said of rows ten steps apart, by step."""
  rows = [
    {'step': first + 10 * i, 'moe/entropy': e, 'moe/load_min': least}
    for i, e in enumerate(entropies)
  ]
  said = {row['step']: watched.look(row) for row in rows}
  return {step: line for step, line in said.items() if line}


def test_three_bad_rows_ring_once_and_three_good_ones_end_it():
  entropies = [0.5, 0.5, 0.5, 0.5, 0.99, 0.99, 0.99, 0.99, 0.5, 0.5, 0.5]
  said = look(watch(), entropies)
  assert list(said) == [230, 270, 310]
  assert 'entropy 0.500' in said[230] and 'again' in said[270]


@pytest.mark.parametrize(
  'entropies, first, least, rings',
  [
    ([0.96] * 5, 210, 0.01, False),
    ([0.94] * 5, 210, 0.01, True),
    ([0.99] * 5, 210, 0.0, True),  # One expert has no token.
    ([0.5] * 5, 150, 0.0, False),  # 150 to 190: a router begins so.
    ([0.5, 0.5, 0.99] * 4, 210, 0.5, False),
  ],
)
def test_when_it_rings(entropies, first, least, rings):
  assert bool(look(watch(), entropies, first, least)) == rings


@pytest.mark.parametrize(
  'optim, advice',
  [
    ({'balance': 'adam'}, 'take --optim.balance=quantile'),
    ({'balance': 'loss', 'balance_lr': 0.0}, 'balance_loss=0.01 is too weak'),
    ({'balance': 'sign', 'balance_lr': 0.0}, 'drop --optim.balance_lr=0'),
    ({'balance': 'quantile'}, 'lower --optim.lr=0.002'),
  ],
)
def test_advice_fits_the_rule(optim, advice):
  (line,) = look(watch(**optim), [0.1] * 4).values()
  assert advice in line


@pytest.mark.parametrize(
  'section',
  [
    {'lora': config_lib.LoraConfig(rank=4)},
    {'dpo': config_lib.DpoConfig(beta=0.1)},
  ],
)
def test_a_bias_that_cannot_move_is_no_advice(section):
  said = look(watch(sections=section, balance_lr=0.0), [0.1] * 4)
  (line,) = said.values()
  assert 'lower --optim.lr=' in line and 'balance_lr' not in line


def test_a_dense_model_has_nothing_to_balance():
  assert not look(watch(experts=1), [0.0] * 9, least=1.0)


def test_rows_without_routers_do_not_count():
  watched = watch()
  assert watched.look({'step': 300, 'val/loss': 2.0}) is None
