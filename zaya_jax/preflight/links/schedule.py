# SPDX-License-Identifier: Apache-2.0
"""Which pairs of processes are measured, and which at the same time.

The ring comes first: each process and the next. Up to ALL processes, then all
others pairs; of more, the pairs at distances that are powers of two, so that
each process has some 2 log2 n links, which tell a slow node from a slow link.
"""

from collections.abc import Iterable, Iterator

ALL = 16

Link = tuple[int, int]  # Processes, the smaller number first.


def links(count: int) -> list[Link]:
  """The pairs to measure, those of the ring first.

  Args:
    count: of processes, two at least.
  """
  found = (
    (min(a, b), max(a, b))
    for distance in _distances(count)
    for a in range(count)
    for b in [(a + distance) % count]
  )
  return list(dict.fromkeys(found))


def rounds(pairs: Iterable[Link]) -> list[list[Link]]:
  """Pairs that are measured at once: none has a process of another.

  Each pair goes to the first round in which both its processes are free.
  """
  found: list[list[Link]] = []
  busy: list[set[int]] = []
  for pair in pairs:
    place = next((i for i, b in enumerate(busy) if not b & {*pair}), len(busy))
    if place == len(busy):
      found.append([])
      busy.append(set())
    found[place].append(pair)
    busy[place] |= {*pair}
  return found


def _distances(count: int) -> Iterator[int]:
  distance = 1
  while distance <= count // 2:
    yield distance
    distance = distance + 1 if count <= ALL else 2 * distance
