# SPDX-License-Identifier: Apache-2.0
"""Users, TLS and answers of others than etcd; no secret in what is said."""

import concurrent.futures
import contextlib
import http.server
import logging
import threading
import traceback
import uuid

import pytest

pytest.importorskip('etcd3gw', reason="needs the extra 'etcd'")

from tests.support import etcd as cluster_lib
from zaya_jax.runtime import lease, run_files
from zaya_jax.runtime.lease import endpoints

SECRET = 'correct-horse'


@pytest.fixture(scope='module')
def cluster(tmp_path_factory):
  """One member with TLS, where `zaya` may use /mine."""
  folder = tmp_path_factory.mktemp('etcd')
  with cluster_lib.Cluster(folder, count=1, tls=True) as members:
    members.ctl('user', 'add', 'root:root')
    members.ctl('role', 'add', 'run')
    members.ctl(
      *('role', 'grant-permission', 'run', 'readwrite', '/mine/'),
      '--prefix=true',
    )
    members.ctl('user', 'add', f'zaya:{SECRET}')
    members.ctl('user', 'grant-role', 'zaya', 'run')
    members.ctl('user', 'grant-role', 'root', 'root')
    members.ctl('auth', 'enable')
    yield members


@pytest.fixture
def environment(cluster, tmp_path, monkeypatch):
  """Sets variables, those of `zaya` if not told otherwise; None: not set."""
  (tmp_path / 'password').write_text(f'{SECRET}\n')
  (tmp_path / 'run').mkdir()

  def put(**changes):
    values = {
      'USER': 'zaya',
      'PASSWORD_FILE': str(tmp_path / 'password'),
      'CACERT': str(cluster.ca),
      'CERT': None,
      'KEY': None,
      **changes,
    }
    for name, value in values.items():
      if value is None:
        monkeypatch.delenv(f'ZAYA_ETCD_{name}', raising=False)
      else:
        monkeypatch.setenv(f'ZAYA_ETCD_{name}', str(value))

  put()
  return put


@pytest.fixture
def opened(tmp_path):
  run_dir = tmp_path / 'run'

  def open_(hosts, prefix=''):
    prefix = prefix or f'mine/{uuid.uuid4().hex}'
    return lease.open(
      f'etcd://{hosts}/{prefix}',
      run_id=run_files.run_id(run_dir),
      run_dir=run_dir,
    )

  return open_


def refusal(open_) -> str:
  """The one sentence, of which not even the traceback tells the secret."""
  with pytest.raises(lease.StoreError) as caught:
    open_()
  text = ''.join(traceback.format_exception(caught.value))
  assert SECRET not in text and '\n' not in str(caught.value)
  assert caught.value.exit_code == 2
  return str(caught.value)


def forget_logins(cluster):
  cluster.ctl('auth', 'disable', user='root:root')
  cluster.ctl('auth', 'enable')


@cluster_lib.needed
def test_user_with_a_password_and_tls_owns_a_run(
  cluster, environment, opened, caplog
):
  caplog.set_level(logging.DEBUG)
  store = opened(cluster.hosts)
  token = store.acquire('a', 60)
  store.write('generation', {'number': 1}, token)
  store.renew(token)
  assert opened(cluster.hosts).holder() is None  # Of another prefix.
  store.release(token)
  assert SECRET not in caplog.text


@cluster_lib.needed
def test_certificate_of_a_client_is_shown(cluster, environment, opened):
  environment(
    CERT=cluster.folder / 'client.pem', KEY=cluster.folder / 'client.key'
  )
  store = opened(cluster.hosts)
  assert store._endpoints._members[0].session.cert == (
    str(cluster.folder / 'client.pem'),
    str(cluster.folder / 'client.key'),
  )


@cluster_lib.needed
@pytest.mark.parametrize(
  'changes, told',
  [
    ({'USER': 'nobody'}, 'check ZAYA_ETCD_USER and ZAYA_ETCD_PASSWORD_FILE'),
    ({'USER': None}, 'it wants a user: set ZAYA_ETCD_USER'),
    ({'PASSWORD_FILE': None}, 'has ZAYA_ETCD_USER but not ZAYA_ETCD_PASSWORD'),
    ({'PASSWORD_FILE': '/none'}, 'ZAYA_ETCD_PASSWORD_FILE=/none, which cannot'),
    ({'CACERT': '/none'}, 'ZAYA_ETCD_CACERT=/none, which cannot be read'),
    ({'CERT': '/dev/null'}, 'has ZAYA_ETCD_CERT but not ZAYA_ETCD_KEY'),
  ],
)
def test_wrong_setting_is_one_sentence(
  cluster, environment, opened, changes, told
):
  environment(**changes)
  assert told in refusal(lambda: opened(cluster.hosts))


@cluster_lib.needed
def test_wrong_password_is_one_sentence_without_it(
  cluster, environment, opened, tmp_path
):
  (tmp_path / 'password').write_text(f'{SECRET}-battery')
  told = refusal(lambda: opened(cluster.hosts))
  assert 'check ZAYA_ETCD_USER and ZAYA_ETCD_PASSWORD_FILE' in told


@cluster_lib.needed
def test_prefix_of_another_is_refused(cluster, environment, opened):
  told = refusal(lambda: opened(cluster.hosts, 'yours'))
  assert 'grant ZAYA_ETCD_USER readwrite on the prefix' in told


@cluster_lib.needed
def test_server_of_another_authority_is_refused(
  cluster, environment, opened, tmp_path
):
  other = tmp_path / 'other'
  other.mkdir()
  cluster_lib._certificates(other)
  environment(CACERT=other / 'ca.pem')
  told = refusal(lambda: opened(cluster.hosts))
  assert 'ZAYA_ETCD_CACERT must hold who signed its certificate' in told


@cluster_lib.needed
def test_way_without_tls_says_which_setting_is_missing(
  cluster, environment, opened
):
  environment(USER=None, PASSWORD_FILE=None, CACERT=None)
  with pytest.raises(lease.StoreError, match='TLS, set ZAYA_ETCD_CACERT'):
    opened(cluster.hosts)


@pytest.mark.parametrize(
  'text',
  [
    'Remote end closed connection without response',
    "('Connection aborted.', ConnectionResetError(104, 'Connection reset by "
    "peer'))",
  ],
)
def test_both_ways_of_hanging_up_advise_tls(text):
  assert 'TLS, set ZAYA_ETCD_CACERT' in endpoints._short(text)


@cluster_lib.needed
@pytest.mark.parametrize('renews', [True, False])
def test_login_is_renewed_when_etcd_has_forgotten_it(
  cluster, environment, opened, monkeypatch, renews
):
  store = opened(cluster.hosts)
  token = store.acquire('a', 120)
  forget_logins(cluster)
  if not renews:
    monkeypatch.setattr(endpoints, '_STALE', ())
    with pytest.raises(lease.StoreError, match='invalid auth token'):
      store.renew(token)
    return
  store.renew(token)
  store.write('generation', {'number': 1}, token)


@cluster_lib.needed
def test_threads_that_log_in_at_one_time_all_get_answers(
  cluster, environment, opened
):
  store = opened(cluster.hosts)
  token = store.acquire('a', 120)
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    for _ in range(3):
      forget_logins(cluster)
      list(pool.map(store.renew, [token] * 16))


@cluster_lib.needed
def test_old_login_stays_while_a_new_one_is_fetched(
  cluster, environment, opened, monkeypatch
):
  """A request without any would be one of a wrong setting."""
  post, had = endpoints.Endpoints._post, []

  def look(self, member, path, *more, **options):
    if path == '/auth/authenticate':
      had.append('Authorization' in member.session.headers)
    return post(self, member, path, *more, **options)

  monkeypatch.setattr(endpoints.Endpoints, '_post', look)
  store = opened(cluster.hosts)
  forget_logins(cluster)
  store.holder()
  assert had == [False, True]


@cluster_lib.needed
def test_password_that_was_changed_is_read_anew(
  cluster, environment, opened, tmp_path
):
  store = opened(cluster.hosts)
  token = store.acquire('a', 120)
  forget_logins(cluster)
  (tmp_path / 'password').write_text('wrong')
  with pytest.raises(lease.StoreError, match='check ZAYA_ETCD_USER'):
    store.renew(token)
  (tmp_path / 'password').write_text(SECRET)
  store.renew(token)


def test_password_is_not_sent_unencrypted_to_another_machine(
  tmp_path, monkeypatch
):
  (tmp_path / 'password').write_text(SECRET)
  settings = {
    'ZAYA_ETCD_USER': 'zaya',
    'ZAYA_ETCD_PASSWORD_FILE': str(tmp_path / 'password'),
  }
  for hosts in (['127.0.0.1:1'], ['[::1]:1'], ['localhost:1']):
    endpoints.Endpoints('etcd://', hosts, settings)
  with pytest.raises(lease.StoreError, match='unencrypted to etcd-1:2379'):
    endpoints.Endpoints('etcd://', ['127.0.0.1:1', 'etcd-1:2379'], settings)


@contextlib.contextmanager
def answering(code, content):
  """A server that answers the same to all; gives HOST:PORT."""

  class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
      self.rfile.read(int(self.headers['Content-Length']))
      self.send_response(code)
      self.send_header('Content-Length', str(len(content)))
      self.end_headers()
      self.wfile.write(content)

    def log_message(self, *unused):
      pass

  with http.server.HTTPServer(('127.0.0.1', 0), Handler) as server:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
      yield f'127.0.0.1:{server.server_port}'
    finally:
      server.shutdown()
      thread.join()


@pytest.mark.parametrize(
  'code, content',
  [
    (200, b'<html>\nwelcome\n</html>'),
    (200, b'[]'),
    (200, b''),
    (404, b'404 page not found'),
    (429, b'{"error": "etcdserver: mvcc: database space exceeded"}'),
    (500, b'x\n' * 100_000),
    (503, b'{"error": "etcdserver: no leader"}'),
  ],
)
def test_answer_of_no_etcd_is_one_short_sentence(
  opened, tmp_path, code, content
):
  (tmp_path / 'run').mkdir()
  with answering(code, content) as host:
    with pytest.raises(lease.StoreError, match='does not answer') as caught:
      opened(host)
  assert '\n' not in str(caught.value) and len(str(caught.value)) < 400
  assert caught.value.exit_code == 75


def test_environment_names_no_proxy(opened, tmp_path, monkeypatch):
  (tmp_path / 'run').mkdir()
  with answering(200, b'{}') as host, answering(500, b'proxy') as proxy:
    monkeypatch.setenv('http_proxy', f'http://{proxy}')
    opened(host)
