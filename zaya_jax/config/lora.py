# SPDX-License-Identifier: Apache-2.0
"""The settings of low-rank adapters."""

import dataclasses

from zaya_jax.config import fields

field = fields.field

TARGETS = ('attention', 'experts')


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
      raise fields.UsageError(
        f'--lora.targets={",".join(self.targets)} must name some of '
        f'{", ".join(TARGETS)}, each once.'
      )

  @property
  def scale(self) -> float:
    """By which the product of the two matrices is multiplied."""
    return (self.alpha or self.rank) / max(1, self.rank)
