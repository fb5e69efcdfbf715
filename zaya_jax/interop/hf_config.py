# SPDX-License-Identifier: Apache-2.0
"""Translates the `config.json` of a native Hugging Face ZAYA folder.

What our model cannot represent is refused by name. Settings of training alone
(dropout, initial temperature) are not read.
"""

from typing import Any

from zaya_jax import config as config_lib
from zaya_jax.interop import errors

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


def translate(file: str, given: dict[str, Any]) -> config_lib.ModelConfig:
  """The model that `given` describes.

  Args:
    file: its path, for error messages.
    given: the content of `config.json`.

  Raises:
    FolderError: if it says what our model cannot represent.
  """
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


def _check_kind(file: str, given: dict[str, Any]) -> None:
  """Refuses other models, and ZAYA in its first layout."""
  if given.get('model_type') != 'zaya':
    raise errors.FolderError(
      f"{file}: model_type is {given.get('model_type')!r}; only 'zaya' can "
      'be read.'
    )
  legacy = [key for key in _LEGACY_KEYS if key in given]
  if legacy:
    raise errors.FolderError(
      f'{file}: {legacy[0]} belongs to the first layout of ZAYA, which counts '
      'attention and experts as separate layers (80, not 40); use the folder '
      'that was converted for transformers 5.'
    )


def _check_supported(file: str, hf: dict[str, Any], types: list[str]) -> None:
  """Refuses settings that our model does not have."""
  for key, only in (('hidden_act', 'silu'), ('num_experts_per_tok', 1)):
    if hf[key] != only:
      raise errors.FolderError(
        f'{file}: {key} is {hf[key]!r}; only {only!r} is known.'
      )
  if len(types) != hf['num_hidden_layers']:
    raise errors.FolderError(
      f'{file}: layer_types has {len(types)} entries, but num_hidden_layers is '
      f'{hf["num_hidden_layers"]}; they must agree.'
    )
  unknown = sorted(set(types) - _ROPE_DEFAULTS.keys())
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
    if not isinstance(rope, dict) or 'rope_theta' not in rope:
      raise errors.FolderError(
        f'{file}: rope_parameters has no rope_theta for {kind!r} layers; give '
        f'{{"{kind}": {{"rope_theta": ...}}}}.'
      )
    if rope.get('rope_type', 'default') != 'default':
      raise errors.FolderError(
        f'{file}: rope_type of {kind!r} layers is {rope["rope_type"]!r}; only '
        "'default' is known."
      )
    fractions.add(rope.get('partial_rotary_factor', 1.0))
    thetas[kind] = float(rope['rope_theta'])
  if len(fractions) > 1:
    raise errors.FolderError(
      f'{file}: partial_rotary_factor differs between layer types '
      f'({sorted(fractions)}); only one for all layers is known.'
    )
  return fractions.pop(), thetas['hybrid'], thetas['hybrid_sliding']
