# SPDX-License-Identifier: Apache-2.0
"""Pairs and rounds, by counting."""

import itertools

import pytest

from zaya_jax.preflight.links import schedule


@pytest.mark.parametrize('count', range(2, schedule.ALL + 1))
def test_few_processes_meet_each_other(count):
  found = schedule.links(count)
  assert sorted(found) == [*itertools.combinations(range(count), 2)]
  ring = {tuple(sorted((a, (a + 1) % count))) for a in range(count)}
  assert {*found[: len(ring)]} == ring


@pytest.mark.parametrize('count', [17, 100, 128])
def test_many_processes_have_enough_links_to_tell_node_from_link(count):
  found = schedule.links(count)
  assert len({*found}) == len(found)
  ends = [sum(p in pair for pair in found) for p in range(count)]
  most = 2 * (count.bit_length())
  assert 4 <= min(ends) and max(ends) <= most


@pytest.mark.parametrize('count', [2, 3, 4, 7, 16, 128])
def test_no_process_has_two_links_in_a_round(count):
  pairs = schedule.links(count)
  rounds = schedule.rounds(pairs)
  assert sorted(itertools.chain(*rounds)) == sorted(pairs)
  for together in rounds:
    ends = [*itertools.chain(*together)]
    assert len({*ends}) == len(ends)
  # Greedy rounds: below twice the links of a process.
  assert len(rounds) < 2 * max(sum(p in x for x in pairs) for p in range(count))
