# SPDX-License-Identifier: Apache-2.0
"""Names and shapes of all parameters, from the settings alone: no jax.

Of what is under 'layers' the first dimension counts layers. A matrix that
--quant rounds consists of numbers and scales: `packed_arrays`.
"""

import ml_dtypes
import numpy as np

from zaya_jax import config as config_lib
from zaya_jax.parallel import placement

# What --lora.targets names: matrices of a layer.
ADAPTED = {
  'attention': tuple(
    f'attn/{name}' for name in ('q', 'k', 'v_current', 'v_delayed', 'out')
  ),
  'experts': ('experts/gate_up', 'experts/down'),
}
# Paths of all of these, which layers multiply in the compute type.
MULTIPLIED = frozenset(
  f'layers/{name}' for names in ADAPTED.values() for name in names
)
# What --quant.targets names.
_ROUNDED = {
  **{
    target: frozenset(f'layers/{name}' for name in names)
    for target, names in ADAPTED.items()
  },
  'embedding': frozenset(('embed', 'head')),
}
GROUP = 64  # Inputs that share a scale of int4, at most.
SCALE = np.dtype(ml_dtypes.bfloat16)
FACTORS = placement.FACTORS
# The matrix itself, where it is packed: layers take it from beside, too.
PACKED = 'packed'


def parameters(model: config_lib.ModelConfig) -> dict[str, tuple[int, ...]]:
  """The shape of each parameter by its path, in the order of the tree."""
  d = model.d_model
  found = {
    'embed': (model.vocab_size, d),
    **_vectors('', d, 'input_scale input_bias final_norm'),
    **{f'layers/{k}': (model.num_layers, *v) for k, v in _layer(model).items()},
  }
  if not model.tie_embeddings:
    found['head'] = (model.vocab_size, d)
  if model.head_bias:
    found['head_bias'] = (model.vocab_size,)
  return dict(sorted(found.items(), key=lambda item: item[0].split('/')))


def adapters(
  model: config_lib.ModelConfig, lora: config_lib.LoraConfig
) -> dict[str, tuple[int, ...]]:
  """The shapes of the adapters by path, in the order of their tree.

  Beside a matrix [..., rows, columns] there are `lora_a` [..., rows, rank] and
  `lora_b` [..., rank, columns]: each layer, and each expert, has its own.
  """
  whole, found = parameters(model), {}
  for name in sorted(n for target in lora.targets for n in ADAPTED[target]):
    *lead, rows, columns = whole[f'layers/{name}']
    shapes = (*lead, rows, lora.rank), (*lead, lora.rank, columns)
    for factor, shape in zip(FACTORS, shapes, strict=True):
      found[f'layers/{name}/{factor}'] = shape
  return found


def kind_of(path: str, kind: str, targets: tuple[str, ...]) -> str | None:
  """The kind of a parameter, by its path; None: it stays as it is.

  The embedding has 8 bits at the least: its rows are looked up as well.

  Args:
    path: of the parameter.
    kind: of --quant.
    targets: of --quant.targets.
  """
  named = any(path in _ROUNDED[target] for target in targets)
  if kind == 'none' or not named:
    return None
  return 'int8' if path in _ROUNDED['embedding'] else kind


def kind_in_run(config: config_lib.Config, path: str) -> str | None:
  """The kind of a parameter in the base of a run with --quant."""
  return kind_of(path, config.quant, config.quantization.targets)


def group_of(inputs: int) -> int:
  """Inputs that share a scale of int4: the largest even divisor up to GROUP.

  Raises:
    ValueError: if the number of inputs is odd.
  """
  found = [g for g in range(2, min(GROUP, inputs) + 1, 2) if inputs % g == 0]
  if not found:
    raise ValueError(f'{inputs} inputs are odd, and two share a byte')
  return found[-1]


def packed_arrays(
  path: str, shape: tuple[int, ...], kind: str
) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
  """Shape and type of the arrays that a packed parameter consists of.

  Args:
    path: of the parameter; that of a layer is [..., in, out].
    shape: whole.
    kind: 'int8' or 'int4'.

  Returns:
    By the names of the fields of `ops.experts.packed.Packed`.
  """
  *lead, outputs, inputs = shape
  if path.startswith('layers/'):
    outputs, inputs = inputs, outputs
  four = kind == 'int4'
  stored = inputs // 2 if four else inputs
  groups = inputs // group_of(inputs) if four else 1
  values = np.dtype(np.uint8 if four else np.int8)
  return {
    'values': ((*lead, outputs, stored), values),
    'scale': ((*lead, outputs, groups), SCALE),
  }


def _layer(model) -> dict[str, tuple[int, ...]]:
  d, c, r = model.d_model, model.head_dim, model.d_router
  width, kv_width = model.num_heads * c, model.num_kv_heads * c
  found = {
    **_vectors('', d, 'attn_norm moe_norm'),
    'attn/temperature': (model.num_kv_heads,),
    'experts/gate_up': (model.num_experts, d, 2 * model.d_expert),
    'experts/down': (model.num_experts, model.d_expert, d),
    'router/out': (r if model.router == 'mlp' else d, model.num_classes),
  }
  if model.attention == 'cca':
    found |= {
      'attn/conv_depthwise': (model.conv_depthwise, model.d_qk),
      'attn/conv_grouped': (model.conv_grouped, model.d_qk // c, c, c),
      **_vectors('attn/', model.d_qk, 'conv_depthwise_bias conv_grouped_bias'),
    }
  if model.router == 'mlp':
    found |= {
      'router/down': (d, r),
      'router/fc1': (r, r),
      'router/fc2': (r, r),
      **_vectors('router/', r, 'down_bias eda norm fc1_bias fc2_bias'),
    }
  for merge in ('attn_merge/', 'moe_merge/'):
    names = 'branch_scale branch_bias residual_scale residual_bias'
    found |= _vectors(merge, d, names)
  for name, shape in {
    'q': (d, width),
    'k': (d, kv_width),
    'v_current': (d, kv_width // 2),
    'v_delayed': (d, kv_width // 2),
    'out': (width, d),
  }.items():
    found[f'attn/{name}'] = shape
    if model.attention_bias:
      found[f'attn/{name}_bias'] = shape[1:]
  return found


def _vectors(prefix, size, names):
  return {f'{prefix}{name}': (size,) for name in names.split()}
