# SPDX-License-Identifier: Apache-2.0
"""Direct preference optimization (DPO; arXiv 2305.18290, equation 7).

A row holds pairs: the segments 2 k - 1 and 2 k are a conversation with the
answer that was chosen, and the same with the one that was rejected; tokens of
answers have weight 1. With l the log-probability of an answer after its prompt,
and l' that of the reference, rewards are r = beta (l - l'), and a pair costs

  -(1 - s) log sigmoid(r_chosen - r_rejected)
  - s log sigmoid(r_rejected - r_chosen)

where s is the label smoothing, 0 in the paper. Both answers may lose likelihood
so; what is added against that is w times the chosen answer's cross-entropy, per
token (Pang et al., arXiv 2404.19733; Llama 3, arXiv 2407.21783, has w = 0.2).

Axis letters: B rows, L positions, P pairs of a row, T tokens, V vocabulary.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from zaya_jax import config as config_lib
from zaya_jax.model import lora, router, working, zaya

_MAX_LOGITS = 2**26  # At once: 256 MiB.
# What is told of pairs, under the names of metrics.jsonl: sums over pairs.
TOLD = (
  'dpo/accuracy',
  'dpo/margin',
  'dpo/chosen_reward',
  'dpo/rejected_reward',
  'dpo/chosen_log_prob',
  'dpo/rejected_log_prob',
)

Batch = dict[str, jax.Array]


class Pairs(NamedTuple):
  """Log-probabilities of answers, [B, P, 2]: chosen, rejected."""

  log_probs: jax.Array
  load: router.Load


def exist(batch: Batch) -> jax.Array:
  """[B, P] float32, 1 where there is a pair: both answers have tokens."""
  return _there(_by_answer(batch, batch['weights']))


def log_probs(
  model: zaya.Zaya,
  batch: Batch,
  sinks: working.Sinks | None = None,
  sample_every: int = 0,
) -> Pairs:
  """How likely each answer is: the sum over its tokens, in nats.

  Args:
    model: the network.
    batch: tokens, targets, segment_ids, positions [B, L] int32 and weights
      [B, L] float32.
    sinks: of `Zaya.features`.
    sample_every: likewise.
  """
  out = model.features(
    batch['tokens'],
    segment_ids=batch['segment_ids'],
    positions=batch['positions'],
    sinks=sinks,
    sample_every=sample_every,
  )
  nats_BL = _nats(model, out.x, batch['targets'])
  return Pairs(_by_answer(batch, -nats_BL * batch['weights']), out.load)


def loss(
  policy_BP2: jax.Array,
  reference_BP2: jax.Array,
  tokens_BP2: jax.Array,
  dpo: config_lib.DpoConfig,
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Sums over pairs: what they cost, and `TOLD`.

  Args:
    policy_BP2: `log_probs` of what is trained.
    reference_BP2: of the reference; no gradient flows to it.
    tokens_BP2: how many an answer has; 0: there is none.
    dpo: beta, label smoothing and the weight of the cross-entropy.
  """
  rewards_BP2 = dpo.beta * (policy_BP2 - jax.lax.stop_gradient(reference_BP2))
  margin_BP = rewards_BP2[..., 0] - rewards_BP2[..., 1]
  smooth = dpo.label_smoothing
  cost_BP = -(1 - smooth) * jax.nn.log_sigmoid(margin_BP)
  cost_BP -= smooth * jax.nn.log_sigmoid(-margin_BP)
  per_token_BP = policy_BP2[..., 0] / jnp.maximum(tokens_BP2[..., 0], 1)
  cost_BP -= dpo.nll_weight * per_token_BP
  there_BP = _there(tokens_BP2)
  each = (
    (margin_BP > 0).astype(jnp.float32),
    margin_BP,
    *(rewards_BP2[..., i] for i in (0, 1)),
    *(policy_BP2[..., i] for i in (0, 1)),
  )
  add = lambda a_BP: jnp.sum(a_BP * there_BP)
  return add(cost_BP), dict(zip(TOLD, map(add, each), strict=True))


def compare(
  model: config_lib.ModelConfig,
  dpo: config_lib.DpoConfig,
  params: dict[str, Any],
  reference: dict[str, Any] | None,
  buffers: dict[str, Any],
  batch: Batch,
  sinks: working.Sinks | None = None,
  sample_every: int = 0,
) -> tuple[jax.Array, router.Load, dict[str, jax.Array]]:
  """What pairs cost, the load, and `TOLD`: sums over the pairs of a batch.

  Args:
    model: of the network.
    dpo: as of `loss`.
    params: of what is trained, of `lora.join` too.
    reference: parameters that stay as they are; None: `params` without their
      adapter.
    buffers: of both.
    batch: as of `log_probs`.
    sinks: likewise.
    sample_every: likewise.
  """
  if reference is None:
    reference = {key: part for key, part in params.items() if key != lora.KEY}
  trained = zaya.bind(model, params, buffers)
  policy = log_probs(trained, batch, sinks, sample_every)
  before = log_probs(zaya.bind(model, reference, buffers), batch)
  tokens_BP2 = _by_answer(batch, batch['weights'])
  cost, told = loss(policy.log_probs, before.log_probs, tokens_BP2, dpo)
  return cost, policy.load, told


def _there(tokens_BP2):
  """[B, P] float32: whether both answers of a pair have tokens."""
  return jnp.all(tokens_BP2 > 0, axis=-1).astype(jnp.float32)


def _by_answer(batch, a_BL):
  """[B, P, 2]: sums over the segments, of which padding is none."""
  rows, length = a_BL.shape
  most = length + length % 2
  segment_BL = batch['segment_ids']
  a_BL = jnp.where(segment_BL > 0, a_BL, 0.0)
  # A row after the other, for one sum of segments.
  place_BL = jnp.arange(rows)[:, None] * most + jnp.maximum(segment_BL - 1, 0)
  sums = jax.ops.segment_sum(a_BL.ravel(), place_BL.ravel(), rows * most)
  return sums.reshape(rows, most // 2, 2)


def _nats(model, x_BLD, targets_BL):
  """-log p of each target, [B, L] float32, never holding all logits."""
  head_VD, bias_V = model.head_matrix(x_BLD.dtype), model.head_vector()

  @jax.checkpoint
  def some(x_TD, target_T):
    logits_TV = jnp.dot(x_TD, head_VD.T, preferred_element_type=jnp.float32)
    logits_TV = logits_TV if bias_V is None else logits_TV + bias_V[None]
    hit_T1 = jnp.take_along_axis(logits_TV, target_T[:, None], axis=1)
    return jax.nn.logsumexp(logits_TV, axis=1) - hit_T1[:, 0]

  total = targets_BL.size
  most = max(1, _MAX_LOGITS // head_VD.shape[0])
  chunk = max(c for c in range(1, min(most, total) + 1) if total % c == 0)
  shape = (total // chunk, chunk)
  chunks = x_BLD.reshape(*shape, -1), targets_BL.reshape(shape)
  nats = jax.lax.map(lambda part: some(*part), chunks)
  return nats.reshape(targets_BL.shape)
