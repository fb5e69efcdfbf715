# SPDX-License-Identifier: Apache-2.0
"""Direct preference optimization against its closed form in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import tiny
from tests.support import whole as whole_lib
from zaya_jax import config as config_lib
from zaya_jax.model import lora, zaya
from zaya_jax.model.losses import preferences
from zaya_jax.train import gradients

MODEL = tiny.config(remat='none')
LORA = config_lib.LoraConfig(rank=2, alpha=3.0)
LENGTH = 32
# Segment -> its tokens, of which the last so many are the answer.
ROWS = (((5, 2), (7, 4), (4, 2), (5, 3)), ((9, 3), (8, 2)))


def batch():
  """Three pairs in two rows, the rest of which is padding."""
  rng = np.random.default_rng(3)
  tokens = rng.integers(0, MODEL.vocab_size, (2, LENGTH + 1))
  segments, positions = np.zeros((2, 2, LENGTH), np.int32)
  weights = np.zeros((2, LENGTH), np.float32)
  for row, sizes in enumerate(ROWS):
    at = 0
    for number, (size, answer) in enumerate(sizes, 1):
      segments[row, at : at + size] = number
      positions[row, at : at + size] = np.arange(size)
      # The token before the answer predicts its first one.
      weights[row, at + size - answer - 1 : at + size - 1] = 1
      at += size
  return {
    'tokens': jnp.asarray(tokens[:, :-1], jnp.int32),
    'targets': jnp.asarray(tokens[:, 1:], jnp.int32),
    'segment_ids': jnp.asarray(segments),
    'positions': jnp.asarray(positions),
    'weights': jnp.asarray(weights),
  }


def dpo(beta=0.7, smoothing=0.0, nll=0.0):
  return config_lib.DpoConfig(
    beta=beta, label_smoothing=smoothing, nll_weight=nll
  )


def closed_form(policy, reference, beta, smoothing=0.0):
  """Equation 7 of [pairs, 2] log-probabilities, and what each pair costs."""
  policy, reference = (np.asarray(a, np.float64) for a in (policy, reference))
  ratio = policy - reference
  h = beta * (ratio[:, 0] - ratio[:, 1])
  log_sigmoid = lambda x: -np.log1p(np.exp(-x))
  return -(1 - smoothing) * log_sigmoid(h) - smoothing * log_sigmoid(-h)


@pytest.mark.parametrize('beta, smoothing', [(0.1, 0.0), (0.7, 0.2)])
def test_loss_is_the_closed_form(beta, smoothing):
  rng = np.random.default_rng(0)
  policy, reference = rng.normal(-20, 6, (2, 1, 5, 2))
  tokens = np.array([[[4, 2], [1, 7], [9, 9], [3, 0], [2, 5]]], np.float32)
  cost, told = preferences.loss(
    jnp.asarray(policy), jnp.asarray(reference), tokens, dpo(beta, smoothing)
  )
  some = [0, 1, 2, 4]
  each = closed_form(policy[0], reference[0], beta, smoothing)[some]
  np.testing.assert_allclose(cost, each.sum(), rtol=2e-6)
  margin = beta * np.diff(reference - policy, axis=-1)[0, some, 0]
  assert told['dpo/accuracy'] == (margin > 0).sum()
  np.testing.assert_allclose(told['dpo/margin'], margin.sum(), rtol=1e-5)
  np.testing.assert_allclose(
    told['dpo/chosen_log_prob'], policy[0, some, 0].sum(), rtol=1e-6
  )
  # Answers that are swapped, and no reference, cost something else.
  for wrong in (
    closed_form(policy[0, :, ::-1], reference[0, :, ::-1], beta, smoothing),
    closed_form(policy[0], 0 * reference[0], beta, smoothing),
  ):
    assert abs(wrong[some].sum() - cost) > 0.1


def test_first_step_costs_log_2():
  """Of an adapter that changes nothing, whatever the answers are."""
  rewards = jnp.asarray(np.random.default_rng(0).normal(-20, 6, (1, 3, 2)))
  cost, told = preferences.loss(rewards, rewards, jnp.ones((1, 3, 2)), dpo())
  np.testing.assert_allclose(cost, 3 * np.log(2), rtol=1e-6)
  assert told['dpo/margin'] == told['dpo/accuracy'] == 0


def test_cross_entropy_of_the_chosen_answer_may_be_added():
  """Per token of that answer alone, whatever the other one is."""
  rng = np.random.default_rng(1)
  policy, reference = (jnp.asarray(a) for a in rng.normal(-20, 6, (2, 1, 3, 2)))
  tokens = np.array([[[4, 2], [0, 7], [9, 3]]], np.float32)
  cost = lambda nll: preferences.loss(policy, reference, tokens, dpo(nll=nll))[
    0
  ]
  added = float(cost(0.3) - cost(0.0))
  per_token = -np.asarray(policy, np.float64)[0, [0, 2], 0] / [4, 9]
  np.testing.assert_allclose(added, 0.3 * per_token.sum(), rtol=1e-4)
  rejected = -np.asarray(policy, np.float64)[0, [0, 2], 1] / [2, 3]
  assert abs(0.3 * rejected.sum() - added) > 0.1


@functools.cache
def arrays():
  base, buffers = tiny.arrays(MODEL)
  return base, buffers, tiny.adapter(MODEL, LORA)


@functools.cache
def others():
  """Parameters that differ from the base in every array."""
  draw = np.random.default_rng(5)
  noise = lambda a: np.asarray(0.1 * draw.normal(size=a.shape), 'f4')
  return jax.tree.map(lambda a: a + noise(a), arrays()[0])


@functools.cache
def logits_of(which):
  """Log-probabilities [B, L, V] float64 of each token, by whole logits."""
  base, buffers, adapter = arrays()
  if which == 'adapted':
    base = whole_lib.summed(lora.join(base, adapter, LORA.scale))
  elif which == 'others':
    base = others()
  rows = batch()
  run = jax.jit(
    lambda params: zaya.bind(MODEL, params, buffers)(
      rows['tokens'],
      segment_ids=rows['segment_ids'],
      positions=rows['positions'],
    )
  )
  logits = np.asarray(run(base), np.float64)
  top = logits.max(-1, keepdims=True)
  return logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))


def by_hand(which):
  """[3, 2] log-probabilities of the answers, one token at a time."""
  rows, log_p, found = batch(), logits_of(which), []
  for row, sizes in enumerate(ROWS):
    at = 0
    for size, answer in sizes:
      places = range(at + size - answer - 1, at + size - 1)
      targets = np.asarray(rows['targets'])[row]
      found.append(sum(log_p[row, i, targets[i]] for i in places))
      at += size
  return np.array(found).reshape(-1, 2)


@functools.cache
def found(accumulation=1, beta=0.7):
  base, buffers, adapter = arrays()
  config = config_lib.Config(
    model=MODEL,
    data=config_lib.DataConfig(seq_len=LENGTH, batch_size=2),
    optim=config_lib.OptimConfig(accumulation=accumulation),
    lora=LORA,
    dpo=dpo(beta),
  )
  of = jax.jit(gradients.each_and_sum, static_argnums=0)
  loss, grads, _, _, told = of(config, adapter, buffers, batch(), base)
  return loss, grads, told


@functools.cache
def found_of_all(accumulation=1, reference='base'):
  """The same of all parameters, `others`, with the base as their reference."""
  base, buffers, _ = arrays()
  config = config_lib.Config(
    model=MODEL,
    data=config_lib.DataConfig(seq_len=LENGTH, batch_size=2),
    optim=config_lib.OptimConfig(accumulation=accumulation),
    dpo=dpo(),
  )
  of = jax.jit(gradients.each_and_sum, static_argnums=0)
  held = base if reference == 'base' else others()
  loss, grads, _, _, told = of(config, others(), buffers, batch(), None, held)
  return loss, grads, told


@pytest.mark.parametrize(
  'found, trained', [(found, 'adapted'), (found_of_all, 'others')]
)
def test_step_costs_the_mean_over_pairs(found, trained):
  policy, reference = by_hand(trained), by_hand('base')
  loss, _, told = found()
  wanted = closed_form(policy, reference, 0.7).mean()
  np.testing.assert_allclose(loss, wanted, rtol=1e-4)
  for i, name in enumerate(('chosen', 'rejected')):
    got = told[f'dpo/{name}_log_prob']
    np.testing.assert_allclose(got, policy[:, i].mean(), rtol=1e-5)
  for wrong in (
    closed_form(policy[:, ::-1], reference[:, ::-1], 0.7),
    closed_form(policy, 0 * reference, 0.7),
    closed_form(policy, policy, 0.7),
  ):
    assert abs(wrong.mean() - loss) > 1e-2


def test_reference_that_is_trained_too_is_told_apart():
  """It would say log 2 whatever was learned."""
  loss, _, told = found_of_all(reference='others')
  np.testing.assert_allclose(loss, np.log(2), rtol=1e-6)
  assert abs(told['dpo/margin']) < 1e-5
  assert abs(found_of_all()[0] - loss) > 1e-2


@pytest.mark.parametrize(
  'found', [pytest.param(found, marks=pytest.mark.long), found_of_all]
)
def test_parts_of_a_step_sum_to_the_whole(found):
  """One row has two pairs, the other one: each pair counts as much."""
  whole, parts = found(), found(accumulation=2)
  np.testing.assert_allclose(whole[0], parts[0], rtol=1e-5)
  near = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
  jax.tree.map(near, whole[1:], parts[1:])


def test_gradient_is_that_of_the_loss():
  """Along a direction, by differences in the log-probabilities of float64."""
  base, buffers, adapter = arrays()
  loss, grads, _ = found()

  def cost(moved):
    params = lora.join(base, moved, LORA.scale)
    return preferences.compare(MODEL, dpo(), params, None, buffers, batch())[0]

  check_slope(cost, adapter, grads)


def test_gradient_of_all_parameters_is_that_of_the_loss():
  base, buffers, _ = arrays()
  how = base, buffers, batch()
  cost = lambda moved: preferences.compare(MODEL, dpo(), moved, *how)[0]
  check_slope(cost, others(), found_of_all()[1])


def check_slope(cost, at, grads):
  """Whether the mean cost of a pair rises along its gradient as that says."""
  norm = np.sqrt(sum(float((g**2).sum()) for g in jax.tree.leaves(grads)))
  h, run = 2e-2 / norm, jax.jit(cost)

  def after(step):
    moved = jax.tree.map(lambda a, g: a + step * g / norm, at, grads)
    return float(run(moved)) / 3

  slope = (after(h) - after(-h)) / (2 * h)
  assert abs(slope - norm) < 0.02 * norm
