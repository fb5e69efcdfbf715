# SPDX-License-Identifier: Apache-2.0
"""What the last reports on all ranks of a generation mean together.

The same reports give the same answer however often, and in whatever order,
they have come: nothing is missed because something else happened meanwhile.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from zaya_jax.config import exit_codes

PATIENCE = 6  # Times the limit, for ranks that wait for a processor.


@dataclasses.dataclass(frozen=True)
class Finding:
  """One thing that is the case.

  Attributes:
    kind: of an event.
    node: where, if it is one.
    detail: for people.
    step: that all ranks have finished.
  """

  kind: Literal['exit', 'hang', 'done', 'drained', 'running']
  node: str | None = None
  detail: str = ''
  step: int | None = None


def judge(
  ranks: Mapping[str, Sequence[Mapping[str, Any]]],
  hangs: Sequence[tuple[str, Mapping[str, Any]]],
  *,
  count: int,
  is_asked: bool,
) -> Finding | None:
  """The most important of what is the case; None: ranks start.

  Args:
    ranks: last reports by node.
    hangs: reports about ranks without progress, with their nodes.
    count: of the ranks that there should be.
    is_asked: whether they have been asked to save and end.
  """
  there = [(node, rank) for node, some in ranks.items() for rank in some]
  expected = {0, None, exit_codes.STOPPED} if is_asked else {0, None}
  for node, rank in there:
    if rank['exit_code'] not in expected:
      return Finding('exit', node)
  if len(there) == count and all(r['exit_code'] is not None for _, r in there):
    # Nobody has been asked, or somebody has ended before it was.
    codes = {rank['exit_code'] for _, rank in there}
    return Finding('done' if codes == {0} else 'drained')
  # A rank without a processor is slow; that is no excuse for ever.
  starved = any(rank.get('starved') for _, rank in there)
  for node, hang in hangs:
    if hang['age_s'] > (PATIENCE if starved else 1) * hang['limit_s']:
      limit = f'no progress within {hang["age_s"]:.1f} s'
      return Finding('hang', node, f'{limit} in phase {hang["phase"]}')
  if len(there) == count and all(rank['done'] for _, rank in there):
    return Finding('running', step=min(rank['done'] for _, rank in there))
  return None


def order(ended: Mapping[str, Any]) -> tuple[bool, int]:
  """Sorts ranks that ended by the time at which they said why.

  A signal leaves no time; code 75 says that another rank is gone.
  """
  return ended['exit_code'] == exit_codes.STOPPED, ended['failed_ns'] or 0
