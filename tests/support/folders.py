# SPDX-License-Identifier: Apache-2.0
"""Hugging Face folders of tiny models, written without torch."""

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import safetensors.numpy

from tests.support import tiny
from zaya_jax import config as config_lib
from zaya_jax.hub import config as hub_config
from zaya_jax.hub import names as hub_names


def model(**changes: Any) -> config_lib.ModelConfig:
  """Two kinds of layers, every bias and a vocabulary of bytes."""
  settings = {
    'num_layers': 3,
    'vocab_size': 260,
    'attention_bias': True,
    'tie_embeddings': False,
    'head_bias': True,
    'sliding_window': 5,
    'sliding_layers': (1,),
  }
  return tiny.config(**{**settings, **changes})


def export(
  rows: tuple[hub_names.Row, ...],
  tree: dict[str, Any],
  layout: hub_names.Layout = 'native',
) -> Iterator[tuple[str, np.ndarray]]:
  """Yields (their name, array with their axes) for every leaf of `tree`."""
  leaves = hub_names.flatten(tree)
  for row in rows:
    if row.path in leaves:
      leaf = np.asarray(leaves[row.path])
      for name, index in row.tensors(layout, leaf.shape):
        yield name, row.axes.write(leaf[index])


def tensors(
  config: config_lib.ModelConfig, layout: hub_names.Layout, seed: int = 0
) -> dict[str, np.ndarray]:
  """Random tensors by name: bfloat16, the balancing bias float32."""
  params, buffers = tiny.arrays(config, seed)
  found = {
    name: np.ascontiguousarray(value).astype(ml_dtypes.bfloat16)
    for name, value in export(hub_names.PARAMS, params, layout)
  }
  biases = export(hub_names.BUFFERS, buffers, layout)
  return found | {name: np.ascontiguousarray(x) for name, x in biases}


def write(
  folder: pathlib.Path,
  layout: hub_names.Layout,
  values: dict[str, np.ndarray],
  config: config_lib.ModelConfig,
  *,
  shards: int = 1,
  **changes: Any,
) -> str:
  """Writes a folder; `changes` are keys of its config.json."""
  folder.mkdir(exist_ok=True)
  settings = hub_config.to_hf(config, layout) | {'eos_token_id': 7} | changes
  (folder / 'config.json').write_text(json.dumps(settings))
  if shards == 1:
    safetensors.numpy.save_file(values, folder / 'model.safetensors')
    return str(folder)
  names = sorted(values)
  index = {}
  for i in range(shards):
    part, file = names[i::shards], f'model-{i}.safetensors'
    index |= dict.fromkeys(part, file)
    safetensors.numpy.save_file({n: values[n] for n in part}, folder / file)
  (folder / 'model.safetensors.index.json').write_text(
    json.dumps({'weight_map': index})
  )
  return str(folder)
