# SPDX-License-Identifier: Apache-2.0
"""Decoding: a model with its parameters, and text from it, token by token.

Axis letters: B prompts, L positions, V vocabulary.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pipelines import tokenizer as tokenizer_lib
from zaya_jax import config as config_lib
from zaya_jax.model import cache as cache_lib
from zaya_jax.model import layers, zaya

# Prompts are padded to a power of two of at least this, and the cache to a
# multiple: a few compiled programs serve all lengths.
_BUCKET = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
  """A network with its parameters, ready to be called.

  Attributes:
    config: the shape of the network.
    params: nested dict of float32 arrays.
    buffers: nested dict, the balancing bias.
    tokenizer: None where a Hugging Face folder has none.
    stop_ids: tokens that end a text.
  """

  config: config_lib.ModelConfig
  params: dict[str, Any]
  buffers: dict[str, Any]
  tokenizer: tokenizer_lib.Tokenizer | None
  stop_ids: tuple[int, ...] = ()

  def __call__(
    self,
    tokens: Any,
    attention_mask: Any = None,
    segment_ids: Any = None,
    positions: Any = None,
  ) -> jax.Array:
    """Logits of a batch.

    Args:
      tokens: [B, L] int.
      attention_mask: [B, L], 0 for padding.
      segment_ids: [B, L] int, the document of each token, 0 for padding.
      positions: [B, L] int, for the rotary embedding.

    Returns:
      [B, L, V] float32.

    Raises:
      ValueError: if `tokens` is not [B, L] int.
    """
    tokens = jnp.asarray(tokens)
    if tokens.ndim != 2 or not jnp.issubdtype(tokens.dtype, jnp.integer):
      raise ValueError(
        f'tokens must be [B, L] int, got {list(tokens.shape)} {tokens.dtype}.'
      )
    inputs = {
      'attention_mask': attention_mask,
      'segment_ids': segment_ids,
      'positions': positions,
    }
    inputs = {k: jnp.asarray(v) for k, v in inputs.items() if v is not None}
    return _logits(self.config, self.params, self.buffers, tokens, inputs)

  def generate(
    self,
    prompts: str | Sequence[str],
    max_tokens: int = 64,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    on_text: Callable[[str], None] | None = None,
  ) -> list[str]:
    """Continues texts.

    Args:
      prompts: one text or several; shorter ones are padded on the left.
      max_tokens: tokens to add at most; a text ends earlier at a stop token.
      temperature: 0: the likeliest token.
      top_p: samples from the likeliest tokens of this total probability.
      seed: of the samples.
      on_text: called with the text of the first prompt as it grows.

    Returns:
      The continuations, without the prompts.

    Raises:
      UsageError: if the model has no tokenizer.
    """
    if self.tokenizer is None:
      raise config_lib.UsageError(
        'The model has no tokenizer; put a tokenizer.json into its folder.'
      )
    if isinstance(prompts, str):
      prompts = [prompts]
    if not prompts:
      return []
    bos = self.tokenizer.bos_id
    rows = [np.insert(self.tokenizer.encode(p), 0, bos) for p in prompts]
    stream = self.tokenizer.stream_decoder()
    texts = [[] for _ in rows]
    for next_B in self.tokens(rows, max_tokens, temperature, top_p, seed):
      for text, token in zip(texts, next_B, strict=True):
        if token >= 0:
          text.append(token)
      if on_text and next_B[0] >= 0:
        on_text(stream.push(next_B[0]))
    if on_text:
      on_text(stream.flush())
    return [self.tokenizer.decode(text) for text in texts]

  def tokens(
    self,
    rows: Sequence[np.ndarray],
    max_tokens: int,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
  ):
    """Yields, `max_tokens` times at most, the next token of each row.

    Args:
      rows: ids of each prompt, [L] int, not empty.
      max_tokens: tokens to add at most.
      temperature: 0: the likeliest token.
      top_p: as in `generate`.
      seed: of the samples.

    Yields:
      A list of B ints; -1 for a row that has ended.
    """
    tokens_BL, mask_BL = _left_pad(rows)
    size = tokens_BL.shape[1] + -(-max_tokens // _BUCKET) * _BUCKET
    cache = cache_lib.init_cache(
      self.config, len(rows), size, layers.compute_dtype(self.config)
    )
    sample = {
      'temperature': jnp.float32(temperature),
      'top_p': jnp.float32(top_p),
    }
    limit = self.tokenizer.vocab_size if self.tokenizer else None
    step = functools.partial(_step, self.config, limit)
    key = jax.random.key(seed)
    done_B = np.zeros(len(rows), bool)
    for i in range(max_tokens):
      next_B, cache = step(
        self.params,
        self.buffers,
        tokens_BL,
        mask_BL,
        cache,
        jax.random.fold_in(key, i),
        sample,
      )
      tokens_BL, mask_BL = next_B[:, None], None
      token_B = np.asarray(next_B)
      done_B |= np.isin(token_B, self.stop_ids)
      yield [
        -1 if done else int(t) for t, done in zip(token_B, done_B, strict=True)
      ]
      if done_B.all():
        return


@functools.partial(jax.jit, static_argnums=0)
def _logits(config, params, buffers, tokens_BL, inputs):
  return zaya.bind(config, params, buffers)(tokens_BL, **inputs)[0]


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=6)
def _step(config, limit, params, buffers, tokens_BL, mask_BL, cache, key, how):
  """The next token of each row, and the state after `tokens_BL`."""
  model = zaya.bind(config, params, buffers)
  out = model.features(tokens_BL, attention_mask=mask_BL, cache=cache)
  logits_BV = model.logits(out.x[:, -1:])[:, 0]
  if limit is not None:  # Rows that only pad the embedding are no tokens.
    real = jnp.arange(logits_BV.shape[1]) < limit
    logits_BV = jnp.where(real, logits_BV, -jnp.inf)
  return choose(logits_BV, key, **how), out.cache


def choose(
  logits_BV: jax.Array,
  key: jax.Array,
  *,
  temperature: jax.Array,
  top_p: jax.Array,
) -> jax.Array:
  """[B] int32 sampled tokens; at temperature 0 the likeliest."""
  likeliest_B = jnp.argmax(logits_BV, axis=-1)
  scaled_BV = logits_BV / jnp.maximum(temperature, 1e-6)
  probs_BV = jax.nn.softmax(scaled_BV, axis=-1)
  sorted_BV = -jnp.sort(-probs_BV, axis=-1)
  before_BV = jnp.cumsum(sorted_BV, axis=-1) - sorted_BV
  # The least probability that is still needed to reach top_p.
  kept_BV = jnp.where(before_BV < top_p, sorted_BV, 2.0)
  least_B1 = jnp.min(kept_BV, axis=-1, keepdims=True)
  least_B1 = jnp.minimum(least_B1, sorted_BV[:, :1])
  scaled_BV = jnp.where(probs_BV >= least_B1, scaled_BV, -jnp.inf)
  sampled_B = jax.random.categorical(key, scaled_BV, axis=-1)
  return jnp.where(temperature > 0, sampled_B, likeliest_B).astype(jnp.int32)


def _left_pad(rows):
  """[B, L] tokens and mask, L a power of two."""
  longest = max(map(len, rows))
  length = max(_BUCKET, 1 << (longest - 1).bit_length())
  tokens = np.zeros((len(rows), length), np.int32)
  mask = np.zeros((len(rows), length), bool)
  for i, row in enumerate(rows):
    tokens[i, length - len(row) :] = row
    mask[i, length - len(row) :] = True
  return jnp.asarray(tokens), jnp.asarray(mask)
