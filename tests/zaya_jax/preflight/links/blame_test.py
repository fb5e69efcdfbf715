# SPDX-License-Identifier: Apache-2.0
"""Slow links and slow nodes, made of rates."""

import itertools
import random

import pytest

from zaya_jax.preflight.links import blame


def rates(count, slow=(), node=None, share=0.3):
  """Of all pairs; those in `slow`, and all of `node`, are slower."""
  rng = random.Random(0)
  return {
    pair: rng.uniform(0.9, 1.1)
    * (share if pair in slow or node in pair else 1.0)
    for pair in itertools.combinations(range(count), 2)
  }


def judge(found):
  slow = [p for p, x in blame.shares(found).items() if x < blame.LIMIT]
  return blame.slow(slow, found)


@pytest.mark.parametrize('count', [3, 4, 8, 16])
@pytest.mark.parametrize('share', [0.5, 0.05])
def test_slow_node_is_named_and_no_other(count, share):
  for node in range(count):
    nodes, links = judge(rates(count, node=node, share=share))
    assert [*nodes] == [node] and not links
    assert len(nodes[node]) == count - 1


@pytest.mark.parametrize('count', [4, 8, 16])
def test_slow_link_is_named_and_no_node(count):
  for pair in rates(count):
    assert judge(rates(count, [pair], share=0.5)) == ({}, [pair])


def test_slow_node_and_slow_link_elsewhere_are_told_apart():
  nodes, links = judge(rates(8, [(5, 6)], node=2))
  assert [*nodes] == [2] and links == [(5, 6)]


def test_of_two_processes_the_link_is_named_by_nobody():
  """There is nothing to compare it with."""
  assert judge(rates(2, [(0, 1)], share=0.01)) == ({}, [])


def test_median_over_links_would_miss_a_slow_node_of_four():
  """Which is why each process's best link is what is compared with."""
  found = rates(4, node=1, share=0.5)
  ordered = sorted(found.values())
  over_links = (ordered[2] + ordered[3]) / 2
  assert max(found[p] for p in found if 1 in p) / over_links > 0.6
  assert max(x for p, x in blame.shares(found).items() if 1 in p) < 0.6


def test_slow_processes_alone():
  found = blame.shares_of_nodes({0: 1.0, 1: 0.4, 2: 1.0, 3: 1.1})
  assert [p for p, x in found.items() if x < blame.LIMIT] == [1]
