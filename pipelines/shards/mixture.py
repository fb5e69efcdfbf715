# SPDX-License-Identifier: Apache-2.0
"""`DIR@WEIGHT`: folders of shards and the share of windows each one gives."""

import dataclasses
import math
import re
from collections.abc import Sequence
from fractions import Fraction

from pipelines import errors
from pipelines.shards import manifest

_WEIGHTED = re.compile(r'(?P<dir>.+)@(?P<weight>[-+.\w]+)', re.DOTALL)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
  """One folder of a mixture; `weight` is its share before normalization."""

  directory: str
  weight: Fraction


def parse(dirs: Sequence[str | Part]) -> list[Part]:
  """Parses folders, each 'DIR' (weight 1), 'DIR@WEIGHT' or parsed already.

  Raises:
    DataError: if there is none or a weight is not a positive number.
  """
  if not dirs:
    raise errors.DataError('--data.dir is empty; name a folder of shards.')
  return [d if isinstance(d, Part) else _parse_one(d) for d in dirs]


def check_same_tokenizer(
  parts: Sequence[Part], data: Sequence[manifest.Manifest]
) -> None:
  """Refuses a mixture of folders whose ids mean different things."""
  for part, other in zip(parts, data, strict=True):
    if other.tokenizer_sha256 != data[0].tokenizer_sha256:
      raise errors.DataError(
        f'--data.dir mixes tokenizers: {parts[0].directory} has '
        f'{data[0].tokenizer}, {part.directory} has {other.tokenizer} (or '
        'another version of it); prepare both with the same one.',
        errors.UNUSABLE,
      )


def _parse_one(text: str) -> Part:
  match = _WEIGHTED.fullmatch(text)
  if not match:
    return Part(directory=text, weight=Fraction(1))
  try:
    size = float(match['weight'])
  except ValueError:
    size = math.nan
  if not 0 < size < math.inf:
    raise errors.DataError(
      f'--data.dir={text}: {match["weight"]} is not a weight; write '
      'DIR@WEIGHT with a positive number.'
    )
  # Exactly as it is written: 0.1 is a tenth.
  return Part(directory=match['dir'], weight=Fraction(match['weight']))
