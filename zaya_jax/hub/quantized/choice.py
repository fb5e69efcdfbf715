# SPDX-License-Identifier: Apache-2.0
"""Which matrices get how many bits: --quant and --quant.targets."""

import dataclasses

from zaya_jax import config as config_lib
from zaya_jax.model import shapes


@dataclasses.dataclass(frozen=True)
class Choice:
  """What is quantized, and how.

  Attributes:
    kind: 'none', 'int8' or 'int4'.
    targets: of --quant.targets.
  """

  kind: str = 'none'
  targets: tuple[str, ...] = ()

  def __bool__(self) -> bool:
    return self.kind != 'none'

  def __str__(self) -> str:
    return f'{self.kind} ({", ".join(self.targets)})'

  def of(self, path: str) -> str | None:
    """The kind of a parameter, by its path; None: it stays as it is."""
    return shapes.kind_of(path, self.kind, self.targets)

  def check(self, model: config_lib.ModelConfig) -> None:
    """Whether matrices of this model can be rounded so.

    Raises:
      UsageError: if not.
    """
    odd = [d for d in (model.d_model, model.d_expert) if d % 2]
    if self.kind == 'int4' and odd:
      raise config_lib.UsageError(
        f'--quant=int4 puts two numbers into a byte, and the model has '
        f'matrices of {odd[0]} inputs; use --quant=int8.'
      )


NONE = Choice()


def make(kind: str) -> Choice:
  """The default targets of a kind.

  Raises:
    UsageError: if there is no such kind.
  """
  return given(config_lib.Config(quant=kind))  # type: ignore[arg-type]


def given(config: config_lib.Config) -> Choice:
  """What the flags say."""
  return Choice(config.quant, config.quantization.targets)
