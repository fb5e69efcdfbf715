# SPDX-License-Identifier: Apache-2.0
"""The settings of the network, and of adapters beside its matrices."""

import dataclasses
from typing import Literal

from zaya_jax.config import fields

UsageError = fields.UsageError
field = fields.field

# Settings of a run and not of its model: how it is computed, and how its first
# weights are drawn. A model that is read keeps its own for all others.
OF_THE_RUN = frozenset(
  (
    *('dtype', 'remat', 'scan_layers', 'init_std', 'temperature_init'),
    *('eda', 'residual_scaling'),
  )
)

TARGETS = ('attention', 'experts')


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(fields.Section, prefix='model.'):
  """Model architecture; letters are axes of arrays in the source code."""

  num_layers: int = field(4, 'N: layers, each CCA followed by MoE.', minimum=1)
  d_model: int = field(256, 'D: width of the residual stream.', minimum=1)
  num_heads: int = field(4, 'H: query heads.', minimum=1)
  num_kv_heads: int = field(2, 'K: key/value heads; must divide H.', minimum=1)
  head_dim: int = field(32, 'C: channels per head.', minimum=2)
  attention: Literal['cca', 'gqa'] = field(
    'cca',
    'gqa: grouped-query attention, that is CCA without convolutions, means and '
    'values of the previous token; to compare with.',
  )
  conv_depthwise: int = field(
    2,
    'Kernel size of the depthwise convolution over queries and keys.',
    minimum=1,
  )
  conv_grouped: int = field(
    2,
    'Kernel size of the per-head convolution over queries and keys.',
    minimum=1,
  )
  attention_bias: bool = field(
    False, 'Adds biases to the projections of attention.'
  )
  num_experts: int = field(
    8, 'E: experts per layer; each token uses one (top-1).', minimum=1
  )
  d_expert: int = field(256, 'F: hidden width of an expert.', minimum=1)
  d_router: int = field(64, 'R: hidden width of the router.', minimum=1)
  router: Literal['mlp', 'linear'] = field(
    'mlp', 'linear: one matrix from D to the classes, to compare with.'
  )
  eda: bool = field(
    True,
    'Routers add the state of the layer before, times a learned vector; false: '
    'the vector stays 0.',
  )
  skip: Literal['off', 'zero', 'identity'] = field(
    'zero',
    'Skip class of the router. off: none; zero: its tokens get no expert '
    'output (as the released models are served); identity: they get p * h (as '
    'these were trained).',
  )
  vocab_size: int = field(
    320,
    'V: rows of the embedding; at least the vocabulary of the tokenizer.',
    minimum=2,
  )
  residual_scaling: bool = field(
    True,
    'Learns scales and biases of the residual stream and what is added to it; '
    'false: they stay 1 and 0.',
  )
  tie_embeddings: bool = field(True, 'Uses the embedding as output head.')
  head_bias: bool = field(False, 'Adds a bias to the output head.')
  rope_theta: float = field(
    10_000.0,
    'Base of RoPE; ZAYA1 has 1e4, 1e6 and 5e6 by phase of training.',
    minimum=1.0,
  )
  rope_fraction: float = field(
    0.5,
    'Fraction of the channels of a head that RoPE rotates.',
    minimum=0.0,
    maximum=1.0,
  )
  sliding_window: int = field(
    0,
    'Tokens that a sliding layer sees, the current one included; 0: no layer '
    'slides.',
    minimum=0,
  )
  sliding_layers: tuple[int, ...] = field(
    (), 'Indices of the layers with sliding-window attention.'
  )
  sliding_rope_theta: float = field(
    10_000.0, 'Base of RoPE in sliding layers.', minimum=1.0
  )
  norm_eps: float = field(1e-5, 'Epsilon of each RMSNorm.', minimum=0.0)
  init_std: float = field(
    0.02, 'Standard deviation of the initial weights.', minimum=0.0
  )
  temperature_init: float = field(
    1.0,
    'Initial temperature of the keys. With 0, as in Hugging Face, queries and '
    'keys get no gradient in the first step.',
  )
  dtype: Literal['auto', 'float32', 'bfloat16'] = field(
    'auto', 'Compute dtype; auto: bfloat16 on accelerators, float32 on CPU.'
  )
  remat: Literal['auto', 'none', 'cheap', 'block'] = field(
    'auto',
    'What the backward pass recomputes. cheap: everything but matrix products '
    'and kernels; block: whole layers; auto: what is fastest on the device '
    'and fits into it (docs/performance.md).',
  )
  scan_layers: Literal['auto', 'true', 'false'] = field(
    'auto',
    'Scans over the layers. Unrolled layers run faster on GPUs (by a fifth on '
    'an H200) and compile longer; auto: unrolled on CUDA.',
  )

  def __post_init__(self) -> None:
    super().__post_init__()
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

  def check_published(self, what: str) -> None:
    """Whether the model is of the published kind.

    Args:
      what: that can be done with no other model.

    Raises:
      UsageError: naming the first setting of another kind.
    """
    for name, known in (('attention', 'cca'), ('router', 'mlp')):
      if (value := getattr(self, name)) != known:
        raise UsageError(
          f'--model.{name}={value} is here to compare with, and {what} knows '
          f'--model.{name}={known} alone.'
        )

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

  def reach(self, layer: int) -> tuple[float, int | None]:
    """The base of the rotation in a layer, and its window if it slides."""
    if layer in self.sliding_layers:
      return self.sliding_rope_theta, self.sliding_window
    return self.rope_theta, None


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoraConfig(fields.Section, prefix='lora.'):
  """Low-rank adapters (LoRA): what is trained in place of all parameters."""

  rank: int = field(
    0,
    'r: trains two matrices of this rank beside each matrix of '
    '--lora.targets, and nothing else; the model of --restore stays as it is. '
    '0: trains all parameters.',
    minimum=0,
  )
  alpha: float = field(
    0.0,
    'The product of the two matrices counts alpha / r times; 0: as much as r, '
    'so once.',
    minimum=0.0,
  )
  targets: tuple[str, ...] = field(
    TARGETS,
    'What gets adapters. attention: the projections of queries, keys, values '
    'and output; experts: both matrices of each expert, with adapters of its '
    'own.',
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    wrong = [name for name in self.targets if name not in TARGETS]
    if wrong or not self.targets or len(set(self.targets)) < len(self.targets):
      raise UsageError(
        f'--lora.targets={",".join(self.targets)} must name some of '
        f'{", ".join(TARGETS)}, each once.'
      )

  @property
  def scale(self) -> float:
    """By which the product of the two matrices is multiplied."""
    return (self.alpha or self.rank) / max(1, self.rank)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DpoConfig(fields.Section, prefix='dpo.'):
  """Preferences (DPO): which of two answers is to get likelier."""

  beta: float = field(
    0.0,
    'Trains on pairs of answers, chosen and rejected, in place of texts; how '
    'strongly the model is held to the one of --restore: rewards are beta * '
    'log(p / p of that one). 0.1 is common; 0: no preferences.',
    minimum=0.0,
  )
  label_smoothing: float = field(
    0.0,
    'The share of pairs that are taken to be the wrong way round. Of one half '
    'nothing is left to learn.',
    minimum=0.0,
    maximum=0.5,
  )
  nll_weight: float = field(
    0.0,
    'Adds so many times the cross-entropy of the chosen answer, per token, '
    'which keeps it from getting less likely. 0.2 is common.',
    minimum=0.0,
  )
