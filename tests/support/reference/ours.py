# SPDX-License-Identifier: Apache-2.0
"""Our model from a Hugging Face folder, as the other side is asked."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zaya_jax import config as config_lib
from zaya_jax.hub import folder as hub_folder
from zaya_jax.inference.decoding import network
from zaya_jax.model import zaya


@dataclasses.dataclass(frozen=True)
class Model:
  """A configuration with its arrays, in float32."""

  config: config_lib.ModelConfig
  params: dict[str, Any]
  buffers: dict[str, Any]


def load(path: str) -> Model:
  """Reads a Hugging Face folder."""
  config = dataclasses.replace(hub_folder.read_config(path), dtype='float32')
  return Model(config, *hub_folder.read_params(path, config))


def logits(model: Model, tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
  """[B, L, V] float32, without a cache."""
  # A new function each time: a patched model must be traced again.
  return np.asarray(
    jax.jit(lambda p: _logits(model, p, tokens, mask))(model.params)
  )


def loss_and_gradients(
  model: Model, tokens: np.ndarray, mask: np.ndarray
) -> tuple[float, dict[str, Any]]:
  """Mean next-token cross-entropy over real tokens, and its gradients."""
  counted = mask[:, :-1] * mask[:, 1:]

  def loss(params):
    log_probs = jax.nn.log_softmax(_logits(model, params, tokens, mask)[:, :-1])
    picked = jnp.take_along_axis(log_probs, tokens[:, 1:, None], axis=-1)
    return -jnp.sum(picked[..., 0] * counted) / counted.sum()

  value, gradients = jax.jit(jax.value_and_grad(loss))(model.params)
  return float(value), jax.tree.map(np.asarray, gradients)


def cached_logits(
  model: Model, tokens: np.ndarray, mask: np.ndarray, prompt: int
) -> np.ndarray:
  """Logits [B, L, V]: `prompt` tokens at once, the others one by one."""

  weights = network.prepare(model.config, model.params, model.buffers)

  @jax.jit
  def step(tokens, mask, cache):
    x, cache = network.forward(
      model.config, weights, tokens, cache, mask.astype(bool)
    )
    return network.logits(model.config, weights, x), cache

  cache = network.init_cache(model.config, weights, *tokens.shape)
  out, cache = step(tokens[:, :prompt], mask[:, :prompt], cache)
  outs = [out]
  for t in range(prompt, tokens.shape[1]):
    out, cache = step(tokens[:, t : t + 1], mask[:, t : t + 1], cache)
    outs.append(out)
  return np.concatenate(outs, axis=1)


def _logits(model, params, tokens, mask):
  bound = zaya.bind(model.config, params, model.buffers)
  return bound(tokens, attention_mask=mask)
