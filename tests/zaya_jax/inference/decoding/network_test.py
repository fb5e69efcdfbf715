# SPDX-License-Identifier: Apache-2.0
"""Decoding with a cache gives what a whole row gives."""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import close, tiny
from tests.support.reference import mutants, zaya_numpy
from zaya_jax import config as config_lib
from zaya_jax.inference.decoding import look_back, network
from zaya_jax.model import zaya

SHAPES = {
  'plain': {},
  'skip_identity': {'skip': 'identity'},
  'sliding_biases': {
    'num_layers': 3,
    'sliding_layers': (1,),
    'sliding_window': 3,
    'attention_bias': True,
  },
  'taps': {'conv_depthwise': 3, 'conv_grouped': 3, 'num_kv_heads': 4},
  'to_compare_with': {'attention': 'gqa', 'router': 'linear'},
  'no_convolution': {'conv_depthwise': 1, 'conv_grouped': 1},
}
LENGTH = 11
ONE_BY_ONE = (1,) * LENGTH  # A single program.
# The second row has two tokens less.
MASK = np.ones((2, LENGTH), bool)
MASK[1, :2] = False


def cached_logits(model, params, buffers, tokens, mask, chunks):
  """[B, L, V] from chunks of these lengths, one after another."""
  weights = network.prepare(model, params, buffers)

  @jax.jit
  def step(tokens, mask, state):
    x, state = network.forward(model, weights, tokens, state, mask)
    return network.logits(model, weights, x), state

  state = network.init_cache(model, weights, len(tokens), LENGTH + 4)
  outs, start = [], 0
  for size in chunks:
    rows = slice(start, start + size)
    out, state = step(tokens[:, rows], mask[:, rows], state)
    outs.append(out)
    start += size
  assert start == LENGTH and state.length == LENGTH
  return np.concatenate(outs, axis=1)


def error(name, chunks=(8, 1, 1, 1)):
  """The largest difference to the specification, of real tokens."""
  model = tiny.config(**SHAPES[name])
  params, buffers = tiny.arrays(model)
  tokens = np.random.default_rng(2).integers(0, 40, (2, LENGTH))
  # Of each row without its padding, which shall leave no trace.
  expected = [
    zaya_numpy.forward(model, params, buffers, row[mask])
    for row, mask in zip(tokens, MASK, strict=True)
  ]
  assert min(out.margin.min() for out in expected) > 1e-4
  expected = np.concatenate([out.logits for out in expected])
  found = cached_logits(model, params, buffers, tokens, MASK, chunks)
  return close.error(found[MASK], expected)


@pytest.mark.parametrize('name', SHAPES)
def test_cached_logits_equal_those_of_the_whole_row(name):
  assert error(name) <= close.FLOAT32_DEEP


def test_tokens_may_come_in_chunks():
  assert error('plain', (3, 4, 4)) <= close.FLOAT32_DEEP


def forgetting(**changes):
  """A decoder whose state loses something after every call."""
  forward = network.forward

  def forgetful(*args):
    x, state = forward(*args)
    lost = {
      name: jax.tree.map(f, getattr(state, name)) for name, f in changes.items()
    }
    return x, dataclasses.replace(state, **lost)

  return forgetful


@pytest.mark.parametrize('name', ['k', 'v', 'conv', 'delayed'])
def test_forgotten_state_is_caught(monkeypatch, name):
  monkeypatch.setattr(network, 'forward', forgetting(**{name: jnp.zeros_like}))
  assert error('plain', ONE_BY_ONE) > 0.01


def test_swapped_taps_are_caught(monkeypatch):
  monkeypatch.setattr(
    look_back,
    '_convolve',
    lambda w, past, length, real=look_back._convolve: real(
      w, jnp.roll(past, 1, axis=1), length
    ),
  )
  assert error('plain', ONE_BY_ONE) > 0.01


@pytest.mark.parametrize('patch', mutants.ROUTER, ids=lambda p: p.__name__)
def test_router_is_that_of_training(monkeypatch, patch):
  patch(monkeypatch)
  assert error('plain', chunks=(LENGTH,)) > 0.01


def test_padding_that_is_seen_is_caught(monkeypatch):
  forward = network.forward
  monkeypatch.setattr(
    network, 'forward', lambda m, w, t, state, mask: forward(m, w, t, state)
  )
  assert error('plain', ONE_BY_ONE) > 0.01


def test_row_that_begins_in_a_later_chunk_counts_from_zero():
  model = tiny.config(**SHAPES['plain'])
  params, buffers = tiny.arrays(model)
  tokens = np.random.default_rng(2).integers(0, 40, (2, LENGTH))
  mask = np.ones((2, LENGTH), bool)
  mask[1, :7] = False
  expected = zaya_numpy.forward(model, params, buffers, tokens[1, 7:])
  found = cached_logits(model, params, buffers, tokens, mask, (3, 3, 3, 1, 1))
  close.assert_close(found[1, 7:], expected.logits, close.FLOAT32_DEEP)


def test_cache_of_a_long_text_is_an_eighth_of_that_of_16_heads():
  flagfile = pathlib.Path(__file__).parents[4] / 'configs' / 'zaya1_8b.flags'
  model = config_lib.Config.from_flagfile(str(flagfile)).model
  model = dataclasses.replace(model, dtype='bfloat16')
  arrays = jax.eval_shape(lambda: zaya.init(model, jax.random.key(0)))
  weights = jax.eval_shape(lambda a: network.prepare(model, *a), arrays)
  state = jax.eval_shape(
    lambda w: network.init_cache(model, w, 1, 32768), weights
  )
  size = sum(
    a.size * a.dtype.itemsize for a in jax.tree.leaves((state.k, state.v))
  )
  assert size == 1.25 * 2**30
  assert size * 8 == 32768 * model.num_layers * 2 * 16 * 128 * 2
