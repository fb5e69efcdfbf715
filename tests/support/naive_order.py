# SPDX-License-Identifier: Apache-2.0
"""The order of training once more, as lists of tokens: slow and plain.

With `pipelines.order` it shares the permutations alone. What was given out is a
set of tokens, and the windows of a block are a list for each length.
"""

from fractions import Fraction

import numpy as np

from pipelines.order import shuffle


class Source:
  """Gives out windows as (epoch, record, offset, tokens).

  `left_out`: (epoch, token) of what a block had left when it was closed.
  """

  def __init__(self, extent, seed, number, groups_per_block):
    self.tokens, self.record = extent.tokens, extent.record_tokens
    self.group = extent.group_tokens
    self.key, self.per_block = (seed, number), groups_per_block
    self.epoch, self.blocks, self.used, self.left_out = -1, [], set(), []
    self.lists = {}

  def next(self, length):
    """The next window of this length."""
    while True:
      if not self.blocks:
        self._open_epoch()
      if length not in self.lists:
        self.lists[length] = self._windows(length)
      windows = self.lists[length]
      while windows:
        window = windows.pop(0)
        if not self.used.intersection(window):
          self.used.update(window)
          return (self.epoch, *divmod(window[0], self.record), len(window))
      self._close()

  def _open_epoch(self):
    self.epoch += 1
    full = self.tokens // self.group
    groups = shuffled(range(full), *self.key, self.epoch)
    count = max(1, int(Fraction(full, self.per_block) + Fraction(1, 2)))
    cuts = [b * full // count for b in range(count + 1)]
    self.blocks = [
      (b, groups[cuts[b] : cuts[b + 1]] + [full] * (b == count - 1))
      for b in range(count)
    ]

  def _spans(self):
    """First and last + 1 token of each group of the open block."""
    for group in self.blocks[0][1]:
      start = group * self.group
      yield start, min(start + self.group, self.tokens)

  def _windows(self, length):
    windows = []
    for start, end in self._spans():
      piece = max(length, self.record)  # What no window leaves.
      for begin in range(start, end, piece):
        stop = min(begin + piece, end)
        for first in range(begin, stop, length):
          windows.append(range(first, min(first + length, stop)))
    if self.tokens % self.record:  # The last token predicts nothing.
      windows = [w for w in windows if w[0] != self.tokens - 1]
    return shuffled(windows, *self.key, self.epoch, self.blocks[0][0], length)

  def _close(self):
    last = self.tokens - 1 if self.tokens % self.record else None
    self.left_out += [
      (self.epoch, token)
      for start, end in self._spans()
      for token in range(start, end)
      if token not in self.used and token != last
    ]
    self.blocks.pop(0)
    self.used, self.lists = set(), {}


def shuffled(things, *key):
  """A list of these in the order that the key chooses."""
  things = list(things)
  keys = shuffle.key(*key)[:, None]
  places = shuffle.permute(np.arange(len(things)), len(things), keys)
  return [things[place] for place in places]


def pattern(weights):
  """The sources of the rows of one period."""
  total = sum(weights)
  shares = [Fraction(weight) / total for weight in weights]
  period = np.lcm.reduce([share.denominator for share in shares])
  due = [
    ((k + Fraction(1, 2)) / (share * period), source)
    for source, share in enumerate(shares)
    for k in range(int(share * period))
  ]
  return [source for _, source in sorted(due)]


def rows(extents, stretches, seed, count, groups_per_block):
  """The places of the first rows, and the `Source`s that gave them."""
  sources = [
    Source(extent, seed, number, groups_per_block)
    for number, extent in enumerate(extents)
  ]
  places, weights, since = [], None, 0
  for stretch in stretches:
    if stretch.weights != weights:
      weights, since = stretch.weights, len(places)
      period = pattern(weights)
    size = count if stretch.rows is None else stretch.rows
    for _ in range(min(size, count - len(places))):
      source = period[(len(places) - since) % len(period)]
      places.append((source, *sources[source].next(stretch.seq_len)))
  return places, sources
