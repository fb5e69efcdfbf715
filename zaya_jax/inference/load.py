# SPDX-License-Identifier: Apache-2.0
"""Models from wherever they lie: a run, a checkpoint, a Hugging Face folder."""

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pipelines import tokenizer as tokenizer_lib
from zaya_jax import config as config_lib
from zaya_jax.checkpoint import arrays, errors, meta
from zaya_jax.checkpoint.reading import finder, reader
from zaya_jax.hub import folder as hub_folder
from zaya_jax.hub import leaves as leaves_lib
from zaya_jax.hub import packing
from zaya_jax.hub.adapters import adapter, peft
from zaya_jax.hub.quantized import choice as choice_lib
from zaya_jax.inference import activations as activations_lib
from zaya_jax.inference import model as model_lib
from zaya_jax.model import zaya
from zaya_jax.model.packed import is_packed
from zaya_jax.parallel import mesh as mesh_lib


def load(
  path: str,
  base: str = '',
  quant: choice_lib.Choice | str = choice_lib.NONE,
) -> model_lib.Model:
  """Reads a model.

  Args:
    path: a run directory (its newest checkpoint), one checkpoint, or a Hugging
      Face ZAYA folder of either layout.
    base: of a run that trained an adapter (--lora.*), where its base is now;
      empty: where it was.
    quant: which matrices are rounded to few bits, or 'int8' or 'int4'. A
      folder in which they are stored so keeps them.

  Raises:
    UsageError: if there is no such folder, or it cannot be rounded.
    CheckpointError: if it holds no complete checkpoint, the tokenizer of
      another run, or an array with NaN or Inf.
    ValueError: if a Hugging Face folder is not one of ZAYA.
  """
  if not os.path.isdir(path):
    raise config_lib.UsageError(
      f'There is no folder {path}; name a run directory, a checkpoint or a '
      'Hugging Face folder (--source).'
    )
  peft.check_model(path)
  if isinstance(quant, str):
    quant = choice_lib.make(quant)
  read_from = path
  if hub_folder.is_folder(path):
    config = hub_folder.read_config(path)
    params, buffers = _of_folder(path, config, quant)
    tokenizer = hub_folder.read_tokenizer(path, config)
    stop_ids = hub_folder.read_stop_ids(path)
    max_positions = hub_folder.read_max_positions(path)
  else:
    read_from = directory = finder.resolve(path)
    about = meta.read(directory)
    config = meta.model_config(about)
    params, buffers = _arrays(directory, config, about, base, quant)
    run_dir = os.path.dirname(os.path.dirname(directory))
    tokenizer = _run_tokenizer(run_dir, about['tokenizer_sha256'])
    stop_ids = tokenizer.stop_ids if tokenizer else ()
    max_positions = None
    if os.path.exists(os.path.join(run_dir, hub_folder.KEPT_CONFIG)):
      stop_ids = hub_folder.read_stop_ids(run_dir, hub_folder.KEPT_CONFIG)
      max_positions = hub_folder.read_max_positions(
        run_dir, hub_folder.KEPT_CONFIG
      )
  if not any(map(is_packed, jax.tree.leaves(params, is_leaf=is_packed))):
    arrays.check_finite(read_from, {'params': params, 'buffers': buffers})
  return model_lib.Model(
    config=config,
    params=params,
    buffers=buffers,
    tokenizer=tokenizer,
    stop_ids=stop_ids,
    max_positions=max_positions,
  )


def _of_folder(path, config, quant) -> tuple[Any, Any]:
  """Parameters and buffers of a Hugging Face folder."""
  found = leaves_lib.find(path)
  if packing.wanted(found, quant):
    return packing.read(found, quant)
  return hub_folder.read_params(path, config)


def _arrays(directory, config, about, base, quant) -> tuple[Any, Any]:
  """Parameters and buffers of a checkpoint, an adapter merged in."""
  if quant:
    merged = adapter.open_model(directory, base)
    packing.wanted(merged, quant)
    return packing.read(merged, quant)
  if adapter.of(about):
    merged = leaves_lib.read(adapter.open_model(directory, base))
    found = jax.tree.map(jnp.asarray, merged)
  else:
    restored = reader.restore_params(directory, _abstract_params(config))
    # Without the mesh in their types: decoding makes arrays that have none.
    found = mesh_lib.off_mesh(restored)
  return found['params'], found['buffers']


_forward = jax.jit(activations_lib.forward, static_argnums=0)


def activations(
  model: model_lib.Model, tokens: Any, attention_mask: Any = None
) -> dict[str, np.ndarray]:
  """What every part of a model computes, for looking inside.

  Args:
    model: of `load`.
    tokens: [B, L] int.
    attention_mask: [B, L], 0 for padding, on the left; None: no padding.

  Returns:
    Arrays by the names of docs/conformance.md: 'layers.0.attn.q_proj',
    'layers.0.router.probs', 'logits', each [B, L, ...].
  """
  tokens = jnp.asarray(tokens)
  mask = jnp.ones_like(tokens) if attention_mask is None else attention_mask
  arrays = (model.params, model.buffers, tokens, jnp.asarray(mask, bool))
  with jax.default_matmul_precision('highest'):
    found = _forward(model.config, *arrays)
  return {name: np.asarray(value) for name, value in found.items()}


def _abstract_params(config: config_lib.ModelConfig) -> dict[str, Any]:
  """Shapes of 'params' and 'buffers' on one device, as a restore needs."""
  params, buffers = jax.eval_shape(lambda: zaya.init(config, jax.random.key(0)))
  mesh = mesh_lib.make_mesh(config_lib.MeshConfig(replica=1))
  return arrays.on_mesh({'params': params, 'buffers': buffers}, mesh)


def _folder_tokenizer(folder: str) -> tokenizer_lib.Tokenizer | None:
  path = os.path.join(folder, tokenizer_lib.FILE_NAME)
  return tokenizer_lib.load(path) if os.path.exists(path) else None


def _run_tokenizer(run_dir: str, sha256: str) -> tokenizer_lib.Tokenizer | None:
  """The tokenizer of a run; None: its file did not come with the checkpoint."""
  found = _folder_tokenizer(run_dir)
  if found and found.sha256 != sha256:
    raise errors.CheckpointError(
      f'{run_dir}/{tokenizer_lib.FILE_NAME} is not the tokenizer that the run '
      f'was trained with (sha256 {sha256[:12]}); put that one there.'
    )
  plain = tokenizer_lib.load('bytes')
  return found or (plain if plain.sha256 == sha256 else None)
