# SPDX-License-Identifier: Apache-2.0
"""Reads a native Hugging Face ZAYA folder: config.json and safetensors.

Native means the layout of `transformers.ZayaForCausalLM`. Neither torch nor
transformers is needed. What our model cannot represent is refused by name;
settings of training alone (dropout, initial temperature) are not read.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

import jax
import ml_dtypes  # noqa: F401  Makes bfloat16 a NumPy dtype, for safetensors.
import numpy as np
import safetensors

from zaya_jax import config as config_lib
from zaya_jax.interop import hf_table
from zaya_jax.model import zaya

# What `transformers.ZayaConfig` assumes for a key that the file leaves out.
_DEFAULTS = {
  'vocab_size': 262272,
  'hidden_size': 2048,
  'num_hidden_layers': 40,
  'num_attention_heads': 8,
  'num_key_value_heads': 2,
  'head_dim': 128,
  'cca_time0': 2,
  'cca_time1': 2,
  'attention_bias': False,
  'num_experts': 16,
  'moe_intermediate_size': 2048,
  'router_hidden_size': 256,
  'tie_word_embeddings': True,
  'lm_head_bias': False,
  'rms_norm_eps': 1e-5,
  'initializer_range': 0.02,
  'hidden_act': 'silu',
  'num_experts_per_tok': 1,
  'sliding_window': None,
  'layer_types': None,
  'rope_parameters': None,
}
_ROPE_DEFAULTS = {
  'hybrid': {'rope_theta': 5e6, 'partial_rotary_factor': 0.5},
  'hybrid_sliding': {'rope_theta': 1e4, 'partial_rotary_factor': 0.5},
}
# Keys of the first releases: 80 alternating sub-layers under other names.
_LEGACY_KEYS = ('ffn_hidden_size', 'zaya_layers', 'zaya_mlp_expansion')


def is_folder(path: str) -> bool:
  """Whether `path` holds a Hugging Face model, of whatever kind."""
  return os.path.isfile(os.path.join(path, 'config.json')) and (
    os.path.isfile(os.path.join(path, 'model.safetensors'))
    or os.path.isfile(os.path.join(path, 'model.safetensors.index.json'))
  )


def read_config(path: str) -> config_lib.ModelConfig:
  """Translates `config.json` of the folder `path`.

  Raises:
    ValueError: if the file is missing, or says what ours cannot represent.
  """
  file = os.path.join(path, 'config.json')
  given = _read_json(file)
  _check_kind(file, given)
  hf = {key: given.get(key, value) for key, value in _DEFAULTS.items()}
  types = hf['layer_types'] or ['hybrid'] * hf['num_hidden_layers']
  _check_supported(file, hf, types)
  sliding = tuple(i for i, t in enumerate(types) if t == 'hybrid_sliding')
  fraction, theta, sliding_theta = _rope(file, hf, types)
  return config_lib.ModelConfig(
    num_layers=hf['num_hidden_layers'],
    d_model=hf['hidden_size'],
    num_heads=hf['num_attention_heads'],
    num_kv_heads=hf['num_key_value_heads'],
    head_dim=hf['head_dim'],
    conv_depthwise=hf['cca_time0'],
    conv_grouped=hf['cca_time1'],
    attention_bias=hf['attention_bias'],
    num_experts=hf['num_experts'],
    d_expert=hf['moe_intermediate_size'],
    d_router=hf['router_hidden_size'],
    skip='zero',
    vocab_size=hf['vocab_size'],
    tie_embeddings=hf['tie_word_embeddings'],
    head_bias=hf['lm_head_bias'],
    rope_theta=theta,
    rope_fraction=fraction,
    sliding_window=hf['sliding_window'] if sliding else 0,
    sliding_layers=sliding,
    sliding_rope_theta=sliding_theta,
    norm_eps=hf['rms_norm_eps'],
    init_std=hf['initializer_range'],
  )


def read_params(
  path: str, config: config_lib.ModelConfig
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Reads every tensor of the folder `path`.

  Args:
    path: folder with `model.safetensors`, or its shards and their index.
    config: the model, from `read_config`.

  Returns:
    params, buffers: nested dicts of float32 NumPy arrays in the structure of
      `zaya.init`; the caller places them on its devices.

  Raises:
    ValueError: if a tensor is missing, unexpected or of another shape.
  """
  shapes = jax.eval_shape(lambda key: zaya.init(config, key), jax.random.key(0))
  with contextlib.ExitStack() as stack:
    tensors = _Tensors(path, stack)
    params = dict(_read_rows(tensors, hf_table.PARAMS, _flatten(shapes[0])))
    buffers = dict(_read_rows(tensors, hf_table.BUFFERS, _flatten(shapes[1])))
    if config.tie_embeddings:
      tensors.check_copy('lm_head.weight', 'model.embed_tokens.weight')
    tensors.check_all_used()
  return _nest(params), _nest(buffers)


class _Tensors:
  """The tensors of a folder by name, and which of them were used."""

  def __init__(self, path: str, stack: contextlib.ExitStack):
    self._path = path
    self._file_of = {}
    self._used = set()
    for file in _weight_files(path):
      handle = stack.enter_context(_open(os.path.join(path, file)))
      self._file_of |= dict.fromkeys(handle.keys(), handle)

  def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The tensor `name` as stored; it must have this shape."""
    if name not in self._file_of:
      raise ValueError(
        f'{self._path} has no tensor {name}, which its config.json asks for; '
        'the folder is incomplete or of another model.'
      )
    self._used.add(name)
    found = tuple(self._file_of[name].get_slice(name).get_shape())
    if found != shape:
      raise ValueError(
        f'{self._path}: tensor {name} has shape {found}, but its config.json '
        f'asks for {shape}.'
      )
    return self._file_of[name].get_tensor(name)

  def check_copy(self, name: str, original: str) -> None:
    """Accepts a stored copy of a tied tensor if it is one."""
    if name not in self._file_of:
      return
    self._used.add(name)
    copy, kept = (self._file_of[n].get_tensor(n) for n in (name, original))
    if not np.array_equal(copy, kept):
      raise ValueError(
        f'{self._path}: config.json ties {name} to {original}, but their '
        'values differ; set "tie_word_embeddings" to false there.'
      )

  def check_all_used(self) -> None:
    """Refuses tensors that no leaf of the model took."""
    unused = sorted(self._file_of.keys() - self._used)
    if unused:
      raise ValueError(
        f'{self._path} has {len(unused)} tensors that its config.json does not '
        f'explain, such as {unused[0]}; they would be lost.'
      )


def _read_rows(
  tensors: _Tensors,
  rows: tuple[hf_table.Row, ...],
  shapes: dict[str, tuple[int, ...]],
) -> Iterator[tuple[str, np.ndarray]]:
  """Yields (path, float32 array) for the rows that the model has."""
  for row in rows:
    if row.path not in shapes:
      continue
    # Zeros: what the model's unused first EDA vector holds.
    leaf = np.zeros(shapes[row.path], np.float32)
    parts = leaf if row.stacked else leaf[None]
    theirs = row.layout.write(np.broadcast_to(False, parts.shape[1:])).shape
    for n in row.layers(len(parts)):
      tensor = tensors.read(row.name.format(n=n), theirs)
      parts[n] = row.layout.read(tensor)
    yield row.path, leaf


def _check_kind(file: str, given: dict[str, Any]) -> None:
  """Refuses other models, and ZAYA in its first layout."""
  if given.get('model_type') != 'zaya':
    raise ValueError(
      f"{file}: model_type is {given.get('model_type')!r}; only 'zaya' can "
      'be read.'
    )
  legacy = [key for key in _LEGACY_KEYS if key in given]
  if legacy:
    raise ValueError(
      f'{file}: {legacy[0]} belongs to the first layout of ZAYA, which counts '
      'attention and experts as separate layers (80, not 40); use the folder '
      'that was converted for transformers 5.'
    )


def _check_supported(file: str, hf: dict[str, Any], types: list[str]) -> None:
  """Refuses settings that our model does not have."""
  for key, only in (('hidden_act', 'silu'), ('num_experts_per_tok', 1)):
    if hf[key] != only:
      raise ValueError(f'{file}: {key} is {hf[key]!r}; only {only!r} is known.')
  if len(types) != hf['num_hidden_layers']:
    raise ValueError(
      f'{file}: layer_types has {len(types)} entries, but num_hidden_layers is '
      f'{hf["num_hidden_layers"]}; they must agree.'
    )
  unknown = sorted(set(types) - _ROPE_DEFAULTS.keys())
  if unknown:
    raise ValueError(
      f'{file}: layer_types has {unknown[0]!r}; only '
      f'{" and ".join(map(repr, _ROPE_DEFAULTS))} are known.'
    )
  if 'hybrid_sliding' in types and not hf['sliding_window']:
    raise ValueError(
      f'{file}: sliding_window is {hf["sliding_window"]}, but layer_types has '
      "'hybrid_sliding'; set the window."
    )


def _rope(
  file: str, hf: dict[str, Any], types: list[str]
) -> tuple[float, float, float]:
  """The rotated fraction, and the bases of full and of sliding layers."""
  # Released files carry a stray 'rope_type' beside the two nested dicts.
  given = hf['rope_parameters'] or _ROPE_DEFAULTS
  fractions, thetas = (
    set(),
    {t: r['rope_theta'] for t, r in _ROPE_DEFAULTS.items()},
  )
  for kind in sorted(set(types)):
    rope = given.get(kind)
    if not isinstance(rope, dict) or 'rope_theta' not in rope:
      raise ValueError(
        f'{file}: rope_parameters has no rope_theta for {kind!r} layers; give '
        f'{{"{kind}": {{"rope_theta": ...}}}}.'
      )
    if rope.get('rope_type', 'default') != 'default':
      raise ValueError(
        f'{file}: rope_type of {kind!r} layers is {rope["rope_type"]!r}; only '
        "'default' is known."
      )
    fractions.add(rope.get('partial_rotary_factor', 1.0))
    thetas[kind] = float(rope['rope_theta'])
  if len(fractions) > 1:
    raise ValueError(
      f'{file}: partial_rotary_factor differs between layer types '
      f'({sorted(fractions)}); only one for all layers is known.'
    )
  return fractions.pop(), thetas['hybrid'], thetas['hybrid_sliding']


def _weight_files(path: str) -> list[str]:
  """Names of the files that hold the tensors."""
  index = os.path.join(path, 'model.safetensors.index.json')
  if os.path.exists(index):
    return sorted(set(_read_json(index)['weight_map'].values()))
  return ['model.safetensors']


def _open(file: str) -> Any:
  """Opens one safetensors file for NumPy."""
  try:
    return safetensors.safe_open(file, framework='numpy')
  except (OSError, safetensors.SafetensorError) as error:
    raise ValueError(f'{file} cannot be read: {error}.') from error


def _read_json(file: str) -> dict[str, Any]:
  """Reads one JSON object."""
  try:
    with open(file, encoding='utf-8') as f:
      return json.load(f)
  except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
    raise ValueError(f'{file} cannot be read: {error}.') from error


def _flatten(tree: Any) -> dict[str, tuple[int, ...]]:
  """{'layers/attn/q': shape, ...} of a nested dict of arrays."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {
    '/'.join(str(key.key) for key in path): leaf.shape for path, leaf in leaves
  }


def _nest(leaves: dict[str, np.ndarray]) -> dict[str, Any]:
  """Inverse of `_flatten`."""
  tree = {}
  for path, leaf in leaves.items():
    *parents, last = path.split('/')
    node = tree
    for parent in parents:
      node = node.setdefault(parent, {})
    node[last] = leaf
  return tree
