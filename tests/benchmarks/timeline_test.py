# SPDX-License-Identifier: Apache-2.0
"""Intervals of a timeline, beside a count of each nanosecond."""

import numpy as np
import pytest

from benchmarks import timeline

_LENGTH = 300


def _covered(spans):
  """Which nanoseconds lie in any of the spans."""
  found = np.zeros(_LENGTH, bool)
  for _, start, end in spans:
    found[start:end] = True
  return found


@pytest.mark.parametrize('seed', range(20))
def test_hidden_is_the_time_of_messages_beside_other_kernels(seed):
  rng = np.random.default_rng(seed)
  names = ['ncclDevKernel_AllGather', 'ncclKernel', 'gemm', 'norm', 'MemcpyD2D']
  spans = []
  for _ in range(rng.integers(0, 40)):
    start, length = rng.integers(0, _LENGTH - 30), rng.integers(1, 30)
    name = names[rng.integers(len(names))]
    spans.append(timeline.Span(name, int(start), int(start + length)))
  sent = _covered(s for s in spans if 'nccl' in s.name)
  computed = _covered(s for s in spans if s.name in ('gemm', 'norm'))
  assert timeline.network(spans) == pytest.approx(
    {
      'network_s': sent.sum() / 1e9,
      'hidden_s': (sent & computed).sum() / 1e9,
      'compute_s': computed.sum() / 1e9,
    }
  )


def test_copies_hide_nothing():
  spans = [timeline.Span('nccl', 0, 10), timeline.Span('MemcpyP2P', 0, 10)]
  assert timeline.network(spans)['hidden_s'] == 0
  spans.append(timeline.Span('gemm', 4, 7))
  assert timeline.network(spans)['hidden_s'] == pytest.approx(3e-9)
