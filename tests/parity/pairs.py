# SPDX-License-Identifier: Apache-2.0
"""Both models of one case, a left-padded batch, and what theirs answers."""

import dataclasses
import functools

import numpy as np
import transformers

from tests.parity import cases, peer
from tests.support.reference import ours

STEPS = 64  # Tokens of a greedy continuation.


@dataclasses.dataclass(frozen=True)
class Pair:
  """One case: both models and a left-padded batch."""

  folder: str
  theirs: transformers.ZayaForCausalLM
  ours: ours.Model
  tokens: np.ndarray  # [B, L]
  mask: np.ndarray  # [B, L], 0 for padding.

  @property
  def real(self) -> np.ndarray:
    """[B, L] bool, False for padding."""
    return self.mask.astype(bool)

  @functools.cached_property
  def logits(self) -> np.ndarray:
    """Theirs, of the real tokens: [real, V]."""
    return peer.logits(self.theirs, self.tokens, self.mask)[self.real]

  @functools.cached_property
  def greedy(self) -> np.ndarray:
    """Theirs: [B, STEPS]."""
    return peer.greedy(self.theirs, self.tokens, self.mask, STEPS)

  def error(self, logits: np.ndarray) -> float:
    """Largest difference of [B, L, V] to theirs, as a share of the spread.

    The spread is the largest of their logits minus the smallest.
    """
    difference = np.abs(logits[self.real] - self.logits).max()
    return float(difference / np.ptp(self.logits))


def build(case: cases.Case, folder: str) -> Pair:
  """Builds theirs, saves it in `folder`, and loads ours from there."""
  theirs = peer.build(case)
  peer.save(theirs, folder)
  return Pair(folder, theirs, ours.load(folder), *peer.batch(case))
