# SPDX-License-Identifier: Apache-2.0
"""The settings of --mode=report."""

import dataclasses

from zaya_jax.config import fields


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportConfig:
  """What --mode=report shows, and where it serves it."""

  router: bool = fields.field(
    False, 'Looks into the router of one checkpoint, on --eval.text.'
  )
  tokens: int = fields.field(
    8192, 'Tokens of the text that its router reads, at most.', minimum=2
  )
  port: int = fields.field(
    8000, 'Of --serve; 0: any that is free.', minimum=0, maximum=65535
  )

  def __post_init__(self) -> None:
    fields.check(self, 'report.')
