# SPDX-License-Identifier: Apache-2.0
"""What the reports on all ranks mean together."""

import pytest

from zaya_jax.aegis.supervisor.nodes import judgement

HANG = {'phase': 'step', 'age_s': 9.0, 'limit_s': 5.0}


def rank(exit_code=None, done=0, **more):
  return {'exit_code': exit_code, 'done': done, 'failed_ns': None, **more}


def judge(*ranks, hangs=(), is_asked=False, count=None):
  by_node = {'ab'[i]: [one] for i, one in enumerate(ranks)}
  count = len(ranks) if count is None else count
  found = judgement.judge(by_node, hangs, count=count, is_asked=is_asked)
  return found and (found.kind, found.node)


@pytest.mark.parametrize(
  'ranks, more, found',
  [
    ((rank(), rank()), {}, None),
    ((rank(done=3), rank(done=4)), {}, ('running', None)),
    ((rank(done=3), rank()), {}, None),
    ((rank(done=3),), {'count': 2}, None),  # The other has said nothing.
    ((rank(), rank(-9)), {}, ('exit', 'b')),
    ((rank(0), rank()), {}, None),
    ((rank(0), rank(0)), {}, ('done', None)),
    ((rank(0),), {'count': 2}, None),  # A lost node is no end of the run.
    ((rank(75), rank()), {}, ('exit', 'a')),
    ((rank(75), rank()), {'is_asked': True}, None),
    ((rank(75), rank(75)), {'is_asked': True}, ('drained', None)),
    ((rank(75), rank(0)), {'is_asked': True}, ('drained', None)),
    ((rank(0), rank(0)), {'is_asked': True}, ('done', None)),
    ((rank(75), rank(1)), {'is_asked': True}, ('exit', 'b')),
    ((rank(), rank()), {'hangs': [('b', HANG)]}, ('hang', 'b')),
    ((rank(), rank(starved=True)), {'hangs': [('b', HANG)]}, None),
    ((rank(), rank(-9)), {'hangs': [('a', HANG)]}, ('exit', 'b')),
  ],
)
def test_reports_mean_the_same_however_often_they_come(ranks, more, found):
  assert judge(*ranks, **more) == judge(*ranks, **more) == found


def test_patience_with_starved_ranks_ends():
  late = {**HANG, 'age_s': judgement.PATIENCE * 5.0 + 1}
  starved = rank(starved=True)
  assert judge(starved, rank(), hangs=[('a', late)]) == ('hang', 'a')


def test_first_to_end_is_who_said_why_first():
  ends = [
    rank(75, failed_ns=1),
    rank(1, failed_ns=7),
    rank(1, failed_ns=5),
    rank(-9),
  ]
  ordered = sorted(ends, key=judgement.order)
  assert [one['failed_ns'] for one in ordered] == [None, 5, 7, 1]
