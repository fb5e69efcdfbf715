# SPDX-License-Identifier: Apache-2.0
"""Writes the order of some runs, which no later version may change.

    python -m tests.golden.make_order

Only together with another `order.VERSION`: checkpoints of runs that go on hold
positions in the order.
"""

import json
import pathlib
from fractions import Fraction

from pipelines import order

FILE = pathlib.Path(__file__).parent / 'order.json'


def _runs():
  """Orders, each with rows to look at."""
  one, two = (Fraction(1),), (Fraction('0.7'), Fraction('0.3'))
  small = [order.Extent(1_000_003, 32_768)]
  large = [order.Extent(12 * 10**12, 32_768), order.Extent(10**10, 4_096)]
  phases = [
    order.Stretch(3 * 10**6, 4_096, two),
    order.Stretch(10**5, 32_768, (Fraction(1), Fraction(0))),
    order.Stretch(None, 131_072, (Fraction(1), Fraction(9))),
  ]
  return {
    'small': (order.Order(small, [order.Stretch(None, 4_096, one)], 0), 240),
    'short windows': (order.Order(small, [order.Stretch(None, 64, one)], 7), 0),
    'mixture': (order.Order(large, phases, 2**32 - 1), 10**6),
    'second phase': (order.Order(large, phases, 2**32 - 1), 3 * 10**6),
    'third phase': (order.Order(large, phases, 2**32 - 1), 3_100_000),
    'far away': (order.Order(large, phases, 2**32 - 1), 10**9),
  }


def describe():
  """What is stored: version, first places and fingerprint of each run."""
  return {
    'version': order.VERSION,
    'runs': {
      name: {
        'row': row,
        'places': [list(place) for place in made.places(range(row, row + 8))],
        'fingerprint': made.fingerprint(row),
      }
      for name, (made, row) in _runs().items()
    },
  }


if __name__ == '__main__':
  FILE.write_text(json.dumps(describe(), indent=1) + '\n')
