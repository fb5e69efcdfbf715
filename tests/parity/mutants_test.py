# SPDX-License-Identifier: Apache-2.0
"""The comparison catches wrong models by a wide margin."""

import dataclasses

import jax
import numpy as np
import pytest

from tests.parity import exactness_test
from tests.support.reference import mutants, ours

CASE = 'everything_at_once'
CAUGHT = 100 * exactness_test.LOGITS  # A mutant is no accident of rounding.


@pytest.mark.parametrize(
  'patch', mutants.PATCHES, ids=lambda patch: patch.__name__
)
def test_wrong_formula_is_caught(pair_of, monkeypatch, patch):
  pair = pair_of(CASE)
  patch(monkeypatch)
  _assert_caught(pair, pair.ours)


@pytest.mark.parametrize('name', mutants.SETTINGS)
def test_wrong_setting_is_caught(pair_of, name):
  pair = pair_of(CASE)
  config = dataclasses.replace(pair.ours.config, **mutants.SETTINGS[name])
  _assert_caught(pair, dataclasses.replace(pair.ours, config=config))


@pytest.mark.parametrize('leaf', ['conv_depthwise', 'conv_grouped'])
def test_taps_in_reverse_are_caught(pair_of, leaf):
  pair = pair_of(CASE)
  params = jax.tree.map(lambda w: w, pair.ours.params)  # New dicts.
  params['layers']['attn'][leaf] = params['layers']['attn'][leaf][:, ::-1]
  _assert_caught(pair, dataclasses.replace(pair.ours, params=params))


def test_unmasked_padding_is_caught(pair_of):
  pair = pair_of(CASE)
  _assert_caught(pair, pair.ours, mask=np.ones_like(pair.mask))


def _assert_caught(pair, model, mask=None):
  mask = pair.mask if mask is None else mask
  assert pair.error(ours.logits(model, pair.tokens, mask)) >= CAUGHT
