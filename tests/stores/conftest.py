# SPDX-License-Identifier: Apache-2.0
"""Object stores on this machine, with the real drivers: `make store-test`."""

import pytest
import s3fs
from moto import server as moto

from pipelines import store
from tests.stores import faults as faults_lib


@pytest.fixture(scope='session')
def server():
  """A server of S3 with a bucket; its environment variables, its faults."""
  found = faults_lib.Faults()
  started = moto.ThreadedMotoServer('127.0.0.1', 0, verbose=False)
  started.start()
  # Nothing else of it can be reached.
  started._server.app = found.before(started._server.app)
  host, port = started.get_host_and_port()
  environment = {
    'AWS_ENDPOINT_URL': f'http://{host}:{port}',
    'AWS_ACCESS_KEY_ID': 'key',
    'AWS_SECRET_ACCESS_KEY': 'secret',
    'AWS_DEFAULT_REGION': 'us-east-1',
    # Nobody but us tries again, and no cloud is asked for keys.
    'AWS_MAX_ATTEMPTS': '1',
    'AWS_EC2_METADATA_DISABLED': 'true',
  }
  yield environment, found
  started.stop()


@pytest.fixture
def faults(server, monkeypatch, tmp_path):
  """The store is reached by its URL; what it does wrong."""
  environment, found = server
  for name, value in environment.items():
    monkeypatch.setenv(name, value)
  monkeypatch.setenv('HOME', str(tmp_path))
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  monkeypatch.setattr(store, '_WAIT_S', 0.001)
  monkeypatch.setattr(s3fs.S3FileSystem, 'retries', 1)
  s3fs.S3FileSystem.clear_instance_cache()
  yield found
  found.end()
  s3fs.S3FileSystem.clear_instance_cache()
