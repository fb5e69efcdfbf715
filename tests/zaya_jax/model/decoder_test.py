# SPDX-License-Identifier: Apache-2.0
"""Decoding with a cache gives what a whole row gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import close, tiny
from tests.reference import zaya_numpy
from zaya_jax.model import cache, cca, zaya

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
  'no_convolution': {'conv_depthwise': 1, 'conv_grouped': 1},
}
LENGTH = 11
# The second row has two tokens less.
MASK = np.ones((2, LENGTH), bool)
MASK[1, :2] = False


def cached_logits(model, params, buffers, tokens, mask, chunks):
  """[B, L, V] from chunks of these lengths, one after another."""

  @jax.jit
  def step(params, tokens, mask, state):
    bound = zaya.bind(model, params, buffers)
    return bound(tokens, attention_mask=mask, cache=state)

  state = cache.init_cache(model, len(tokens), LENGTH + 4, jnp.float32)
  outs, start = [], 0
  for size in chunks:
    rows = slice(start, start + size)
    out, state = step(params, tokens[:, rows], mask[:, rows], state)
    outs.append(out)
    start += size
  assert start == LENGTH and state.length == LENGTH
  return np.concatenate(outs, axis=1)


def error(name, chunks=(8, 1, 1, 1)):
  """The largest difference to the specification, of real tokens."""
  model = tiny.config(**SHAPES[name])
  params, buffers = tiny.arrays(model)
  tokens = np.random.default_rng(2).integers(0, 40, (2, LENGTH))
  pairs = zip(tokens, MASK, strict=True)
  expected = [
    zaya_numpy.forward(model, params, buffers, row, mask) for row, mask in pairs
  ]
  assert min(out.margin[:, 2:].min() for out in expected) > 1e-4
  expected = np.stack([out.logits for out in expected])
  found = cached_logits(model, params, buffers, tokens, MASK, chunks)
  return close.error(found[MASK], expected[MASK])


@pytest.mark.parametrize('name', SHAPES)
def test_cached_logits_equal_those_of_the_whole_row(name):
  assert error(name) <= close.FLOAT32_DEEP


def test_tokens_may_come_in_chunks():
  assert error('plain', (3, 4, 4)) <= close.FLOAT32_DEEP


def forget_the_convolutions(monkeypatch):
  convolve = cca.CCA.convolve
  monkeypatch.setattr(
    cca.CCA,
    'convolve',
    lambda self, z, s, history: convolve(
      self, z, s, history if history is None else jnp.zeros_like(history)
    ),
  )


def forget_the_delayed_value(monkeypatch):
  delay = cca.CCA.delay
  monkeypatch.setattr(
    cca.CCA, 'delay', lambda self, v, context, _: delay(self, v, context, None)
  )


@pytest.mark.parametrize(
  'patch', [forget_the_convolutions, forget_the_delayed_value]
)
def test_forgotten_state_is_caught(monkeypatch, patch):
  patch(monkeypatch)
  assert error('plain') > 0.01


def test_documents_and_cache_are_refused():
  model = tiny.config()
  params, buffers = tiny.arrays(model)
  state = cache.init_cache(model, 1, 4, jnp.float32)
  ones = np.ones((1, 2), int)
  with pytest.raises(ValueError, match='segment_ids do not go together'):
    zaya.bind(model, params, buffers)(ones, segment_ids=ones, cache=state)
