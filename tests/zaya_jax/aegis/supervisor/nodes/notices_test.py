# SPDX-License-Identifier: Apache-2.0
"""What an agent may say of its node."""

import pytest

from zaya_jax.aegis.supervisor.nodes import notices

LINE = {'kind': 'gpu_reset', 'source': 'kern', 'action': 'replace_node'}


@pytest.mark.parametrize(
  'facts',
  [
    LINE,
    {**LINE, 'kind': 'out_of_memory'},
    {'kind': 'cannot_watch', 'detail': 'no such file', 'action': 'warn'},
  ],
)
def test_notice_is_of_the_node_of_its_agent(facts):
  event = notices.event('a', {**facts, 'node': 'b', 'time_s': 0.0}, 9.0)
  assert (event.node, event.by, event.time_s) == ('a', 'a', 9.0)
  assert event.kind == facts['kind']


@pytest.mark.parametrize(
  'facts',
  [
    {},
    {**LINE, 'kind': 'done'},
    {**LINE, 'kind': 'agent_lost'},
    {**LINE, 'kind': 'corrupt_replica'},
    {**LINE, 'source': 'agent'},
    {**LINE, 'source': 'rank'},
    {**LINE, 'action': 'rm'},
    {**LINE, 'kind': 7},
    {**LINE, 'detail': ['x']},
    {**LINE, 'step': '7'},
  ],
)
def test_what_an_agent_cannot_know_is_no_notice(facts):
  assert notices.event('a', facts, 9.0) is None
