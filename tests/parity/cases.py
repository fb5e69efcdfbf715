# SPDX-License-Identifier: Apache-2.0
"""The random models on which we and transformers are compared.

Each case changes some keys of one small `transformers.ZayaConfig`; together
they reach every branch of the model. Seeds are chosen so that no token is
routed by a near-tie (tested): there float32 noise decides, not the model.
"""

import dataclasses
from typing import Any

_BASE = {
  'vocab_size': 61,
  'hidden_size': 24,
  'num_hidden_layers': 3,
  'num_attention_heads': 4,
  'num_key_value_heads': 2,
  'head_dim': 8,
  'num_experts': 4,
  'moe_intermediate_size': 20,
  'router_hidden_size': 12,
  'max_position_embeddings': 256,
  'rms_norm_eps': 1e-5,
  'eos_token_id': None,  # Generation goes on to the last step.
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """A model: how it differs from the small one, and the seed of its weights."""

  name: str
  seed: int
  keys: dict[str, Any]

  @property
  def hf_config(self) -> dict[str, Any]:
    """Keyword arguments of `transformers.ZayaConfig`."""
    return _BASE | self.keys


def rope(
  theta: float, sliding_theta: float = 1e4, fraction: float = 0.5
) -> dict[str, Any]:
  """A value of `rope_parameters`."""
  return {
    kind: {
      'rope_type': 'default',
      'rope_theta': base,
      'partial_rotary_factor': fraction,
    }
    for kind, base in (('hybrid', theta), ('hybrid_sliding', sliding_theta))
  }


ALL = (
  Case(name='plain', seed=24, keys={}),
  Case(
    name='eight_heads_per_two_mixed_windows',
    seed=0,
    keys={
      'num_attention_heads': 8,
      'layer_types': ['hybrid_sliding', 'hybrid', 'hybrid_sliding'],
      'sliding_window': 5,
      'rope_parameters': rope(1e6, 500.0),
      'num_experts': 5,
    },
  ),
  Case(
    name='own_key_per_head_attention_bias_odd_width',
    seed=0,
    keys={
      'num_key_value_heads': 4,
      'attention_bias': True,
      'hidden_size': 27,
      'rope_parameters': rope(1e4),
    },
  ),
  Case(
    name='one_key_head_untied_with_head_bias',
    seed=0,
    keys={
      'num_key_value_heads': 1,
      'tie_word_embeddings': False,
      'lm_head_bias': True,
      'moe_intermediate_size': 7,
      'rope_parameters': rope(100.0),
    },
  ),
  Case(
    name='six_heads_per_three_longer_grouped_convolution',
    seed=24,
    keys={
      'num_attention_heads': 6,
      'num_key_value_heads': 3,
      'head_dim': 12,
      'cca_time1': 3,
      'vocab_size': 53,
    },
  ),
  Case(
    name='one_expert_longer_depthwise_convolution',
    seed=0,
    keys={
      'num_experts': 1,
      'cca_time0': 3,
      'head_dim': 10,
      'rope_parameters': rope(1e4, fraction=0.4),
    },
  ),
  Case(
    name='all_layers_slide_two_experts',
    seed=17,
    keys={
      'layer_types': ['hybrid_sliding'] * 3,
      'sliding_window': 3,
      'num_experts': 2,
      'router_hidden_size': 5,
    },
  ),
  Case(
    name='one_layer_whole_head_rotated',
    seed=18,
    keys={
      'num_hidden_layers': 1,
      'tie_word_embeddings': False,
      'cca_time0': 1,
      'rope_parameters': rope(1e4, fraction=1.0),
      'rms_norm_eps': 1e-3,
    },
  ),
  Case(
    name='everything_at_once',
    seed=3,
    keys={
      'num_attention_heads': 6,
      'cca_time0': 3,
      'cca_time1': 3,
      'num_hidden_layers': 4,
      'layer_types': ['hybrid', 'hybrid_sliding', 'hybrid_sliding', 'hybrid'],
      'sliding_window': 4,
      'rope_parameters': rope(5e6, 1e4),
      'attention_bias': True,
      'lm_head_bias': True,
      'tie_word_embeddings': False,
      'num_experts': 7,
      'hidden_size': 29,
      'vocab_size': 67,
    },
  ),
)
