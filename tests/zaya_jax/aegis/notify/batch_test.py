# SPDX-License-Identifier: Apache-2.0
"""Incidents that wait to be sent."""

import json

from zaya_jax.aegis.decide import events
from zaya_jax.aegis.notify import batch


def seen(kind='nic_down', action='warn', detail='link down', **more):
  event = events.Event(time_s=1.5, kind=kind, node='n7', detail=detail)
  return event, events.Action(kind=action, **more)


def test_message_has_words_for_people_and_facts_for_machines():
  waiting = batch.Batch()
  assert not waiting
  waiting.add(*seen(action='replace_node', node='n7', reason='n7 is down'))
  assert waiting
  assert waiting.message('zaya', 'h') == {
    'text': 'zaya_jax zaya: n7 is down -&gt; replace node',
    'run': 'zaya',
    'host': 'h',
    'incidents': [
      {
        'time': 1.5,
        'kind': 'nic_down',
        'action': 'replace_node',
        'node': 'n7',
        'rank': None,
        'step': None,
        'seen': 'link down',
        'reason': 'n7 is down',
        'exit_code': None,
      }
    ],
    'more': [],
  }


def test_incident_without_words_has_its_kind():
  waiting = batch.Batch()
  waiting.add(*seen(detail=''))
  assert 'nic_down on n7 -&gt; warn' in waiting.message('r', 'h')['text']


def test_quoted_log_calls_nobody():
  waiting = batch.Batch()
  waiting.add(*seen(detail='<!channel> <https://evil.example|here> &'))
  text = waiting.message('r', 'h')['text']
  assert '<' not in text and '&lt;!channel&gt;' in text and '&amp;' in text


def test_flood_is_counted_and_hides_nothing_worse():
  waiting = batch.Batch()
  for _ in range(10_000):
    waiting.add(*seen(detail='x' * 10_000))
  waiting.add(*seen('exit', 'stop', detail='rank 3 is gone', exit_code=75))
  message = waiting.message('r', 'h')
  assert len(message['incidents']) == 11
  assert message['incidents'][-1]['exit_code'] == 75
  assert message['more'] == [
    {'kind': 'nic_down', 'action': 'warn', 'count': 9990}
  ]
  assert '9,990 more: nic_down' in message['text']
  assert 'rank 3 is gone' in message['text']
  assert len(json.dumps(message)) < 40_000


def test_batches_are_put_together_in_order():
  first, later = batch.Batch(), batch.Batch()
  for i in range(15):
    first.add(*seen(detail=f'first {i}'))
    later.add(*seen(detail=f'later {i}'))
  later.add(*seen('exit', 'stop', detail='the end'))
  first.extend(later)
  message = first.message('r', 'h')
  assert [x['seen'] for x in message['incidents']] == [
    *(f'first {i}' for i in range(10)),
    'the end',
  ]
  assert message['more'][0]['count'] == 5 + 15
