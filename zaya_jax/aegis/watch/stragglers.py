# SPDX-License-Identifier: Apache-2.0
"""Ranks for whose host the others wait.

The duration of steps cannot name them: all ranks take as long as the slowest.
But who is late is still preparing a batch when the others have entered the
step. So agents look ten times a second what each rank is doing, and shares of
these looks are compared: no clock of one node meets that of another.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

_LOOKS = 50  # At each rank, in a window: five seconds.
_MORE = 0.25  # Share of looks that a rank is late, beyond the usual one.


class Stragglers:
  """Compares ranks, window after window."""

  def __init__(self):
    self._before: dict[int, tuple[int, int]] = {}

  def find(
    self, reports: Mapping[str, Sequence[Mapping[str, Any]]]
  ) -> dict[str, Any] | None:
    """The one rank that is slow, at the end of a window in which there is one.

    Args:
      reports: by node, of each rank: `rank`, and how often its agent has found
        it in a step or before one (`looks`) and before one (`late`).

    Returns:
      `node`, `rank` and `detail` of an event.
    """
    now = {
      r['rank']: (node, r['looks'], r['late'])
      for node, ranks in reports.items()
      for r in ranks
    }
    if set(now) != set(self._before) or any(
      looks < self._before[rank][0] for rank, (_, looks, _) in now.items()
    ):  # Another generation.
      self._begin(now)
      return None
    since = {
      rank: (looks - self._before[rank][0], late - self._before[rank][1])
      for rank, (_, looks, late) in now.items()
    }
    if len(since) < 2 or min(looks for looks, _ in since.values()) < _LOOKS:
      return None
    self._begin(now)
    shares = {rank: late / looks for rank, (looks, late) in since.items()}
    rank = max(shares, key=shares.get)
    usual = statistics.median(s for r, s in shares.items() if r != rank)
    if shares[rank] < usual + _MORE:
      return None
    return {
      'node': now[rank][0],
      'rank': rank,
      'detail': f'rank {rank} prepares its batch for {shares[rank]:.0%} of the '
      f'time, and the others for {usual:.0%}',
    }

  def _begin(self, now: Mapping[int, tuple[str, int, int]]) -> None:
    self._before = {
      rank: (looks, late) for rank, (_, looks, late) in now.items()
    }
