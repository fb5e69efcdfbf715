# SPDX-License-Identifier: Apache-2.0
import json
import random

import pytest

from benchmarks.fault_pairs import __main__ as mode
from benchmarks.fault_pairs import kinds, rank, run


def test_every_kind_says_what_happens_and_makes_a_pair_with_every_other():
  assert len(kinds.KINDS) == 12
  assert all(kind.__doc__ for kind in kinds.KINDS.values())
  assert len(list(mode.pairs_of([], etcd=1))) == 12 * 13 // 2
  assert len(list(mode.pairs_of(['freeze'], etcd=1))) == 12


@pytest.mark.parametrize(
  'lines, found',
  [
    ([(1, 1, 4), (2, 1, 5), (3, 2, 5), (4, 2, 6)], []),
    # The old generation steps on beside the new one.
    ([(1, 1, 4), (2, 2, 5), (3, 1, 5)], ['step 5 of generation 1 beside 2']),
  ],
)
def test_two_owners_are_seen(lines, found):
  assert run.two_owners(lines) == found


def _replaced(node):
  return {'kind': 'x', 'done': {'kind': 'replace_node', 'node': node}}


@pytest.mark.parametrize(
  'pair, harmed, node, is_wrong',
  [
    (('kill_agent', 'log_garbage'), [{'a'}, set()], 'a', False),
    (('kill_agent', 'log_garbage'), [{'a'}, set()], 'b', True),
    # One strike is no fault of the node, two of them are.
    (('kill_rank', 'fill_disk'), [{'a'}, set()], 'a', True),
    (('kill_rank', 'freeze'), [{'a'}, {'a'}], 'a', False),
    (('kill_rank', 'freeze'), [{'a'}, {'b'}], 'a', True),
  ],
)
def test_a_node_is_condemned_in_error_if_nothing_has_happened_to_it(
  pair, harmed, node, is_wrong
):
  found = run._condemned([{'kind': 'x'}, _replaced(node)], pair, harmed)
  assert bool(found) == is_wrong


@pytest.mark.parametrize(
  'codes, is_wrong',
  [([0], False), ([75, 0], False), ([1], True), ([None], True), ([3], True)],
)
def test_ends_that_are_not_truthful_are_seen(codes, is_wrong):
  assert bool(run._wrong_codes(codes)) == is_wrong


def test_the_value_depends_on_every_sample_and_its_order():
  first = rank.after(rank.after(0, 1), 2)
  assert first != rank.after(rank.after(0, 2), 1)
  assert first != rank.after(0, 1)


@pytest.mark.long
def test_a_pair_ends_as_the_undisturbed_run(tmp_path):
  row = run.disturb(run.Run(tmp_path), ('kill_rank', 'start_slowly'), seed=1)
  assert row['wrong'] == [] and row['generations'] == 2, json.dumps(row)


@pytest.mark.long
def test_a_lost_sample_is_seen(tmp_path, monkeypatch):
  monkeypatch.setattr(run, 'expected', lambda: 0)
  monkeypatch.setitem(kinds.KINDS, 'freeze', _nothing)
  row = run.disturb(run.Run(tmp_path), ('freeze', 'freeze'), seed=1)
  (why,) = row['wrong']
  assert why.startswith('samples were lost or repeated')


def _nothing(there: run.Run, dice: random.Random) -> set[str]:
  del there, dice
  return set()
