# SPDX-License-Identifier: Apache-2.0
"""Attention in float64 NumPy, from its definition."""

import numpy as np


def specification(q, k, v, segments=None, window=None, offset=0):
  """[1, L, H, C] float64, one query and one head after another."""
  q, k, v = (np.asarray(a[0], np.float64) for a in (q, k, v))
  group = q.shape[1] // k.shape[1]
  out = np.zeros(q.shape)
  for i, h in np.ndindex(*q.shape[:2]):
    seen = np.arange(max(0, offset + i + 1 - (window or 10**9)), offset + i + 1)
    if segments is not None:
      seen = seen[segments[0, seen] == segments[0, i]]
    score = k[seen, h // group] @ q[i, h] / np.sqrt(q.shape[-1])
    weight = np.exp(score - score.max())
    out[i, h] = weight / weight.sum() @ v[seen, h // group]
  return out[None]
