# SPDX-License-Identifier: Apache-2.0
"""The model against stored answers of transformers (`tests/golden`).

Tolerances as in `tests/parity`, which compares many more models and needs
PyTorch: float32 noise is far below, a wrong formula far above.
"""

import pathlib

import numpy as np
import pytest

import zaya_jax
from tests.support import folders
from tests.support.reference import mutants, ours
from zaya_jax.hub import names as hub_names

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / 'golden'
NAMES = ('plain', 'sliding_untied_biases')
LOGITS = 1e-4  # Of the spread, the largest logit minus the smallest.
GRADIENT = 1e-3  # Of the norm of the gradient of that tensor.
CAUGHT = 100 * LOGITS


@pytest.fixture(params=NAMES)
def name(request):
  return request.param


def answers(name):
  with np.load(GOLDEN / name / 'answers.npz') as stored:
    return dict(stored)


def logits_error(name):
  """Largest difference of the real tokens' logits, in spreads."""
  golden = answers(name)
  tokens, mask = golden['tokens'], golden['mask']
  found = ours.logits(ours.load(str(GOLDEN / name)), tokens, mask)
  difference = np.abs(found - golden['logits'])[mask > 0].max()
  return difference / np.ptp(golden['logits'][mask > 0])


def test_logits_equal_the_stored_ones(name):
  assert logits_error(name) <= LOGITS


@pytest.mark.parametrize(
  'patch', mutants.PATCHES, ids=lambda patch: patch.__name__
)
def test_wrong_formula_is_caught(monkeypatch, patch):
  patch(monkeypatch)
  assert logits_error(NAMES[-1]) >= CAUGHT


def test_loss_and_gradients_equal_the_stored_ones(name):
  golden = answers(name)
  loss, gradients = ours.loss_and_gradients(
    ours.load(str(GOLDEN / name)), golden['tokens'], golden['mask']
  )
  np.testing.assert_allclose(loss, golden['loss'], rtol=1e-5)
  found = dict(folders.export(hub_names.PARAMS, gradients))
  stored = [key for key in golden if key.startswith('model.')]
  assert len(stored) == 9
  for key in stored:
    error = np.linalg.norm(found[key] - golden[key])
    assert error <= GRADIENT * np.linalg.norm(golden[key]), key


def test_greedy_tokens_through_the_cache_equal_the_stored_ones(name):
  golden = answers(name)
  model = zaya_jax.load(str(GOLDEN / name))
  pairs = zip(golden['tokens'], golden['mask'], strict=True)
  rows = [tokens[mask > 0] for tokens, mask in pairs]
  found = list(model.tokens(rows, golden['greedy'].shape[1]))
  np.testing.assert_array_equal(np.transpose(found), golden['greedy'])
