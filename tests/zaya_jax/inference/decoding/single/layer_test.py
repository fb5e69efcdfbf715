# SPDX-License-Identifier: Apache-2.0
"""A token of one text by nine kernels is what the specification says."""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ops import dispatch
from tests.support import close, gpus, tiny
from tests.support.reference import zaya_numpy
from tests.zaya_jax.inference.decoding import network_test
from zaya_jax import config as config_lib
from zaya_jax.inference.decoding import network
from zaya_jax.inference.decoding.single import attention, experts, layer
from zaya_jax.model import zaya

SHAPES = {
  'plain': {},
  'sliding': {'num_layers': 3, 'sliding_layers': (1,), 'sliding_window': 3},
  'taps_skip_identity': {
    'conv_depthwise': 3,
    'conv_grouped': 3,
    'num_kv_heads': 4,
    'skip': 'identity',
  },
}
CONFIGS = pathlib.Path(__file__).parents[5] / 'configs'


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
  monkeypatch.setattr(layer, 'PLATFORMS', ('cpu', 'cuda'))


def error(name):
  """Of a text that begins behind two tokens of padding, token by token."""
  model = tiny.config(**SHAPES[name])
  params, buffers = tiny.arrays(model)
  weights = network.prepare(model, params, buffers)
  assert layer.unsupported(model, weights, network_test.LENGTH) is None
  tokens = np.random.default_rng(2).integers(0, 40, (2, network_test.LENGTH))
  mask = network_test.MASK[1:]
  expected = zaya_numpy.forward(model, params, buffers, tokens[1][mask[0]])
  assert expected.margin.min() > 1e-4
  found = network_test.cached_logits(
    *(model, params, buffers, tokens[1:], mask, network_test.ONE_BY_ONE)
  )
  return close.error(found[mask], expected.logits)


@pytest.mark.parametrize('name', SHAPES)
def test_logits_are_those_of_the_whole_row(name):
  assert error(name) <= close.FLOAT32_DEEP


def test_cache_may_be_read_in_parts_and_blocks(monkeypatch):
  monkeypatch.setattr(attention, '_PART', 4)
  monkeypatch.setattr(attention, '_BLOCK', 2)
  assert attention.parts_of(network_test.LENGTH + 4) == (4, 4)
  assert error('plain') <= close.FLOAT32_DEEP


def test_part_that_is_left_out_is_caught(monkeypatch):
  monkeypatch.setattr(attention, '_PART', 4)
  monkeypatch.setattr(attention, '_BLOCK', 2)
  joined = attention._joined
  first = lambda mean, weight: joined(mean.at[:1], weight.at[:1])
  monkeypatch.setattr(attention, '_joined', first)
  assert error('plain') > 0.01


def test_wrong_choice_is_caught(monkeypatch):
  choose = experts._choose

  def other(a, out, balance):
    mine, chance = choose(a, out, balance)
    return (mine + 1) % out.shape[0], chance

  monkeypatch.setattr(experts, '_choose', other)
  assert error('plain') > 0.01


def lowered(preset, platform, size):
  """A step of a preset with one layer, for a GPU."""
  path = str(CONFIGS / f'{preset}.flags')
  model = config_lib.Config.from_flagfile(path).model
  model = dataclasses.replace(model, num_layers=1, dtype='bfloat16')
  arrays = jax.eval_shape(lambda: zaya.init(model, jax.random.key(0)))
  token = jax.ShapeDtypeStruct((1, 1), jnp.int32)
  with dispatch.compile_for(platform):
    weights = jax.eval_shape(lambda a: network.prepare(model, *a), arrays)
    cache = jax.eval_shape(
      lambda w: network.init_cache(model, w, 1, size), weights
    )
    step = lambda w, t, c: network.forward(model, w, t, c)
    return gpus.lower(jax.jit(step).trace(weights, token, cache), platform)


@pytest.mark.parametrize('size', [1280, 8192])
@pytest.mark.parametrize('preset', ['small', 'zaya1_8b'])
def test_layer_lowers_to_nine_kernels_on_a_gpu(preset, size):
  assert len(gpus.kernels(lowered(preset, 'cuda', size))) == 9


def test_a_longer_cache_and_another_platform_have_other_kernels():
  names = lambda *args: lowered('small', *args).as_text()
  assert 'one_attend' in names('cuda', 8192)
  assert 'one_attend' not in names('cuda', 8448)
  assert 'one_attend' not in names('rocm', 1280)


@pytest.mark.parametrize(
  ('changes', 'reason'),
  [
    ({'attention': 'gqa'}, 'CCA'),
    ({'router': 'linear'}, 'router'),
    ({'attention_bias': True}, 'biases'),
    ({'conv_depthwise': 1, 'conv_grouped': 1}, 'convolution'),
    ({'d_expert': 4096}, 'longer than 2048'),
    ({'head_dim': 12}, 'power of two'),
  ],
)
def test_what_it_cannot_run_it_says(changes, reason):
  model = tiny.config(**changes)
  array = jnp.zeros(())
  first = {'experts': {'down': array}, 'attn': {'qkv': array}}
  assert reason in layer.unsupported(model, {'layers': [first]}, 64)


def test_few_bits_are_not_for_it():
  first = {'experts': {'down': object()}, 'attn': {'qkv': jnp.zeros(())}}
  reason = layer.unsupported(tiny.config(), {'layers': [first]}, 64)
  assert reason == 'matrices are of few bits'
