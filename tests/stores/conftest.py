# SPDX-License-Identifier: Apache-2.0
"""Object stores on this machine, with the real drivers: `make store-test`.

A test asks for `bucket`; with `both` it gets one of each kind.
"""

import contextlib
import os
import types
import uuid

# Before gcsfs is imported: it would ask the real cloud about a bucket.
os.environ['GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT'] = 'false'

import fsspec
import gcsfs
import gcsfs.retry
import pytest
import s3fs

from pipelines import store
from tests.stores import faults as faults_lib
from tests.stores import servers

DRIVERS = (s3fs.S3FileSystem, gcsfs.GCSFileSystem)


@pytest.fixture(scope='session')
def running():
  """By scheme: the environment of a server's clients, and its faults."""
  with contextlib.ExitStack() as ended:
    found = {}
    for scheme, start in (('s3', servers.s3), ('gs', servers.gs)):
      faults = faults_lib.Faults()
      found[scheme] = ended.enter_context(start(faults)), faults
    yield found


@pytest.fixture
def forget():
  """A function: drivers look at the environment once more."""

  def call():
    for driver in DRIVERS:
      driver.clear_instance_cache()

  return call


@pytest.fixture
def scheme(request):
  """'s3', unless a test asks for others."""
  return getattr(request, 'param', 's3')


@pytest.fixture
def faults(running, scheme, forget, monkeypatch, tmp_path):
  """What the store does wrong; it is reached by its URL."""
  environment, found = running[scheme]
  for name, value in environment.items():
    monkeypatch.setenv(name, value)
  monkeypatch.setenv('HOME', str(tmp_path))
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  # Nobody waits before the next try.
  monkeypatch.setattr(store, '_WAIT_S', 0.001)
  monkeypatch.setattr(s3fs.S3FileSystem, 'retries', 1)
  asyncio = types.SimpleNamespace(sleep=_no_sleep)
  monkeypatch.setattr(gcsfs.retry, 'asyncio', asyncio)
  forget()
  yield found
  found.end()
  forget()


async def _no_sleep(seconds):
  del seconds


@pytest.fixture
def bucket(faults, scheme):
  """The URL of an empty bucket."""
  name = f'bucket-{uuid.uuid4()}'
  fsspec.filesystem(scheme).mkdir(name)
  return f'{scheme}://{name}'
