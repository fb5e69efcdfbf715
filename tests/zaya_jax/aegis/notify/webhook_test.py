# SPDX-License-Identifier: Apache-2.0
"""Notices over HTTP: servers that fail, hang, and are not there."""

import queue
import socket

import pytest

from tests.support import receiver as receiver_lib
from zaya_jax.aegis.decide import events
from zaya_jax.aegis.notify import webhook

SECRET = receiver_lib.PATH
EVENT = events.Event(time_s=1.0, kind='nic_down', node='n7', detail='down')
WARN = events.Action(kind='warn')


@pytest.fixture
def receiver():
  receiver = receiver_lib.Receiver()
  yield receiver
  receiver.close()


@pytest.fixture
def make():
  """A function: URL -> a webhook, and what it says."""
  made = []

  def make(url, every_s=0.001):
    said = queue.Queue()
    made.append(webhook.Webhook(url, '/runs/zaya', said.put, every_s=every_s))
    return made[-1], said

  yield make
  for one in made:
    one.close()


def test_incident_is_posted(receiver, make):
  hook, said = make(receiver.url)
  hook.take(EVENT, WARN)
  path, message = receiver.got.get(timeout=60)
  assert path == SECRET
  assert message['text'] == 'zaya_jax zaya: down -&gt; warn'
  assert (message['run'], message['host']) == ('zaya', socket.gethostname())
  assert message['incidents'][0]['kind'] == 'nic_down'
  hook.close()
  assert said.empty()


def test_what_is_ordinary_is_not_posted(receiver, make):
  hook, _ = make(receiver.url)
  hook.take(EVENT, events.Action(kind='ignore'))
  hook.close()
  assert receiver.got.empty()


@pytest.mark.parametrize('code', [500, 503, 429])
def test_server_that_fails_gets_it_again(receiver, make, code):
  receiver.codes = [code] * 3
  hook, said = make(receiver.url)
  hook.take(EVENT, WARN)
  got = [receiver.next() for _ in range(4)]
  assert got == got[:1] * 4
  first = said.get(timeout=60)
  assert first == (
    f'a notice to 127.0.0.1 failed (HTTP {code}); it is tried again'
  )
  assert said.get(timeout=60) == 'notices reach 127.0.0.1 again'
  assert said.empty()


def test_what_comes_while_it_fails_is_sent_with_it(receiver, make):
  receiver.codes = [500]
  receiver.hold.clear()
  hook, _ = make(receiver.url)
  hook.take(EVENT, WARN)
  receiver.next()
  hook.take(events.Event(time_s=2.0, kind='exit'), WARN)
  receiver.hold.set()
  kinds = [x['kind'] for x in receiver.next()['incidents']]
  assert kinds == ['nic_down', 'exit']


@pytest.mark.parametrize('code', [302, 307, 400, 404, 410])
def test_refused_message_is_told_and_blocks_no_other(receiver, make, code):
  receiver.codes = [code]
  hook, said = make(receiver.url)
  hook.take(EVENT, WARN)
  receiver.next()
  assert f'(HTTP {code}); the message is lost' in said.get(timeout=60)
  hook.take(events.Event(time_s=2.0, kind='exit'), WARN)
  assert receiver.next()['incidents'][0]['kind'] == 'exit'
  hook.close()
  assert receiver.got.empty()  # No redirect was followed.


def test_flood_is_a_few_messages_that_count_it(receiver, make):
  hook, _ = make(receiver.url)
  receiver.hold.clear()
  hook.take(EVENT, WARN)
  count = receiver.next()['incidents']  # It is under way.
  for _ in range(10_000):
    hook.take(EVENT, WARN)
  receiver.hold.set()
  message = receiver.next()
  assert len(count) == 1 and len(message['incidents']) == 10
  assert message['more'][0]['count'] == 9_990
  hook.close()
  assert receiver.got.empty()


def test_server_that_hangs_holds_nobody(receiver, make, monkeypatch):
  monkeypatch.setattr(webhook, '_TIMEOUT_S', 0.2)
  receiver.hold.clear()
  hook, said = make(receiver.url)
  hook.take(EVENT, WARN)
  for _ in range(3):  # It gave up waiting, and came again.
    receiver.next()
  assert 'failed (TimeoutError); it is tried again' in said.get(timeout=60)
  receiver.hold.set()
  assert 'again' in said.get(timeout=60)


def test_end_waits_for_a_hanging_server_only_so_long(
  receiver, make, monkeypatch
):
  monkeypatch.setattr(webhook, '_LAST_S', 0.05)
  receiver.hold.clear()
  hook, _ = make(receiver.url)
  hook.take(EVENT, WARN)
  receiver.next()
  hook.close()  # Returns, though nobody answers.
  receiver.hold.set()


def test_last_incident_is_sent_at_the_end(receiver, make):
  hook, _ = make(receiver.url, every_s=3600.0)
  hook.take(EVENT, WARN)
  receiver.next()
  # Within the pause after a message.
  hook.take(events.Event(time_s=2.0, kind='exit'), events.Action(kind='stop'))
  hook.close()
  assert receiver.next()['incidents'][0]['action'] == 'stop'


def test_address_where_nobody_listens_is_a_word_not_an_error(make):
  with socket.create_server(('127.0.0.1', 0)) as taken:
    port = taken.getsockname()[1]
  hook, said = make(f'http://127.0.0.1:{port}{SECRET}')
  hook.take(EVENT, WARN)
  told = said.get(timeout=60)
  assert told == (
    'a notice to 127.0.0.1 failed (Connection refused); it is tried again'
  )
  for _ in range(10_000):
    hook.take(EVENT, WARN)
  hook.close()
  assert said.empty()  # Once, however often it was tried.
  assert not hook._thread.is_alive()


def test_name_that_does_not_exist_tells_no_secret(make):
  hook, said = make(f'http://no-such-host.invalid{SECRET}')
  hook.take(EVENT, WARN)
  told = said.get(timeout=60)
  assert 'no-such-host.invalid failed' in told and 'SECRET' not in told


def test_garbage_instead_of_http_is_tried_again(make):
  with socket.create_server(('127.0.0.1', 0)) as server:
    hook, said = make(f'http://127.0.0.1:{server.getsockname()[1]}{SECRET}')
    hook.take(EVENT, WARN)
    client, _ = server.accept()
    with client:
      client.recv(65_536)
      client.sendall(b'SECRET /services\r\n\r\n')
    assert 'failed (BadStatusLine); it is tried again' in said.get(timeout=60)


@pytest.mark.parametrize(
  'tries, pause', [(0, 1.0), (1, 1.0), (2, 2.0), (4, 8.0), (99, 60.0)]
)
def test_pauses_grow_up_to_a_limit(tries, pause):
  assert webhook.pause_s(tries, 1.0) == pause
