# SPDX-License-Identifier: Apache-2.0
"""One function, written twice: logits, gradients, greedy tokens, cache.

Everything runs in float32. Tolerances are many times what float32 noise gives
here (logits 2e-6, gradients 2e-5) and far below what a wrong formula does
(`mutants_test.py`: above 1e-2).
"""

import numpy as np

import zaya_jax
from tests.parity import pairs, peer
from tests.support import folders
from tests.support.reference import ours, zaya_numpy
from zaya_jax.hub import names as hub_names

LOGITS = 1e-4  # Of the spread, the largest logit minus the smallest.
GRADIENT = 1e-3  # Of the norm of the gradient of that tensor.
CACHE = 1e-5  # Of the spread.
TIE = 1e-5  # Of probability: below, float32 noise could choose the expert.
PROMPT = 15  # Tokens at once, of the third row 2; then one by one.


def test_logits_agree(pair, achieved):
  error = pair.error(ours.logits(pair.ours, pair.tokens, pair.mask))
  achieved(f'{error:.1e}')
  assert error <= LOGITS


def test_gradient_of_every_tensor_agrees(pair, achieved):
  their_loss, theirs = peer.loss_and_gradients(
    pair.theirs, pair.tokens, pair.mask
  )
  our_loss, found = ours.loss_and_gradients(pair.ours, pair.tokens, pair.mask)
  np.testing.assert_allclose(our_loss, their_loss, rtol=1e-5)
  errors = {}
  for name, mine in folders.export(hub_names.PARAMS, found):
    norm = np.linalg.norm(theirs[name])
    assert norm > 0, f'{name} has no gradient: nothing is compared'
    errors[name] = np.linalg.norm(mine - theirs.pop(name)) / norm
  assert not theirs, 'gradients that nothing was compared with'
  worst = max(errors, key=errors.get)
  achieved(f'{errors[worst]:.1e}')
  assert errors[worst] <= GRADIENT, worst


def test_greedy_tokens_are_identical(pair):
  model = zaya_jax.load(pair.folder)
  rows = [row[real] for row, real in zip(pair.tokens, pair.real, strict=True)]
  found = np.stack(list(model.tokens(rows, pairs.STEPS)), axis=1)
  np.testing.assert_array_equal(found, pair.greedy)
  assert found.shape[1] == pairs.STEPS


def test_greedy_tokens_are_not_trivial(pair):
  for row in pair.greedy:
    assert len(set(row.tolist())) >= 5


def test_cached_logits_equal_uncached_ones_without_padding(pair, achieved):
  rows = [row[real] for row, real in zip(pair.tokens, pair.real, strict=True)]
  whole = [ours.logits(pair.ours, r[None], np.ones((1, len(r)))) for r in rows]
  whole = np.concatenate(whole, axis=1)[0]
  steps = ours.cached_logits(pair.ours, pair.tokens, pair.mask, PROMPT)
  error = np.abs(steps[pair.real] - whole).max() / np.ptp(whole)
  achieved(f'{error:.1e}')
  assert error <= CACHE


def test_specification_agrees_and_no_token_is_near_a_tie(pair, achieved):
  tokens = np.concatenate([pair.tokens, pair.greedy], axis=1)
  mask = np.concatenate([pair.mask, np.ones_like(pair.greedy)], axis=1)
  model = pair.ours
  outs = [
    zaya_numpy.forward(model.config, model.params, model.buffers, *row)
    for row in zip(tokens, mask, strict=True)
  ]
  logits = np.stack([out.logits for out in outs])
  assert pair.error(logits[:, : pair.tokens.shape[1]]) <= LOGITS
  margin = np.stack([out.margin for out in outs], axis=1)[:, mask > 0].min()
  choices = np.stack([out.choice for out in outs], axis=1)[:, mask > 0]
  skipped = np.mean(choices == model.config.num_experts)
  achieved(f'{margin:.1e} nearest tie, {skipped:.2f} skipped')
  assert margin >= TIE
  assert 0.05 <= skipped <= 0.8
