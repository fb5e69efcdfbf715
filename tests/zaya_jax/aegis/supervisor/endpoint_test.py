# SPDX-License-Identifier: Apache-2.0
"""The metrics and the health of a supervisor, over HTTP."""

import contextlib
import http.client
import socket
import urllib.error
import urllib.request

import prometheus_client
import pytest

from zaya_jax.aegis.supervisor import endpoint

REGISTRY = prometheus_client.CollectorRegistry()
prometheus_client.Gauge('zaya_jax_step', 'Of a test.', registry=REGISTRY).set(7)


def make(unwell='', **more):
  server = endpoint.Server(0, REGISTRY, lambda: unwell, **more)
  server.start()
  return server


@pytest.fixture(scope='module')
def server():
  why = ['']
  server = endpoint.Server(0, REGISTRY, lambda: why[0])
  server.why = why
  server.start()
  yield server
  server.close()


def get(server, path='/metrics', method='GET', host='127.0.0.1', name=None):
  url = f'http://{host}:{server.port}{path}'
  headers = {'Host': name} if name else {}
  request = urllib.request.Request(url, method=method, headers=headers)
  with urllib.request.urlopen(request, timeout=10) as answer:
    return answer.read().decode()


def refused(*args, **kwargs):
  """The code and the text of an answer that is an error."""
  with pytest.raises(urllib.error.HTTPError) as caught:
    get(*args, **kwargs)
  with caught.value as error:
    return error.code, error.read().decode()


def test_metrics_are_those_of_the_registry(server):
  text = get(server)
  assert '# TYPE zaya_jax_step gauge\n' in text and 'zaya_jax_step 7.0' in text


def test_health_is_that_of_the_run(server):
  server.why[0] = 'the cap held'
  assert refused(server, '/healthz') == (503, 'the cap held\n')
  server.why[0] = ''
  assert get(server, '/healthz') == 'ok\n'


@pytest.mark.parametrize(
  'name, fits',
  [
    ('127.0.0.1:9464', True),
    ('LOCALHOST', True),
    ('[::1]:9464', True),
    ('evil.example:9464', False),
    ('127.0.0.1.evil.example', False),
    ('[evil', False),
  ],
)
def test_loopback_answers_to_its_own_names_only(server, name, fits):
  for path in ('/metrics', '/healthz'):
    if fits:
      assert get(server, path, name=name)
    else:
      assert refused(server, path, name=name)[0] == 421


@pytest.mark.parametrize('bind', ['0.0.0.0', '::'])
def test_open_address_answers_to_any_name_and_is_told(bind):
  try:
    server = make(bind=bind)
  except OSError:
    pytest.skip('no IPv6')
  try:
    assert get(server, name='node-7.cluster:9464')
  finally:
    server.close()
  assert f'--aegis.bind={bind}' in endpoint.exposes(bind, 9464)


def test_loopback_exposes_nothing():
  for bind in ('127.0.0.1', '127.0.0.9', '::1', 'localhost'):
    assert endpoint.exposes(bind, 9464) == ''


@pytest.mark.parametrize(
  'path, method, code',
  [
    ('/', 'GET', 404),
    ('/metrics/../etc/passwd', 'GET', 404),
    *(('/metrics', m, 405) for m in ('POST', 'PUT', 'DELETE', 'HEAD')),
    ('/healthz', 'POST', 405),
  ],
)
def test_nothing_else_is_answered(server, path, method, code):
  assert refused(server, path, method)[0] == code


def test_only_this_machine_reaches_it(server):
  # 127.0.0.2 is this machine too, but not where it listens.
  for host in ('127.0.0.2', socket.gethostbyname(socket.gethostname())):
    if host != '127.0.0.1':
      with pytest.raises(OSError):
        socket.create_connection((host, server.port), timeout=10)


def test_nothing_is_asked_before_the_start():
  asked = []
  server = endpoint.Server(0, REGISTRY, lambda: asked.append(1) or '')
  with socket.create_connection(
    ('127.0.0.1', server.port), timeout=10
  ) as there:
    there.sendall(b'GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n')
    assert not asked
    server.start()
    assert there.recv(12) == b'HTTP/1.0 200'
  server.close()


def test_server_that_never_started_is_closed():
  server = endpoint.Server(0, REGISTRY, str)
  server.close()
  with pytest.raises(OSError):
    socket.create_connection(('127.0.0.1', server.port), timeout=10)


def test_slow_client_blocks_nobody(server):
  with socket.create_connection(('127.0.0.1', server.port)):
    assert get(server, '/healthz')


def test_idle_clients_hold_few_threads(monkeypatch):
  monkeypatch.setattr(endpoint, '_CONNECTIONS', 2)
  server = make()
  try:
    with contextlib.ExitStack() as stack:
      there = [
        stack.enter_context(
          socket.create_connection(('127.0.0.1', server.port), timeout=10)
        )
        for _ in range(3)
      ]
      assert there[2].recv(1) == b''  # It was closed at once.
    for _ in range(1000):  # Those that went away made room.
      with contextlib.suppress(OSError, http.client.HTTPException):
        assert get(server)
        break
    else:
      pytest.fail('no room')
  finally:
    server.close()
