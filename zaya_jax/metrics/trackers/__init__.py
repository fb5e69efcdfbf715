# SPDX-License-Identifier: Apache-2.0
"""Where else rows and samples go: W&B, MLflow, Prometheus.

A module is imported when its flag is given; each passes on what it is told and
knows nothing of training.
"""

import types
from collections.abc import Mapping
from typing import Protocol


class Tracker(Protocol):
  """What takes the rows of a run."""

  def scalars(self, values: Mapping[str, float], step: int) -> None:
    """Takes the numbers of a row, NaN and Inf among them.

    Raises:
      OSError: if something was lost since the last call.
    """

  def text(self, name: str, words: str, step: int) -> None:
    """Takes a text; raises as `scalars`."""

  def close(self) -> None:
    """Passes on what is left, if that does not take long; raises as above."""


NONE: Mapping[str, Tracker] = types.MappingProxyType({})
