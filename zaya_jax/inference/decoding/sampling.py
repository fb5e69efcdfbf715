# SPDX-License-Identifier: Apache-2.0
"""The next token from logits: the likeliest one, or a sample.

Axis letters: B rows, V vocabulary, S columns of the tokens so far, T thresholds
of a probability.
"""

import jax
import jax.numpy as jnp


def choose(
  logits_BV: jax.Array,
  key: jax.Array,
  *,
  temperature: jax.Array | None = None,
  top_p: jax.Array | None = None,
) -> jax.Array:
  """[B] int32 sampled tokens; at temperature 0 or None the likeliest."""
  likeliest_B = jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)
  if temperature is None:
    return likeliest_B
  scaled_BV = logits_BV / jnp.maximum(temperature, 1e-6)
  if top_p is not None:
    scaled_BV = _keep_likeliest(scaled_BV, top_p)
  sampled_B = jax.random.categorical(key, scaled_BV, axis=-1).astype(jnp.int32)
  return jnp.where(temperature > 0, sampled_B, likeliest_B)


def choose_apart(
  logits_BV: jax.Array,
  keys_B: jax.Array,
  temperature_B: jax.Array,
  top_p_B: jax.Array,
) -> jax.Array:
  """[B] int32: as `choose` for each row alone, with its own key and settings.

  What no row asks for is not computed.
  """
  likeliest_B = jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)

  def sample(logits_BV):
    scaled_BV = logits_BV / jnp.maximum(temperature_B, 1e-6)[:, None]
    cuts_B = (top_p_B < 1) & (temperature_B > 0)
    cut = lambda x: jnp.where(
      cuts_B[:, None], _keep_likeliest(x, top_p_B[:, None]), x
    )
    scaled_BV = jax.lax.cond(jnp.any(cuts_B), cut, lambda x: x, scaled_BV)
    sampled_B = jax.vmap(jax.random.categorical)(keys_B, scaled_BV)
    return jnp.where(temperature_B > 0, sampled_B, likeliest_B).astype(
      jnp.int32
    )

  return jax.lax.cond(
    jnp.any(temperature_B > 0), sample, lambda _: likeliest_B, logits_BV
  )


def scores(
  logits_BV: jax.Array, chosen_B: jax.Array, most: int
) -> dict[str, jax.Array]:
  """Log-probabilities of tokens, and of the likeliest ones beside them.

  Returns:
    'logprob' [B] of `chosen_B`; 'top_ids' and 'top_logprobs' [B, most].
  """
  logprob_BV = jax.nn.log_softmax(logits_BV, axis=-1)
  chosen_B1 = jnp.take_along_axis(logprob_BV, chosen_B[:, None], axis=1)
  top_BT, ids_BT = jax.lax.top_k(logprob_BV, most)
  return {
    'logprob': chosen_B1[:, 0],
    'top_ids': ids_BT.astype(jnp.int32),
    'top_logprobs': top_BT,
  }


def forbid_repeats(
  logits_BV: jax.Array,
  seen_BS: jax.Array,
  last: jax.Array,
  count: jax.Array | int,
) -> jax.Array:
  """-inf for each token with which the last `count` would have come before.

  Args:
    logits_BV: [B, V].
    seen_BS: [B, S] int32 tokens so far, -1 for padding.
    last: int32, the column of the newest token: a scalar, or [B] of each row.
    count: tokens in a row that may not come twice, a scalar or [B]; 0: any may.
  """
  last_B1, count_B1 = (
    jnp.broadcast_to(jnp.asarray(a), len(seen_BS))[:, None]
    for a in (last, count)
  )
  rows_B1 = jnp.arange(len(seen_BS))[:, None]
  columns_1S = jnp.arange(seen_BS.shape[1])[None]
  # A column that comes after the same tokens as the next one will.
  hit_BS = (columns_1S >= count_B1 - 1) & (columns_1S <= last_B1)
  hit_BS &= (seen_BS >= 0) & (count_B1 > 0)

  def look_back(back, hit_BS):
    column_B1 = last_B1 + 1 - back
    newest_B1 = jnp.take_along_axis(seen_BS, jnp.maximum(column_B1, 0), axis=1)
    same_BS = jnp.roll(seen_BS, back, axis=1) == newest_B1
    same_BS &= (column_B1 >= 0) & (newest_B1 >= 0)
    return hit_BS & (same_BS | (back >= count_B1))

  hit_BS = jax.lax.fori_loop(1, jnp.max(count_B1), look_back, hit_BS)
  forbidden_BS = jnp.where(hit_BS, seen_BS, logits_BV.shape[1])
  return logits_BV.at[rows_B1, forbidden_BS].set(-jnp.inf, mode='drop')


def _keep_likeliest(scaled_BV, top_p):
  """-inf for all but the likeliest tokens of total probability `top_p`.

  `top_p` is a scalar or [B, 1]. To sort a vocabulary takes longer than to read
  a layer: the least probability that is kept is found four bits at a time.
  Those of positive numbers have the order of the numbers, and the highest two
  of a probability are 0.
  """
  probs_BV = jax.nn.softmax(scaled_BV, axis=-1)
  bits_BV = jax.lax.bitcast_convert_type(probs_BV, jnp.int32)
  least_B1 = jnp.zeros((len(probs_BV), 1), jnp.int32)
  for shift in range(28, -1, -4):
    steps_T = jnp.arange(1, 4 if shift == 28 else 16) << shift
    thresholds_BT = least_B1 + steps_T[None]
    reached_BTV = bits_BV[:, None] >= thresholds_BT[..., None]
    mass_BT = jnp.sum(jnp.where(reached_BTV, probs_BV[:, None], 0), axis=-1)
    enough_B1 = jnp.sum(mass_BT >= top_p, axis=-1, keepdims=True)
    least_B1 += (enough_B1 << shift).astype(jnp.int32)
  least_B1 = jnp.minimum(least_B1, jnp.max(bits_BV, axis=-1, keepdims=True))
  return jnp.where(bits_BV >= least_B1, scaled_BV, -jnp.inf)
