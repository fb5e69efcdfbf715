# SPDX-License-Identifier: Apache-2.0
"""Adapters in the format of PEFT, for transformers' ZayaForCausalLM.

The projections of attention are `target_modules`; the experts of a layer, which
transformers keeps in one array [E, out, in] each, are `target_parameters`: of
the nested wrappers that PEFT makes, the inner one is `gate_up_proj`. There
`lora_A` is [E * r, in], experts first, and `lora_B` [out, r * E], ranks first
(peft 0.21, `ParamWrapper.get_delta_weight`).
"""

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from zaya_jax import config as config_lib
from zaya_jax.hub import names as hub_names
from zaya_jax.hub.tensors import errors, shards, weights
from zaya_jax.model import shapes

CONFIG, FILE = 'adapter_config.json', 'adapter_model.safetensors'
_ROWS = {row.path: row for row in hub_names.PARAMS}
# Ours, and what PEFT calls the wrapper of that parameter.
_EXPERTS = {'experts/gate_up': '.base_layer', 'experts/down': ''}
# What a file may say of variants of LoRA that we do not have.
_ONLY = {
  'peft_type': 'LORA',
  'bias': 'none',
  'fan_in_fan_out': False,
  'use_dora': False,
  'lora_bias': False,
  'rank_pattern': {},
  'alpha_pattern': {},
  'modules_to_save': None,
  'layers_to_transform': None,
  'layer_replication': None,
  'trainable_token_indices': None,
}


def is_folder(path: str) -> bool:
  """Whether `path` holds an adapter of PEFT."""
  return os.path.isfile(os.path.join(path, CONFIG))


def check_model(path: str) -> None:
  """Refuses an adapter of PEFT where a model is wanted.

  Raises:
    FolderError: which says how it becomes one.
  """
  if is_folder(path):
    raise errors.FolderError(
      f'{path} is an adapter of PEFT; --mode=import --source={path} '
      '--restore=ITS_BASE --output=RUN makes a run of it.'
    )


def settings(lora: config_lib.LoraConfig, base: str) -> dict[str, Any]:
  """The content of `adapter_config.json`.

  Args:
    lora: rank, scale and targets.
    base: where the model is.
  """
  modules = [_module(name) for name in _adapted(lora) if name not in _EXPERTS]
  parameters = [_parameter(name) for name in _EXPERTS]
  return {
    'base_model_name_or_path': base,
    'peft_type': 'LORA',
    'task_type': 'CAUSAL_LM',
    'r': lora.rank,
    'lora_alpha': lora.scale * lora.rank,
    'lora_dropout': 0.0,
    'bias': 'none',
    'fan_in_fan_out': False,
    'init_lora_weights': True,
    'inference_mode': True,
    'use_dora': False,
    'use_rslora': False,
    'target_modules': modules,
    'target_parameters': parameters if 'experts' in lora.targets else None,
  }


def tensors(
  lora: config_lib.LoraConfig, leaves: Mapping[str, Any]
) -> list[shards.Tensor]:
  """What is written to the safetensors file; no value is read yet.

  Args:
    lora: of the adapter.
    leaves: 'params/layers/.../lora_a' to arrays of which layers can be read.
  """
  found = []
  for name in _adapted(lora):
    for factor in shapes.FACTORS:
      leaf = leaves[f'params/layers/{name}/{factor}']
      for n in range(leaf.shape[0]):
        read = _reader(leaf, n, factor, name in _EXPERTS)
        shape = read(np.broadcast_to(False, leaf.shape)).shape
        theirs = _tensor(name, factor, n)
        found.append(shards.Tensor(theirs, shape, np.dtype('float32'), read))
  return found


def _reader(leaf, n, factor, experts) -> Callable[..., np.ndarray]:
  def read(leaf=leaf):
    w = np.asarray(leaf[(n,)])
    if not experts:
      return w.T
    if factor == shapes.FACTORS[0]:  # [E, in, r]
      return w.swapaxes(1, 2).reshape(-1, w.shape[1])
    return w.transpose(2, 1, 0).reshape(w.shape[2], -1)  # Of [E, r, out].

  return read


def read_settings(folder: str) -> tuple[config_lib.LoraConfig, str]:
  """Rank, scale and targets of a folder, and the base that it names.

  Raises:
    FolderError: if it is of a kind that we do not have.
  """
  file = os.path.join(folder, CONFIG)
  given = weights.read_json(file)
  for key, value in _ONLY.items():
    if given.get(key, value) not in (value, None):
      raise errors.FolderError(
        f'{file}: {key} is {given[key]!r}; only {value!r} is known.'
      )
  rank, alpha = given.get('r'), given.get('lora_alpha')
  if type(rank) is not int or type(alpha) not in (int, float):
    raise errors.FolderError(
      f'{file}: r is {rank!r} and lora_alpha {alpha!r}; both must be numbers.'
    )
  if given.get('use_rslora'):
    alpha *= rank**0.5
  lora = config_lib.LoraConfig(
    rank=rank, alpha=float(alpha), targets=_targets(file, given)
  )
  return lora, given.get('base_model_name_or_path') or ''


def _targets(file, given) -> tuple[str, ...]:
  """What of --lora.targets a file says; all or none of each."""
  found = []
  for target, names, key in (
    ('attention', map(_module, shapes.ADAPTED['attention']), 'target_modules'),
    ('experts', map(_parameter, _EXPERTS), 'target_parameters'),
  ):
    last = lambda name: name.rpartition('.')[2]
    listed = given.get(key) or []
    said = sorted(map(last, [listed] if isinstance(listed, str) else listed))
    if said and said != sorted(map(last, names)):
      raise errors.FolderError(
        f'{file}: {key} is {", ".join(said)}; all that --lora.targets={target} '
        'means must be there, and nothing else.'
      )
    found += [target] * bool(said)
  if not found:
    raise errors.FolderError(f'{file} names nothing that is adapted.')
  return tuple(found)


def read(
  folder: str, model: config_lib.ModelConfig, lora: config_lib.LoraConfig
) -> dict[str, np.ndarray]:
  """Our arrays by path, float32, of an adapter for this model.

  Raises:
    FolderError: if a tensor is missing, unexpected or of another shape.
  """
  file = weights.inside(folder, FILE)
  there = {tensor.name: tensor for tensor in weights.read_header(file)}
  found = {}
  for path, shape in shapes.adapters(model, lora).items():
    name, _, factor = path.removeprefix('layers/').rpartition('/')
    found[path] = np.empty(shape, np.float32)
    for n in range(shape[0]):
      theirs = _tensor(name, factor, n)
      tensor = there.pop(theirs, None)
      wanted = _reader(found[path], n, factor, name in _EXPERTS)().shape
      if tensor is None or tensor.shape != wanted:
        what = 'no such tensor' if tensor is None else f'shape {tensor.shape}'
        raise errors.FolderError(
          f'{file}: {theirs} must have shape {wanted}, and there is {what}; '
          'the adapter is of another model.'
        )
      found[path][n] = _ours(tensor.read(), shape[1:], factor)
  if there:
    raise errors.FolderError(
      f'{file} has {len(there)} tensors that its {CONFIG} does not explain, '
      f'such as {min(there)}; they would be lost.'
    )
  return found


def _ours(w, shape, factor) -> np.ndarray:
  """Inverse of `_reader`."""
  if len(shape) == 2:
    return w.T
  experts, rows, columns = shape
  if factor == shapes.FACTORS[0]:
    return w.reshape(experts, columns, rows).swapaxes(1, 2)
  return w.reshape(columns, rows, experts).transpose(2, 1, 0)


def write(
  folder: str,
  lora: config_lib.LoraConfig,
  leaves: Mapping[str, Any],
  base: str,
) -> None:
  """Writes both files; arguments as of `tensors` and `settings`."""
  with open(os.path.join(folder, CONFIG), 'w', encoding='utf-8') as f:
    json.dump(settings(lora, base), f, indent=2)
  shards.write_file(os.path.join(folder, FILE), tensors(lora, leaves))


def _adapted(lora) -> list[str]:
  return [name for target in lora.targets for name in shapes.ADAPTED[target]]


def _native(name) -> str:
  return _ROWS[f'layers/{name}'].native.removesuffix('.weight')


def _module(name) -> str:
  return _native(name).rpartition('.')[2]


def _parameter(name) -> str:
  return _native(name).partition('{n}.')[2]


def _tensor(name, factor, n) -> str:
  """PEFT's name of a factor in layer n."""
  where = _native(name).format(n=n)
  if name in _EXPERTS:
    where = where.rpartition('.')[0] + _EXPERTS[name]
  letter = factor[-1].upper()
  return f'base_model.model.{where}.lora_{letter}.weight'
