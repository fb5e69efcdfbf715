# SPDX-License-Identifier: Apache-2.0
"""Ranks whose hosts are slow, so that the others wait for them.

The duration of a step does not show them: it is that of the slowest rank on all
ranks. But a late rank still prepares its batch when the others have entered the
step. So agents sample ten times a second what each rank does, and the shares of
these samples are compared; clocks of two nodes never are.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

_LOOKS = 50  # Samples of each rank in a window: five seconds.
_MORE = 0.25  # How much larger the share of late samples is, of a slow rank.


class Stragglers:
  """Compares ranks, window after window."""

  def __init__(self):
    self._before: dict[int, tuple[str, int, int]] = {}

  def find(
    self, reports: Mapping[str, Sequence[Mapping[str, Any]]]
  ) -> dict[str, Any] | None:
    """The slow rank, at the end of a window in which there is one.

    Args:
      reports: by node, of each rank: `rank`, how many samples found it in a
        step or before one (`looks`), and how many before one (`late`).

    Returns:
      `node`, `rank` and `detail` of an event.
    """
    now = {
      r['rank']: (node, r['looks'], r['late'])
      for node, ranks in reports.items()
      for r in ranks
    }
    before = self._before
    if set(now) != set(before) or any(
      looks < before[rank][1] for rank, (_, looks, _) in now.items()
    ):  # Another generation.
      self._before = now
      return None
    since = {
      rank: (looks - before[rank][1], late - before[rank][2])
      for rank, (_, looks, late) in now.items()
    }
    if len(since) < 2 or min(looks for looks, _ in since.values()) < _LOOKS:
      return None
    self._before = now
    shares = {rank: late / looks for rank, (looks, late) in since.items()}
    rank = max(shares, key=lambda rank: shares[rank])
    usual = statistics.median(s for r, s in shares.items() if r != rank)
    if shares[rank] < usual + _MORE:
      return None
    return {
      'node': now[rank][0],
      'rank': rank,
      'detail': f'rank {rank} prepares its batch for {shares[rank]:.0%} of the '
      f'time, and the others for {usual:.0%}',
    }
