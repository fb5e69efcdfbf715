# SPDX-License-Identifier: Apache-2.0
"""The settings of the network."""

import dataclasses
from typing import Literal

from zaya_jax.config import fields

UsageError = fields.UsageError
field = fields.field

# Settings of a run and not of its model: how it is computed, and how its first
# weights are drawn. A model that is read keeps its own for all others.
OF_THE_RUN = frozenset(
  ('dtype', 'remat', 'scan_layers', 'init_std', 'temperature_init')
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
  """The network. Letters in the help texts are those of the source code."""

  num_layers: int = field(4, 'N: layers, each CCA then MoE.', minimum=1)
  d_model: int = field(256, 'D: width of the residual stream.', minimum=1)
  num_heads: int = field(4, 'H: query heads.', minimum=1)
  num_kv_heads: int = field(2, 'K: key/value heads; divides H.', minimum=1)
  head_dim: int = field(32, 'C: channels per head.', minimum=2)
  conv_depthwise: int = field(
    2, 'Taps of the depthwise convolution over queries and keys.', minimum=1
  )
  conv_grouped: int = field(
    2, 'Taps of the per-head convolution over queries and keys.', minimum=1
  )
  attention_bias: bool = field(
    False, 'Adds a bias to the projections of attention.'
  )
  num_experts: int = field(8, 'E: experts per layer, top-1.', minimum=1)
  d_expert: int = field(256, 'F: inner width of an expert.', minimum=1)
  d_router: int = field(64, 'R: width of the router.', minimum=1)
  skip: Literal['off', 'zero', 'identity'] = field(
    'zero',
    'The skip class of the router: absent, contributing nothing (as the '
    'released models are served), or passing p * h (as they were trained).',
  )
  vocab_size: int = field(
    320, 'V: rows of the embedding; at least the tokenizer.', minimum=2
  )
  tie_embeddings: bool = field(True, 'Uses the embedding as output head.')
  head_bias: bool = field(False, 'Adds a bias to the output head.')
  rope_theta: float = field(
    10_000.0,
    'Base of the rotary embedding: 1e4, 1e6, 5e6 by phase.',
    minimum=1.0,
  )
  rope_fraction: float = field(
    0.5, 'Share of each head that is rotated.', minimum=0.0, maximum=1.0
  )
  sliding_window: int = field(
    0,
    'Keys that a sliding layer sees, its own included; 0: none slides.',
    minimum=0,
  )
  sliding_layers: tuple[int, ...] = field(
    (), 'Indices of the layers with a sliding window.'
  )
  sliding_rope_theta: float = field(
    10_000.0, 'Base of the rotary embedding in sliding layers.', minimum=1.0
  )
  norm_eps: float = field(1e-5, 'Epsilon of every RMSNorm.', minimum=0.0)
  init_std: float = field(
    0.02, 'Standard deviation of the initial weights.', minimum=0.0
  )
  temperature_init: float = field(
    1.0,
    'Initial key temperature. At 0 (Hugging Face) queries and keys get no '
    'gradient in the first step.',
  )
  dtype: Literal['auto', 'float32', 'bfloat16'] = field(
    'auto', 'Compute type; auto: bfloat16 on accelerators, float32 on CPU.'
  )
  remat: Literal['none', 'cheap', 'block'] = field(
    'none',
    'What the backward pass recomputes; cheap: all but matrix products and '
    'kernels; block: each layer.',
  )
  scan_layers: bool = field(
    True,
    'Loop over the layers; if not, each is written out, which GPUs run faster '
    '(a fifth on an H200) and which takes longer to compile.',
  )

  def __post_init__(self) -> None:
    fields.check(self, 'model.')
    if self.num_heads % self.num_kv_heads:
      raise UsageError(
        f'--model.num_kv_heads={self.num_kv_heads} does not divide '
        f'--model.num_heads={self.num_heads}; choose one of '
        f'{fields.divisors(self.num_heads)}.'
      )
    if self.num_kv_heads * self.head_dim % 2:
      raise UsageError(
        f'--model.num_kv_heads={self.num_kv_heads} times '
        f'--model.head_dim={self.head_dim} must be even: half of the value '
        'channels come from the previous token.'
      )
    if self.d_rope % 2:
      raise UsageError(
        f'--model.rope_fraction={self.rope_fraction} rotates {self.d_rope} '
        f'of --model.head_dim={self.head_dim} channels; the count must be '
        'even.'
      )
    bad = [i for i in self.sliding_layers if not 0 <= i < self.num_layers]
    if bad:
      raise UsageError(
        f'--model.sliding_layers={",".join(map(str, bad))} must lie in '
        f'0..{self.num_layers - 1} (--model.num_layers={self.num_layers}).'
      )
    if bool(self.sliding_layers) != bool(self.sliding_window):
      raise UsageError(
        f'--model.sliding_window={self.sliding_window} and '
        f'--model.sliding_layers={",".join(map(str, self.sliding_layers))} '
        'go together; set both or neither.'
      )

  def computed_as(self, other: 'ModelConfig') -> 'ModelConfig':
    """This model with the settings of `other` that are of the run."""
    taken = {name: getattr(other, name) for name in OF_THE_RUN}
    return dataclasses.replace(self, **taken)

  @property
  def num_classes(self) -> int:
    """Outputs of the router: the experts and, unless off, the skip class."""
    return self.num_experts + (self.skip != 'off')

  @property
  def d_rope(self) -> int:
    """Channels of a head that are rotated."""
    return int(self.head_dim * self.rope_fraction)

  @property
  def d_qk(self) -> int:
    """Channels that the convolutions mix: queries, then keys."""
    return (self.num_heads + self.num_kv_heads) * self.head_dim

  @property
  def conv_context(self) -> int:
    """Earlier tokens that both convolutions together look at."""
    return self.conv_depthwise - 1 + self.conv_grouped - 1
