# SPDX-License-Identifier: Apache-2.0
"""Who is to blame for slow links: a node, or a link alone.

A rate is compared with the median, over the processes, of the best that each
has. Not with the median over links: of four processes one that is slow slows
half of the links.
"""

import statistics
from collections.abc import Iterable, Mapping

from zaya_jax.preflight.links import schedule

Link = schedule.Link
LIMIT = 0.6  # Of the rate of the others. Half a port, or half a card, is 0.5.


def shares(rates: Mapping[Link, float]) -> dict[Link, float]:
  """Rates of links as shares of what is usual among them."""
  best: dict[int, float] = {}
  for link, rate in rates.items():
    for end in link:
      best[end] = max(best.get(end, 0.0), rate)
  if not best:
    return {}
  usual = statistics.median(best.values())
  return {link: rate / usual for link, rate in rates.items()}


def shares_of_nodes(rates: Mapping[int, float]) -> dict[int, float]:
  """Rates of what each process does alone, as shares of their median."""
  usual = statistics.median(rates.values())
  return {process: rate / usual for process, rate in rates.items()}


def slow(
  slow_links: Iterable[Link], all_links: Iterable[Link]
) -> tuple[dict[int, list[Link]], list[Link]]:
  """Divides slow links into those of slow processes and those by themselves.

  A process is slow if most of its links are, two at least; the slowest takes
  its links with it, so that the other ends are not blamed for them.

  Returns:
    The slow links of each slow process, and the others.
  """
  left, known = set(slow_links), list(all_links)
  total = _by_end(known)
  blamed: dict[int, list[Link]] = {}
  while True:
    mine = _by_end(left)
    found = [p for p in mine if len(mine[p]) > max(1, len(total[p]) / 2)]
    if not found:
      return blamed, sorted(left)
    worst = max(found, key=lambda p: (len(mine[p]) / len(total[p]), -p))
    blamed[worst] = sorted(mine[worst])
    left -= {*mine[worst]}


def _by_end(links: Iterable[Link]) -> dict[int, list[Link]]:
  found: dict[int, list[Link]] = {}
  for link in links:
    for end in link:
      found.setdefault(end, []).append(link)
  return found
