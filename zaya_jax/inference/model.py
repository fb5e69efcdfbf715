# SPDX-License-Identifier: Apache-2.0
"""A model with its parameters: logits of tokens, and text from prompts.

Axis letters: B prompts, L positions, V vocabulary.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pipelines import tokenizer as tokenizer_lib
from zaya_jax import config as config_lib
from zaya_jax.inference import continuation
from zaya_jax.inference.decoding import decoder as decoder_lib
from zaya_jax.inference.decoding import rereading
from zaya_jax.model import lora, zaya


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
  """A network with its parameters, ready to be called.

  Attributes:
    config: the shape of the network.
    params: nested dict of float32 arrays, of `lora.join` too; empty: there is
      only the decoder.
    buffers: nested dict, the balancing bias.
    tokenizer: None where a Hugging Face folder has none.
    stop_ids: tokens that end a text.
    max_positions: the longest text that it was made for; None: not known.
    on_note: told when something long begins, such as compiling, and when a
      prompt is longer than `max_positions`.
    context: devices among which decoding divides its cache.
  """

  config: config_lib.ModelConfig
  params: dict[str, Any]
  buffers: dict[str, Any]
  tokenizer: tokenizer_lib.Tokenizer | None
  stop_ids: tuple[int, ...] = ()
  max_positions: int | None = None
  on_note: Callable[[str], None] = lambda note: None
  context: int = 1

  @functools.cached_property
  def decoder(self) -> decoder_lib.Decoder:
    """The weights laid out for decoding; made when first needed."""
    return decoder_lib.Decoder(
      self.config,
      self.params,
      self.buffers,
      self._num_tokens,
      self.on_note,
      self.context,
    )

  def text_only(self) -> 'Model':
    """The same model for `generate` alone, without a second copy of weights."""
    lean = dataclasses.replace(self, params={}, buffers={})
    vars(lean)['decoder'] = self.decoder
    return lean

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
      ValueError: if `tokens` is not [B, L] int, or the model is `text_only`.
    """
    if not self.params:
      raise ValueError(
        'The model is text_only: it has no logits; load another.'
      )
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
    prompts: str | Sequence[str | np.ndarray],
    max_tokens: int = 64,
    temperature: float = 0.0,
    top_p: float = 1.0,
    no_repeat: int = 0,
    seed: int = 0,
    stop: Sequence[str] = (),
    on_text: Callable[[str], None] | None = None,
  ) -> list[str]:
    """Continues texts.

    Args:
      prompts: one text or several, or their tokens, [L] int each, which are
        taken as they are; shorter ones are padded on the left.
      max_tokens: tokens to add at most; a text ends earlier at a stop token.
      temperature: 0: the likeliest token.
      top_p: samples from the likeliest tokens of this total probability.
      no_repeat: no sequence of this many tokens comes twice; 0: any may.
      seed: of the samples.
      stop: texts before which a continuation ends.
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
    prompts = [prompts] if isinstance(prompts, str) else prompts
    if not len(prompts):
      return []
    rows = [self._encode(prompt) for prompt in prompts]
    longest = max(map(len, rows))
    if self.max_positions and longest > self.max_positions:
      self.on_note(
        f'note: a prompt has {longest:,} tokens, more than the '
        f'{self.max_positions:,} that the model was made for '
        '(max_position_embeddings).'
      )
    texts = [continuation.Continuation(self.tokenizer, stop) for _ in rows]
    how = {'temperature': temperature, 'top_p': top_p, 'no_repeat': no_repeat}
    for next_B in self.tokens(rows, max_tokens, seed=seed, **how):
      for text, token in zip(texts, next_B, strict=True):
        text.push(token)
      if on_text:
        on_text(texts[0].take())
      if all(text.done for text in texts):
        break
    for text in texts:
      text.finish()
    if on_text:
      on_text(texts[0].take())
    return [text.whole for text in texts]

  def _encode(self, prompt: str | np.ndarray) -> np.ndarray:
    if isinstance(prompt, str):
      ids = self.tokenizer.encode(prompt)
      return np.insert(ids, 0, self.tokenizer.bos_id)
    return np.asarray(prompt)

  def tokens(
    self, rows: Sequence[np.ndarray], max_tokens: int, **how: Any
  ) -> Iterator[list[int]]:
    """Like `decoding.Decoder.tokens`, until all rows have ended.

    Yields:
      A list of B ints; -1 for a row that has ended.
    """
    done_B = np.zeros(len(rows), bool)
    for token_B in self._next(rows, max_tokens, **how):
      done_B |= np.isin(token_B, self.stop_ids)
      yield np.where(done_B, -1, token_B).tolist()
      if done_B.all():
        return

  def _next(self, rows, max_tokens, **how) -> Iterator[np.ndarray]:
    """The next tokens of each row, by the decoder if weights can be its."""
    if lora.KEY not in self.params:
      return self.decoder.tokens(rows, max_tokens, **how)
    return rereading.tokens(
      *(self.config, self.params, self.buffers),
      *(self._num_tokens or self.config.vocab_size, rows, max_tokens),
      **how,
    )

  @property
  def _num_tokens(self) -> int | None:
    return self.tokenizer.vocab_size if self.tokenizer else None


@functools.partial(jax.jit, static_argnums=0)
def _logits(config, params, buffers, tokens_BL, inputs):
  return zaya.bind(config, params, buffers)(tokens_BL, **inputs)
