# SPDX-License-Identifier: Apache-2.0
"""Collectives in NumPy, for small messages of few devices."""

import numpy as np

from zaya_jax.bench.machine import kinds

N, SIZE = 4, 4 * 4 * 12  # Devices; bytes.


def in_numpy(name, x):
  """What each device holds after a collective, [N, elements]."""
  n = len(x)
  parts = x.reshape(n, n, -1)
  return {
    'all-reduce': lambda: np.tile(x.sum(0), (n, 1)),
    'reduce-scatter': lambda: x.sum(0).reshape(n, -1),
    'all-gather': lambda: np.tile(x.reshape(-1), (n, 1)),
    'all-to-all': lambda: parts.swapaxes(0, 1).reshape(n, -1),
    'broadcast': lambda: np.tile(x[0], (n, 1)),
    'permute': lambda: np.roll(x, 1, axis=0),
  }[name]()


def sent(name):
  """The messages as `Group.measure` makes them."""
  elements = kinds.KINDS[name].sends(SIZE // 4, N)
  place = np.arange(elements)[None]
  return (np.arange(N)[:, None] + 1 + place % 251).astype(np.float32)
