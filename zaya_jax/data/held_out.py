# SPDX-License-Identifier: Apache-2.0
"""The held-out text of a mixture, folder by folder."""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pipelines import loader, order
from pipelines.shards import manifest, mixture


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldOut:
  """What one folder holds out.

  Attributes:
    directory: of the shards.
    name: of the folder; its path, where two have the same name.
    weight: of the folder in the mixture, before normalization.
    data: the manifest of the folder.
  """

  directory: str
  name: str
  weight: float
  data: manifest.Manifest

  @property
  def text(self) -> manifest.Split:
    """What is known of the held-out text."""
    return self.data.splits['val']

  def fits(self, seq_len: int) -> bool:
    """Whether its records have windows of this length."""
    extent = order.Extent(self.text.tokens, self.data.record_tokens)
    return extent.fits(seq_len)

  def batches(self, **settings: Any) -> Iterator[dict[str, np.ndarray]]:
    """Its windows in order; `settings` are those of `loader.eval_batches`."""
    return loader.eval_batches(self.directory, data=self.data, **settings)


def find(
  parts: Sequence[mixture.Part], data: Sequence[manifest.Manifest]
) -> list[HeldOut]:
  """The folders that hold something out; `data` are the manifests of all."""
  names = [os.path.basename(os.path.abspath(p.directory)) for p in parts]
  return [
    HeldOut(
      directory=part.directory,
      name=name if names.count(name) == 1 else part.directory,
      weight=float(part.weight),
      data=found,
    )
    for part, name, found in zip(parts, names, data, strict=True)
    if 'val' in found.splits
  ]


def without_windows(found: Sequence[HeldOut], seq_len: int) -> list[str]:
  """Says which text has no window of this length and is not evaluated."""
  others = any(folder.fits(seq_len) for folder in found)
  then = 'is the mean of the other folders' if others else 'is not known'
  return [
    f'{folder.directory} is not evaluated here: no window of {seq_len} tokens '
    f'fits into its records of {folder.data.record_tokens}, so val/loss {then}'
    for folder in found
    if not folder.fits(seq_len)
  ]
