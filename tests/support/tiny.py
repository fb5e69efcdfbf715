# SPDX-License-Identifier: Apache-2.0
"""Tiny models whose every parameter matters, and batches for them."""

from typing import Any

import jax
import numpy as np

from zaya_jax import config as config_lib
from zaya_jax.aegis.drills import trial
from zaya_jax.model import lora, zaya

# A model of one layer on the command line: it compiles and learns in seconds.
FLAGS = [*trial.TINY, '--model.scan_layers=false']

# A model of two layers and 40 tokens with several heads and experts.
SIZES = {
  'num_layers': 2,
  'd_model': 16,
  'num_heads': 4,
  'num_kv_heads': 2,
  'head_dim': 4,
  'num_experts': 3,
  'd_expert': 8,
  'd_router': 6,
  'vocab_size': 40,
  'dtype': 'float32',
}

_ABOUT_ONE = ('scale', 'norm', 'temperature', 'eda')


def config(**changes: Any) -> config_lib.ModelConfig:
  """A model of `SIZES`."""
  return config_lib.ModelConfig(**{**SIZES, **changes})


def arrays(
  model: config_lib.ModelConfig, seed: int = 0
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Parameters and buffers, none of them 0 or 1 as after initialization.

  Tokens choose different classes, the skip class included: the balancing bias
  is small and the matrices of the router are large.
  """
  rng = np.random.default_rng(seed)

  def draw(path, leaf):
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    routes = 'router' in name and leaf.ndim == 3
    std = 1.2 if routes else 0.05 if 'balance' in name else 0.3
    value = std * rng.normal(size=leaf.shape)
    if name.endswith(_ABOUT_ONE):
      value += 1
    # By `jnp.asarray` jax would compile a program for each shape.
    return jax.device_put(value.astype(leaf.dtype))

  shapes = jax.eval_shape(lambda: zaya.init(model, jax.random.key(0)))
  return jax.tree_util.tree_map_with_path(draw, shapes)


def adapter(
  model: config_lib.ModelConfig, config: config_lib.LoraConfig
) -> dict[str, Any]:
  """An adapter that changes its base: none of its factors is 0."""
  rng = np.random.default_rng(1)
  draw = lambda a: jax.device_put((0.3 * rng.normal(size=a.shape)).astype('f4'))
  return jax.tree.map(draw, lora.init(model, config, jax.random.key(0)))


def logits(
  model: config_lib.ModelConfig,
  params: dict[str, Any],
  buffers: dict[str, Any],
  tokens: np.ndarray,
  **inputs: np.ndarray,
) -> jax.Array:
  """[B, L, V] without a cache; a patched model is traced anew."""
  run = jax.jit(lambda p: zaya.bind(model, p, buffers)(tokens, **inputs))
  return run(params)


def batch(
  model: config_lib.ModelConfig, rows: int, length: int, seed: int = 0
) -> dict[str, np.ndarray]:
  """A batch as the loader makes it: two documents a row, then padding."""
  rng = np.random.default_rng(seed)
  segments = np.zeros((rows, length), np.int32)
  for row, cut in zip(segments, rng.integers(1, length - 2, rows), strict=True):
    row[: length - 2] = 1 + (np.arange(length - 2) >= cut)
  real = segments > 0
  tokens, targets = rng.integers(0, model.vocab_size, (2, rows, length))
  return {
    'tokens': np.where(real, tokens, 0).astype(np.int32),
    'targets': np.where(real, targets, 0).astype(np.int32),
    'segment_ids': segments,
    'positions': np.tile(np.arange(length, dtype=np.int32), (rows, 1)),
    'weights': real.astype(np.float32),
  }
