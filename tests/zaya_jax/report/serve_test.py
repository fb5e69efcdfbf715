# SPDX-License-Identifier: Apache-2.0
"""--serve: who gets which page."""

import threading
import urllib.error
import urllib.request

import pytest

from tests.support import run_files
from zaya_jax import config as config_lib
from zaya_jax.report import page, serve


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  return run_files.write(tmp_path_factory.mktemp('serve') / 'run')


@pytest.fixture
def server(run):
  with serve.make_server([str(run)], 0) as made:
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()


def _get(server, path, host=None):
  port = server.server_port
  request = urllib.request.Request(f'http://127.0.0.1:{port}{path}')
  request.add_header('Host', host or f'127.0.0.1:{port}')
  opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
  try:
    with opener.open(request, timeout=30) as answer:
      return answer.status, answer.read()
  except urllib.error.HTTPError as error:
    with error:
      return error.code, error.read()


def test_server_listens_to_this_machine_alone(server):
  assert server.server_address[0] == '127.0.0.1'


def test_server_gives_the_page_as_it_is_now(server, run):
  code, body = _get(server, '/')
  assert code == 200 and b'done: step 200 of 200' in body
  kept = (run / 'metrics.jsonl').read_text()
  (run / 'metrics.jsonl').write_text(kept[: len(kept) // 2])
  assert b'stopped: step' in _get(server, '/report.html')[1]
  (run / 'metrics.jsonl').write_text(kept)
  assert _get(server, '/plotly.min.js')[1] == page.plotly().read_bytes()


@pytest.mark.parametrize(
  'path', ['/config.flags', '/../config.flags', '//etc/passwd', '/samples/']
)
def test_server_gives_nothing_else(server, path):
  assert _get(server, path)[0] == 404


def test_server_refuses_who_calls_it_by_another_name(server):
  assert _get(server, '/', host='evil.example')[0] == 403
  assert _get(server, '/', host=f'localhost:{server.server_port}')[0] == 200


def test_port_in_use_is_refused(server, run):
  with pytest.raises(config_lib.UsageError, match='--report.port=.* cannot be'):
    serve.serve([str(run)], server.server_port)


def test_serving_no_run_is_refused(tmp_path):
  with pytest.raises(config_lib.UsageError, match='There is no folder'):
    serve.serve([str(tmp_path / 'none')], 0)
