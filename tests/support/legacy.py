# SPDX-License-Identifier: Apache-2.0
"""Random folders in the layout of the first release, names written by hand.

Every value is random, none at its neutral start: a wrong formula shows.
"""

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
import safetensors.numpy

from tests.support.reference import legacy_numpy


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """A small model; letters as in `zaya_jax.config`.

  Attributes:
    windows: attention sub-layer -> earlier tokens that it sees.
    lists: writes settings as lists over sub-layers, as the first file did.
    skip_bias: of the skip class; at -1 no token chooses it.
  """

  name: str
  seed: int = 0
  layers: int = 3
  d: int = 24
  heads: int = 4
  kv_heads: int = 2
  dim: int = 8
  taps: tuple[int, int] = (2, 2)
  experts: int = 4
  f: int = 20
  r: int = 12
  vocab: int = 61
  bias: bool = False
  tied: bool = True
  head_bias: bool = False
  windows: dict[int, int] = dataclasses.field(default_factory=dict)
  theta: float = 1e4
  sliding_theta: float = 1e4
  fraction: float = 0.5
  eps: float = 1e-5
  lists: bool = False
  skip_bias: float = -1.0

  def settings(self, identity: bool = True) -> legacy_numpy.Settings:
    """What the NumPy forward needs besides the tensors."""
    return legacy_numpy.Settings(
      rope_theta=self.theta,
      rope_fraction=self.fraction,
      norm_eps=self.eps,
      windows=self.windows,
      sliding_theta=self.sliding_theta,
      identity=identity,
    )


CASES = (
  Case(name='plain', seed=13),
  Case(
    name='lists_eight_heads',
    seed=1,
    d=64,  # Where settings are lists, a head is this over 16.
    heads=8,
    dim=4,
    layers=2,
    experts=5,
    theta=1e6,
    lists=True,
  ),
  Case(
    name='windows_and_biases',
    seed=1,
    layers=4,
    windows={0: 4, 4: 4},
    sliding_theta=500.0,
    bias=True,
    heads=6,
    kv_heads=3,
    eps=1e-4,
  ),
  Case(
    name='untied_longer_convolutions',
    seed=2,
    tied=False,
    head_bias=True,
    taps=(3, 3),
    kv_heads=1,
    experts=2,
    fraction=1.0,
  ),
)


def config(case: Case) -> dict[str, Any]:
  """The `config.json`."""
  count = 2 * case.layers
  common = {
    'architectures': ['ZayaForCausalLM'],
    'model_type': 'zaya',
    'activation_func': 'swiglu',
    'attention_bias': case.bias,
    'bos_token_id': 2,
    'cca': True,
    'eos_token_id': 1,
    'hidden_size': case.d,
    'lm_head_bias': case.head_bias,
    'max_position_embeddings': 4096,
    'moe_router_topk': 1,
    'norm_epsilon': case.eps,
    'num_hidden_layers': count,
    'num_key_value_heads': case.kv_heads,
    'pad_token_id': 0,
    'partial_rotary_factor': case.fraction,
    'residual_in_fp32': not case.lists,
    'rope_scaling': False,
    'rope_theta': case.theta,
    'scale_residual_merge': True,
    'sliding_window': None,
    'tie_word_embeddings': case.tied,
    'vocab_size': case.vocab,
    'zaya_use_eda': True,
    'zaya_use_mod': True,
  }
  if case.lists:
    return common | {
      'cca_num_q_heads': [case.heads, 0] * case.layers,
      'ffn_hidden_size_list': [0, 2 * case.f] * case.layers,
      'num_attention_heads': case.d // case.dim,
      'num_query_groups_list': [case.kv_heads, 0] * case.layers,
      'zaya_layers': ['a', case.experts] * case.layers,
      'zaya_mlp_expansion': [0, case.r] * case.layers,
    }
  windows = {'swa_layers': [case.windows.get(i, 0) for i in range(count)]}
  windows['swa_rotary_base'] = case.sliding_theta
  return common | {
    'cca_time0': case.taps[0],
    'cca_time1': case.taps[1],
    'ffn_hidden_size': 2 * case.f,
    'head_dim': case.dim,
    'num_attention_heads': case.heads,
    'num_experts': case.experts,
    'num_query_groups': case.kv_heads,
    'zaya_mlp_expansion': case.r,
    **(windows if case.windows else {}),
  }


def tensors(case: Case) -> dict[str, np.ndarray]:
  """Random float32 tensors by name."""
  rng = np.random.default_rng(case.seed)
  shapes = {
    'model.embed_tokens.weight': (case.vocab, case.d),
    'model.final_norm.weight': (case.d,),
    **_merge('model.', case.d),
  }
  for n in range(case.layers):
    shapes |= _attention(case, 2 * n) | _experts(case, 2 * n + 1, first=n == 0)
  if not case.tied:
    shapes['lm_head.weight'] = (case.vocab, case.d)
  if case.head_bias:
    shapes['lm_head.bias'] = (case.vocab,)
  found = {
    name: _random(rng, name, shape).astype(np.float32)
    for name, shape in shapes.items()
  }
  for name, value in found.items():
    if name.endswith('balancing_biases'):
      value[-1] = case.skip_bias
  return found


def write(
  folder: pathlib.Path,
  given: dict[str, Any],
  values: dict[str, np.ndarray],
) -> str:
  """Writes the folder as torch would, and returns its path."""
  folder.mkdir(parents=True, exist_ok=True)
  (folder / 'config.json').write_text(json.dumps(given))
  safetensors.numpy.save_file(
    {name: np.ascontiguousarray(value) for name, value in values.items()},
    folder / 'model.safetensors',
    metadata={'format': 'pt'},
  )
  return str(folder)


def _merge(prefix, d, first=False):
  sides = ('hidden_states',) if first else ('hidden_states', 'residual')
  return {
    f'{prefix}res_scale.{side}_{kind}': (d,)
    for side in sides
    for kind in ('scale', 'bias')
  }


def _attention(case, i):
  layer = f'model.layers.{i}.'
  cca = layer + 'self_attn.qkv.'
  q, k = case.heads * case.dim, case.kv_heads * case.dim
  shapes = {
    **_merge(layer, case.d, first=i == 0),
    layer + 'input_norm.weight': (case.d,),
    cca + 'linear_q.weight': (q, case.d),
    cca + 'linear_k.weight': (k, case.d),
    cca + 'val_proj1.weight': (k // 2, case.d),
    cca + 'val_proj2.weight': (k // 2, case.d),
    cca + 'conv_qk.0.weight': (q + k, 1, case.taps[0]),
    cca + 'conv_qk.0.bias': (q + k,),
    cca + 'conv_qk.1.weight': (q + k, case.dim, case.taps[1]),
    cca + 'conv_qk.1.bias': (q + k,),
    cca + 'temp': (case.kv_heads,),
    layer + 'self_attn.o_proj.weight': (case.d, q),
  }
  if case.bias:
    for name, width in (('q', q), ('k', k)):
      shapes[f'{cca}linear_{name}.bias'] = (width,)
    for name in ('val_proj1', 'val_proj2'):
      shapes[f'{cca}{name}.bias'] = (k // 2,)
    shapes[layer + 'self_attn.o_proj.bias'] = (case.d,)
  return shapes


def _experts(case, i, first):
  layer = f'model.layers.{i}.'
  router = layer + 'zaya_block.router.'
  shapes = {
    **_merge(layer, case.d),
    layer + 'input_norm.weight': (case.d,),
    router + 'down_proj.weight': (case.r, case.d),
    router + 'down_proj.bias': (case.r,),
    router + 'rmsnorm_eda.weight': (case.r,),
    router + 'router_mlp.0.weight': (case.r, case.r),
    router + 'router_mlp.0.bias': (case.r,),
    router + 'router_mlp.2.weight': (case.r, case.r),
    router + 'router_mlp.2.bias': (case.r,),
    router + 'router_mlp.4.weight': (case.experts + 1, case.r),
    router + 'balancing_biases': (case.experts + 1,),
  }
  if not first:
    shapes[router + 'router_states_scale'] = (case.r,)
  for e in range(case.experts):
    expert = f'{layer}zaya_block.experts.local_experts.{e}.'
    shapes[expert + 'linear_fc1.weight'] = (2 * case.f, case.d)
    shapes[expert + 'linear_fc2.weight'] = (case.d, case.f)
  return shapes


def _random(rng, name, shape):
  value = rng.normal(size=shape)
  if name.endswith('temp'):
    return 0.5 + 1.5 * rng.random(shape)
  if name.endswith('router_states_scale'):
    return 0.5 + 0.3 * value
  if 'norm' in name or name.endswith('_scale'):
    return 1 + 0.3 * value
  if name.endswith('balancing_biases'):
    return abs(0.1 * value)  # With -1 for it, no token chooses to skip.
  if name.endswith('bias'):
    return 0.2 * value
  if 'embed' in name:
    return 0.2 * value  # Or a tied head repeats the last token.
  gain = 2.0 if 'router_mlp' in name else 1.5  # Spread-out probabilities.
  return gain * value / np.prod(shape[1:]) ** 0.5
