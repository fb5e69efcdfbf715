# SPDX-License-Identifier: Apache-2.0
"""Translates the `config.json` of a Hugging Face ZAYA folder, both directions.

The native layout is here, that of the first releases in `legacy`. A setting
that the other side does not have is refused by name. Settings of training alone
(dropout, initial temperature) are neither read nor written.
"""

from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.hub import legacy
from zaya_jax.hub import names as hub_names
from zaya_jax.hub import values as hub_values
from zaya_jax.hub.tensors import errors

# What `transformers.ZayaConfig` assumes for a key that the file leaves out.
_KINDS = {
  'vocab_size': (int, 262272),
  'hidden_size': (int, 2048),
  'num_hidden_layers': (int, 40),
  'num_attention_heads': (int, 8),
  'num_key_value_heads': (int, 2),
  'head_dim': (int, 128),
  'cca_time0': (int, 2),
  'cca_time1': (int, 2),
  'attention_bias': (bool, False),
  'num_experts': (int, 16),
  'moe_intermediate_size': (int, 2048),
  'router_hidden_size': (int, 256),
  'tie_word_embeddings': (bool, True),
  'lm_head_bias': (bool, False),
  'rms_norm_eps': (float, 1e-5),
  'initializer_range': (float, 0.02),
  'sliding_window': (int, None),
  'layer_types': (list, None),
  'rope_parameters': (dict, None),
}
# Ours, of the keys that only change their name.
_FIELDS = {
  'num_layers': 'num_hidden_layers',
  'd_model': 'hidden_size',
  'num_heads': 'num_attention_heads',
  'num_kv_heads': 'num_key_value_heads',
  'head_dim': 'head_dim',
  'conv_depthwise': 'cca_time0',
  'conv_grouped': 'cca_time1',
  'attention_bias': 'attention_bias',
  'num_experts': 'num_experts',
  'd_expert': 'moe_intermediate_size',
  'd_router': 'router_hidden_size',
  'vocab_size': 'vocab_size',
  'tie_embeddings': 'tie_word_embeddings',
  'head_bias': 'lm_head_bias',
  'norm_eps': 'rms_norm_eps',
  'init_std': 'initializer_range',
}
_ONLY = {'hidden_act': 'silu', 'num_experts_per_tok': 1}
_ROPE_DEFAULTS = {
  'hybrid': {'rope_theta': 5e6, 'partial_rotary_factor': 0.5},
  'hybrid_sliding': {'rope_theta': 1e4, 'partial_rotary_factor': 0.5},
}
# What each layout does with a token of the skip class: transformers drops it,
# Zyphra's code of the first layout passes p * h. Where the class is out of
# reach, as in the released weights, both are the same.
SKIP = {'native': 'zero', 'legacy': 'identity'}


def layout_of(given: dict[str, Any]) -> hub_names.Layout:
  """Which of the two layouts a `config.json` describes."""
  has = lambda keys: any(given.get(key) is not None for key in keys)
  native = has(('moe_intermediate_size', 'router_hidden_size'))
  return 'legacy' if has(legacy.KEYS) and not native else 'native'


def translate(file: str, given: dict[str, Any]) -> config_lib.ModelConfig:
  """The model that `given` describes.

  Args:
    file: its path, for error messages.
    given: the content of `config.json`, of either layout.

  Raises:
    FolderError: if it says what our model cannot represent.
    UsageError: if a value breaks a rule of ours.
  """
  if given.get('model_type') != 'zaya':
    raise errors.FolderError(
      f"{file}: model_type is {given.get('model_type')!r}; only 'zaya' can "
      'be read.'
    )
  hub_values.check_only(file, given, _ONLY)
  hub_values.check_unscaled(file, 'rope_scaling', given.get('rope_scaling'))
  layout = layout_of(given)
  read = legacy.fields if layout == 'legacy' else _fields
  found = {'skip': SKIP[layout]} | read(file, given)
  return config_lib.ModelConfig(**found)


def notes(given: dict[str, Any]) -> tuple[str, ...]:
  """What a user should know about the translation, one sentence each."""
  return legacy.notes(given) if layout_of(given) == 'legacy' else ()


def to_hf(
  config: config_lib.ModelConfig, layout: hub_names.Layout
) -> dict[str, Any]:
  """The `config.json` of a model; `translate` of it gives `config` again.

  Types, token ids and the longest position are not the model's: add `dtype`,
  `bos_token_id`, `eos_token_id`, `pad_token_id` and `max_position_embeddings`.
  `config.skip` is written as `SKIP` says: whether that changes anything depends
  on the balancing bias.

  Raises:
    UsageError: if the layout cannot represent the model.
  """
  config.check_published('--mode=export')
  common = {'architectures': ['ZayaForCausalLM'], 'model_type': 'zaya'}
  if layout == 'legacy':
    return common | legacy.to_hf(config)
  if config.skip == 'off':
    raise config_lib.UsageError(
      '--export.layout=native cannot represent --model.skip=off: its router '
      'always has a skip class; use --export.layout=legacy.'
    )
  layers = range(config.num_layers)
  types = [
    'hybrid_sliding' if n in config.sliding_layers else 'hybrid' for n in layers
  ]
  thetas = {
    'hybrid': config.rope_theta,
    'hybrid_sliding': config.sliding_rope_theta,
  }
  return {
    **common,
    **{theirs: getattr(config, ours) for ours, theirs in _FIELDS.items()},
    **_ONLY,
    'sliding_window': config.sliding_window or None,
    'layer_types': types,
    'rope_parameters': {
      kind: {
        'rope_type': 'default',
        'rope_theta': thetas[kind],
        'partial_rotary_factor': config.rope_fraction,
      }
      for kind in sorted(set(types))
    },
  }


def _fields(file: str, given: dict[str, Any]) -> dict[str, Any]:
  """Fields of our configuration, from the native layout."""
  hf = hub_values.read(file, given, _KINDS)
  types = hf['layer_types'] or ['hybrid']
  _check_types(file, hf)
  sliding = tuple(i for i, t in enumerate(types) if t == 'hybrid_sliding')
  fraction, theta, sliding_theta = _rope(file, hf, types)
  return {ours: hf[theirs] for ours, theirs in _FIELDS.items()} | {
    'rope_theta': theta,
    'rope_fraction': fraction,
    'sliding_window': hf['sliding_window'] if sliding else 0,
    'sliding_layers': sliding,
    'sliding_rope_theta': sliding_theta,
  }


def _check_types(file: str, hf: dict[str, Any]) -> None:
  """Refuses kinds of layers that our model does not have."""
  types = hf['layer_types']
  if not types:
    return
  if len(types) != hf['num_hidden_layers']:
    raise errors.FolderError(
      f'{file}: layer_types has {len(types)} entries, but num_hidden_layers is '
      f'{hf["num_hidden_layers"]}; they must agree.'
    )
  unknown = [t for t in types if t not in [*_ROPE_DEFAULTS]]
  if unknown:
    raise errors.FolderError(
      f'{file}: layer_types has {unknown[0]!r}; only '
      f'{" and ".join(map(repr, _ROPE_DEFAULTS))} are known.'
    )
  if 'hybrid_sliding' in types and not hf['sliding_window']:
    raise errors.FolderError(
      f'{file}: sliding_window is {hf["sliding_window"]}, but layer_types has '
      "'hybrid_sliding'; set the window."
    )


def _rope(
  file: str, hf: dict[str, Any], types: list[str]
) -> tuple[float, float, float]:
  """The rotated fraction, and the bases of full and of sliding layers."""
  # Released files carry a stray 'rope_type' beside the two nested dicts.
  given = hf['rope_parameters'] or _ROPE_DEFAULTS
  thetas = {kind: rope['rope_theta'] for kind, rope in _ROPE_DEFAULTS.items()}
  fractions = set()
  for kind in sorted(set(types)):
    rope = given.get(kind)
    if not isinstance(rope, dict) or rope.get('rope_theta') is None:
      raise errors.FolderError(
        f'{file}: rope_parameters has no rope_theta for {kind!r} layers; give '
        f'{{"{kind}": {{"rope_theta": ...}}}}.'
      )
    hub_values.check_unscaled(file, f'{kind!r} layers', rope)
    kinds = {'rope_theta': (float, None), 'partial_rotary_factor': (float, 1.0)}
    rope = hub_values.read(file, rope, kinds)
    fractions.add(rope['partial_rotary_factor'])
    thetas[kind] = rope['rope_theta']
  if len(fractions) > 1:
    raise errors.FolderError(
      f'{file}: partial_rotary_factor differs between layer types '
      f'({sorted(fractions)}); only one for all layers is known.'
    )
  return fractions.pop(), thetas['hybrid'], thetas['hybrid_sliding']
