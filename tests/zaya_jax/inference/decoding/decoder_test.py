# SPDX-License-Identifier: Apache-2.0
"""Greedy tokens by decoding are those of forward passes at any length."""

import numpy as np
import pytest

from tests.support import tiny
from zaya_jax.inference.decoding import decoder as decoder_lib

# Each with biases in attention, which padding projects to, and untied: else a
# model of random weights repeats one token.
SHAPES = {
  'sliding': {'num_layers': 2, 'sliding_layers': (1,), 'sliding_window': 3},
  'taps_skip_identity': {
    'conv_depthwise': 3,
    'conv_grouped': 3,
    'skip': 'identity',
    'num_kv_heads': 4,
  },
  'no_convolution_skip_off': {
    'conv_depthwise': 1,
    'conv_grouped': 1,
    'skip': 'off',
    'head_bias': True,
  },
}
# Of a batch; prompts but for their last token are padded to 32 or 64.
LENGTHS = {name: (1, 32, 33) for name in SHAPES} | {'sliding': (31, 34, 40)}
STEPS = 12
# The models of these seeds write several tokens, and see what padding leaves.
SEEDS = {'sliding': 6, 'taps_skip_identity': 2, 'no_convolution_skip_off': 2}


@pytest.mark.parametrize('name', SHAPES)
def test_greedy_tokens_are_those_of_forward_passes(name):
  shape = {'num_layers': 1, 'tie_embeddings': False, **SHAPES[name]}
  model = tiny.config(attention_bias=True, **shape)
  params, buffers = tiny.arrays(model, SEEDS[name])
  decoder = decoder_lib.Decoder(model, params, buffers)
  rng = np.random.default_rng(0)
  rows = [rng.integers(0, model.vocab_size, n) for n in LENGTHS[name]]
  grown = np.transpose(list(decoder.tokens(rows, STEPS)))
  # What comes later changes nothing: one pass over prompts and what they were
  # continued with has the logits of every step.
  whole = np.zeros((len(rows), len(rows[-1]) + STEPS), int)
  for row, prompt, new in zip(whole, rows, grown, strict=True):
    row[: len(prompt) + STEPS] = np.append(prompt, new)
  likeliest = np.argmax(tiny.logits(model, params, buffers, whole), axis=-1)
  for prompt, new, expected in zip(rows, grown, likeliest, strict=True):
    begin = len(prompt) - 1
    np.testing.assert_array_equal(new, expected[begin : begin + STEPS])
  assert len(np.unique(grown)) > 4
