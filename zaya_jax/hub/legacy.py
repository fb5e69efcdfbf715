# SPDX-License-Identifier: Apache-2.0
"""The `config.json` of the first releases: 80 alternating sub-layers.

Zyphra published it twice: with a list per setting, one entry for each
sub-layer (0 where it does not apply), and with plain numbers. Both are read,
plain numbers are written.
"""

import functools
from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.hub import values as hub_values
from zaya_jax.hub.tensors import errors

# Any of these tells this layout from the native one.
KEYS = (
  'zaya_layers',
  'ffn_hidden_size',
  'ffn_hidden_size_list',
  'zaya_mlp_expansion',
)
_KINDS = {
  'vocab_size': (int, 262272),
  'hidden_size': (int, 2048),
  'num_hidden_layers': (int, 80),
  'num_attention_heads': (int, 8),
  'head_dim': (int, None),
  'kv_channels': (int, None),
  'cca_time0': (int, 2),
  'cca_time1': (int, 2),
  'attention_bias': (bool, False),
  'zaya_use_mod': (bool, True),
  'tie_word_embeddings': (bool, True),
  'lm_head_bias': (bool, False),
  'norm_epsilon': (float, 1e-5),
  'initializer_range': (float, 0.02),
  'rope_theta': (float, None),
  'rotary_base': (float, None),
  'partial_rotary_factor': (float, 0.5),
  'swa_layers': (list, None),
  'swa_rotary_base': (float, 1e4),
  'sliding_window': (int, None),
  'layer_types': (list, None),
  'rope_parameters': (dict, None),
  'zaya_layers': (list, None),
}
# Ours, of the keys that only change their name.
_FIELDS = {
  'd_model': 'hidden_size',
  'conv_depthwise': 'cca_time0',
  'conv_grouped': 'cca_time1',
  'attention_bias': 'attention_bias',
  'vocab_size': 'vocab_size',
  'tie_embeddings': 'tie_word_embeddings',
  'head_bias': 'lm_head_bias',
  'norm_eps': 'norm_epsilon',
  'init_std': 'initializer_range',
  'rope_fraction': 'partial_rotary_factor',
}
# Keys of one number each, the first that a file has counts.
_KV_HEADS = ('num_query_groups_list', 'num_query_groups', 'num_key_value_heads')
_WIDTHS = ('ffn_hidden_size_list', 'ffn_hidden_size')
_ONLY = {
  'cca': True,
  'activation_func': 'swiglu',
  'normalization': 'RMSNorm',
  'gated_linear_unit': True,
  'add_bias_linear': False,
  'zaya_use_eda': True,
  'scale_residual_merge': True,
  'moe_router_topk': 1,
  'clamp_temp': False,  # True: keys are multiplied by exp of the temperature.
}


def fields(file: str, given: dict[str, Any]) -> dict[str, Any]:
  """Fields of our configuration. Raises FolderError, as `translate`."""
  hub_values.check_only(file, given, _ONLY)
  hf = hub_values.read(file, given, _KINDS)
  one = functools.partial(_one, file, given)
  # Heads of the full width, where the number of query heads has another key.
  heads = hf['num_attention_heads']
  wide = hf['hidden_size'] // max(heads, 1)
  # The router had its epsilon from a key that no file has, and so from a
  # default of 1e-6; training, and all later code, used that of other norms.
  hub_values.check_only(file, given, {'layernorm_epsilon': hf['norm_epsilon']})
  rope = hf['rope_parameters'] or {}
  rope = rope.get('hybrid') or rope
  hub_values.check_unscaled(file, 'rope_parameters', rope)
  theta = hf['rope_theta'] or hf['rotary_base'] or rope.get('rope_theta')
  if not theta:
    raise errors.FolderError(f'{file} has no rope_theta; add it.')
  found = {ours: hf[theirs] for ours, theirs in _FIELDS.items()} | {
    'num_layers': _num_sublayers(file, hf) // 2,
    'num_heads': one('cca_num_q_heads') or heads,
    'num_kv_heads': one(*_KV_HEADS, default=2),
    'head_dim': hf['head_dim'] or hf['kv_channels'] or wide,
    'num_experts': one('zaya_layers', 'num_experts', default=16),
    # Gate and up projections are one matrix of twice the width.
    'd_expert': one(*_WIDTHS, default=4096) // 2,
    'd_router': one('zaya_mlp_expansion', default=256),
    'rope_theta': theta,
  }
  if not hf['zaya_use_mod']:
    found['skip'] = 'off'
  return found | _sliding(file, hf, found)


def notes(given: dict[str, Any]) -> tuple[str, ...]:
  """What a user should know about the translation, one sentence each."""
  found = []
  if given.get('zaya_use_mod') is not False:
    found.append(
      'tokens of the skip class pass p * h, as in the code of this layout '
      '(--model.skip=identity); transformers drops them (zero), which is the '
      'same where the balancing bias keeps the class out of reach'
    )
  if given.get('residual_in_fp32') is False:
    found.append(
      'residual_in_fp32 is false, but the residual stream is float32 here: the '
      'same function, with less rounding'
    )
  if given.get('zaya_layers'):
    found.append(
      'the norm of the router uses norm_epsilon, as in training; the first '
      'published code read another key and fell back to 1e-6'
    )
  return tuple(found)


def to_hf(config: config_lib.ModelConfig) -> dict[str, Any]:
  """The `config.json` of a model, without what both layouts share.

  Raises:
    UsageError: if the layout cannot represent the model.
  """
  if config.sliding_window == 1:
    raise config_lib.UsageError(
      '--export.layout=legacy cannot represent --model.sliding_window=1: it '
      'counts earlier keys, and 0 means no window; use native.'
    )
  windows = {n: config.sliding_window - 1 for n in config.sliding_layers}
  sliding = {
    'swa_layers': [
      windows.get(i // 2, 0) * (i % 2 == 0)
      for i in range(2 * config.num_layers)
    ],
    'swa_rotary_base': config.sliding_rope_theta,
  }
  return {
    **_ONLY,
    **{theirs: getattr(config, ours) for ours, theirs in _FIELDS.items()},
    'num_hidden_layers': 2 * config.num_layers,
    'num_attention_heads': config.num_heads,
    'num_query_groups': config.num_kv_heads,
    'num_key_value_heads': config.num_kv_heads,
    'head_dim': config.head_dim,
    'kv_channels': config.head_dim,
    'num_experts': config.num_experts,
    'ffn_hidden_size': 2 * config.d_expert,
    'zaya_mlp_expansion': config.d_router,
    'zaya_use_mod': config.skip != 'off',
    'residual_in_fp32': True,
    'zaya_high_prec': True,
    'rope_theta': config.rope_theta,
    **(sliding if windows else {}),
  }


def _one(
  file: str, given: dict[str, Any], *keys: str, default: int | None = None
) -> int | None:
  """The number under the first of `keys` that the file has.

  A list has an entry for each sub-layer: letters and zeros are those that the
  setting does not concern, the others must agree.
  """
  key = next((k for k in keys if given.get(k) is not None), None)
  value = default if key is None else given[key]
  if isinstance(value, list):
    found = [x for x in value if x and not isinstance(x, str)]
    if not found or any(x != found[0] for x in found):
      raise errors.FolderError(
        f'{file}: {key} is {_short(value)}; only one value for all layers is '
        'known.'
      )
    value = found[0]
  if value is None:
    return None
  return hub_values.read(file, {key: value}, {key: (int, default)})[key]


def _num_sublayers(file: str, hf: dict[str, Any]) -> int:
  """How many sub-layers there are, attention and experts in turn."""
  kinds = hf['zaya_layers']
  if kinds is None:
    count, good = hf['num_hidden_layers'], hf['num_hidden_layers'] % 2 == 0
  else:
    count = len(kinds)
    good = count % 2 == 0 and kinds[::2] == ['a'] * (count // 2)
    good = good and 'a' not in kinds[1::2]
  if not good:
    raise errors.FolderError(
      f'{file}: {_short(kinds) if kinds else count} sub-layers are not '
      'attention and experts in turn.'
    )
  return count


def _sliding(
  file: str, hf: dict[str, Any], found: dict[str, Any]
) -> dict[str, Any]:
  """The window in our count, which includes the token itself."""
  count = found['num_layers']
  windows, span = hf['swa_layers'] or [], hf['sliding_window']
  if not any(windows) and span:
    if hf['layer_types'] is None:  # All layers, of the base of full attention.
      return {
        'sliding_window': span,
        'sliding_layers': tuple(range(count)),
        'sliding_rope_theta': found['rope_theta'],
      }
    windows = [(span - 1) * ('sliding' in str(t)) for t in hf['layer_types']]
  if windows and len(windows) not in (count, 2 * count):
    raise errors.FolderError(
      f'{file}: swa_layers (or layer_types) has {len(windows)} entries for '
      f'{count} layers; give one for each layer or sub-layer.'
    )
  if len(windows) == 2 * count:
    windows = windows[::2]
  sliding = tuple(n for n, window in enumerate(windows) if window)
  if not sliding:
    return {}
  window = _one(file, {'swa_layers': windows}, 'swa_layers') + 1
  if hf['swa_layers'] and span and (span, len(sliding)) != (window, count):
    raise errors.FolderError(
      f'{file}: sliding_window is {span} beside swa_layers, and would be the '
      'window of the other layers too; only one window is known, so drop it.'
    )
  return {
    'sliding_window': window,
    'sliding_layers': sliding,
    'sliding_rope_theta': hf['swa_rotary_base'],
  }


def _short(value: Any) -> str:
  text = repr(value)
  return text if len(text) < 40 else f'{text[:36]} ...'
