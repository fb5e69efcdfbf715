# SPDX-License-Identifier: Apache-2.0
"""Token after token by the network of training, which reads the text anew.

`network.prepare` lays out the matrices of all layers. Beside an adapter these
are sums, and of few bits before: all of them at once would need more memory
than training. Here each layer makes its own, as in a step, and one layer's are
there at a time. A token costs a pass over all of the text; that is for the
sample of a run, some dozens of tokens long.

Axis letters: B rows, L positions, V vocabulary.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zaya_jax import config as config_lib
from zaya_jax.inference.decoding import decoder, sampling
from zaya_jax.model import lora, zaya

_BUCKET = 32  # Lengths are a multiple, for few programs.


def tokens(
  config: config_lib.ModelConfig,
  params: dict[str, Any],
  buffers: dict[str, Any],
  vocab_size: int,
  rows: Sequence[np.ndarray],
  max_tokens: int,
  *,
  temperature: float = 0.0,
  top_p: float = 1.0,
  no_repeat: int = 0,
  seed: int = 0,
) -> Iterator[np.ndarray]:
  """Yields the next token of each row, [B] int32, `max_tokens` times.

  Args:
    config: of the model.
    params: as `zaya.bind` takes them, of `lora.join` too.
    buffers: of the model.
    vocab_size: ids below this are tokens; the rest only pads the embedding.
    rows: of `decoder.Decoder.tokens`.
    max_tokens: likewise, and so are the others.
    temperature: likewise.
    top_p: likewise.
    no_repeat: likewise.
    seed: likewise.
  """
  sample = decoder.sample_of(temperature, top_p)
  longest = max(map(len, rows))
  length = -(-(longest + max_tokens) // _BUCKET) * _BUCKET
  tokens_BL = np.zeros((len(rows), length), np.int32)
  for row_L, ids in zip(tokens_BL, rows, strict=True):
    row_L[longest - len(ids) : longest] = ids
  first_B = np.array([longest - len(ids) for ids in rows], np.int32)
  state = {
    'tokens': jnp.asarray(tokens_BL),
    'last': jnp.int32(longest - 1),
    'key': jax.random.key(seed),
  }
  weights = jax.tree.map(jnp.asarray, (params, buffers))
  step = _step(decoder.compiler_options(params) is not None)
  config = lora.in_a_loop(config)
  for _ in range(max_tokens):
    next_B, state = step(
      config, vocab_size, no_repeat, *weights, first_B, state, sample
    )
    yield np.asarray(next_B)


@functools.cache
def _step(quick):
  options = decoder.UNOPTIMIZED if quick else None
  return jax.jit(next_token, static_argnums=(0, 1, 2), compiler_options=options)


def next_token(
  config: config_lib.ModelConfig,
  vocab_size: int,
  no_repeat: int,
  params: dict[str, Any],
  buffers: dict[str, Any],
  first_B: jax.Array,
  state: dict[str, jax.Array],
  sample: dict[str, jax.Array],
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """The next token of each row, [B], and the state with it.

  Args:
    config: of the model.
    vocab_size: as of `tokens`.
    no_repeat: as of `tokens`.
    params: as of `tokens`.
    buffers: as of `tokens`.
    first_B: int32, the column where each row begins.
    state: 'tokens' [B, L] int32; 'last' int32, the column of the newest; 'key'.
    sample: how `sampling.choose` does.
  """
  tokens_BL, last = state['tokens'], state['last']
  columns_1L = jnp.arange(tokens_BL.shape[1])[None]
  real_BL = (columns_1L >= first_B[:, None]) & (columns_1L <= last)
  model = zaya.bind(config, params, buffers)
  x_BLD = model.features(tokens_BL, attention_mask=real_BL).x
  x_B1D = jax.lax.dynamic_slice_in_dim(x_BLD, last, 1, axis=1)
  logits_BV = model.logits(x_B1D)[:, 0]
  is_token_V = jnp.arange(logits_BV.shape[-1]) < vocab_size
  logits_BV = jnp.where(is_token_V[None], logits_BV, -jnp.inf)
  if no_repeat:
    seen_BL = jnp.where(real_BL, tokens_BL, -1)
    logits_BV = sampling.forbid_repeats(logits_BV, seen_BL, last, no_repeat)
  key, now = jax.random.split(state['key'])
  next_B = sampling.choose(logits_BV, now, **sample)
  tokens_BL = tokens_BL.at[:, last + 1].set(next_B)
  return next_B, {'tokens': tokens_BL, 'last': last + 1, 'key': key}
