# SPDX-License-Identifier: Apache-2.0
"""Counts against the released model and against numbers done by hand."""

import pathlib

import pytest

from zaya_jax import config
from zaya_jax.model import flops

CONFIGS = pathlib.Path(__file__).parents[3] / 'configs'

TINY = config.ModelConfig(
  num_layers=1,
  d_model=4,
  num_heads=2,
  num_kv_heads=1,
  head_dim=2,
  conv_depthwise=3,
  conv_grouped=2,
  num_experts=2,
  d_expert=5,
  d_router=3,
  skip='off',
  vocab_size=7,
  rope_fraction=1.0,
)


def _changed(**changes):
  return config.ModelConfig(**{**vars(TINY), **changes})


def test_released_model_is_counted_to_the_last_parameter():
  preset = config.Config.from_flagfile(str(CONFIGS / 'zaya1_8b.flags'))
  counted = flops.parameters(preset.model)
  assert counted.total == 8_840_488_784
  assert counted.active == 753_608_528


def test_released_model_costs_about_nine_gigaflop_a_token():
  preset = config.Config.from_flagfile(str(CONFIGS / 'zaya1_8b.flags'))
  cost = flops.per_token(preset.model, 4096)
  # Six FLOPs for each weight of a matrix that a token meets, head included.
  assert cost.head == 6 * 537_133_056
  assert cost.experts == 6 * 503_316_480
  assert cost.total == pytest.approx(8.745e9, rel=1e-3)


@pytest.mark.parametrize(
  'name, active, total',
  [('small', 26, 245), ('medium', 107, 1084), ('large', 287, 3148)],
)
def test_presets_have_the_parameters_that_the_readme_says(name, active, total):
  preset = config.Config.from_flagfile(str(CONFIGS / f'{name}.flags'))
  found = flops.parameters(preset.model)
  assert round(found.active / 1e6) == active
  assert round(found.total / 1e6) == total


def test_parameters_by_hand():
  attention = 4 * 4 + 4 * 2 + 4 * 2 + 4 * 4  # q, k, v, o
  attention += 6 * 3 + 6 + 6 * 2 * 2 + 6 + 1  # Convolutions, temperature.
  router = (4 * 3 + 3) + 3 + 2 * (3 * 3 + 3) + 3 * 2
  norms = 2 * 4 + 8 * 4
  outer = 2 * 4 + 4  # Input scale and bias, final norm.
  expert = 3 * 4 * 5
  counted = flops.parameters(TINY)
  assert counted.active == attention + router + norms + outer + expert
  assert counted.total == counted.active + expert + 7 * 4


@pytest.mark.parametrize(
  'changes, total, active',
  [
    ({'tie_embeddings': False}, 28, 0),
    ({'head_bias': True}, 7, 0),
    ({'attention_bias': True}, 4 + 2 + 2 + 4, 12),
    ({'skip': 'zero'}, 3, 3),
    ({'num_experts': 3}, 60 + 3, 3),
  ],
)
def test_each_choice_adds_its_parameters(changes, total, active):
  before, after = flops.parameters(TINY), flops.parameters(_changed(**changes))
  assert after.total - before.total == total
  assert after.active - before.active == active


def test_only_later_layers_have_a_mixing_vector():
  one, two, three = (
    flops.parameters(_changed(num_layers=n)).total for n in (1, 2, 3)
  )
  assert (two - one) == (three - two)
  assert (two - one) - (one - 7 * 4 - 3 * 4) == TINY.d_router


def test_attention_counts_the_keys_a_query_sees():
  # Queries 1..4 see 1, 2, 3, 4 keys; 2 x 2 FLOPs a channel, 4 channels.
  assert flops.per_token(TINY, 4).attention == 3 * 4 * 4 * 2.5
  # With a window of 2: 1, 2, 2, 2.
  sliding = _changed(sliding_window=2, sliding_layers=(0,))
  assert flops.per_token(sliding, 4).attention == 3 * 4 * 4 * 1.75


def test_flops_by_hand():
  cost = flops.per_token(TINY, 4)
  assert cost.projections == 6 * (16 + 8 + 8 + 16)
  assert cost.convolutions == 6 * (6 * 3 + 6 * 2 * 2)
  assert cost.router == 6 * (4 * 3 + 2 * 9 + 3 * 2)
  assert cost.experts == 6 * 60
  assert cost.head == 6 * 28


@pytest.mark.parametrize(
  'kind, peak',
  [
    ('AMD Instinct MI300X', 1307.4),
    ('AMD Instinct MI250X', 191.5),
    ('NVIDIA H200', 989.4),
    ('NVIDIA H200 NVL', 835.5),
    ('NVIDIA H100 80GB HBM3', 989.4),
    ('NVIDIA H100 PCIe', 756.0),
    ('NVIDIA A100-SXM4-80GB', 312.0),
    ('NVIDIA GB200', 2500.0),
    ('NVIDIA B200', 2250.0),
    ('cpu', None),
  ],
)
def test_peak_by_device_kind(kind, peak):
  assert flops.peak_tflops(kind) == peak
