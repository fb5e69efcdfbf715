# SPDX-License-Identifier: Apache-2.0
"""Who keeps a copy for whom, and who gives which part back."""

import collections
from collections.abc import Sequence

Key = tuple[int, int, str]  # Of a state: step, tier, and a hash of what it is.


def choose(
  offers: Sequence[dict[tuple[Key, int], str]], count: int
) -> tuple[Key, dict[int, int]] | None:
  """The newest whole state, in the first tier that has it.

  Returns:
    Its key, and by process who gives its part: itself if it can, or else who
    has the least to give.
  """
  keys = {key for offer in offers for key, _ in offer}
  for key in sorted(keys, key=lambda k: (-k[0], k[1:])):
    givers, load = {}, collections.Counter()
    for own in (True, False):
      for owner in set(range(count)) - set(givers):
        able = [q for q, offer in enumerate(offers) if (key, owner) in offer]
        able = [q for q in able if q == owner or not own]
        if able:
          givers[owner] = min(able, key=lambda q: (load[q], q))
          load[givers[owner]] += 1
    if len(givers) == count:
      return key, dict(sorted(givers.items()))
  return None


def ahead(hosts: Sequence[str]) -> int:
  """How far away, in processes, everyone's neighbour on another host is."""
  count = len(hosts)
  for far in range(1, count):
    if all(hosts[i] != hosts[(i + far) % count] for i in range(count)):
      return far
  return 1
