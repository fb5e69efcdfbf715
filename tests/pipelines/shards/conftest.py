# SPDX-License-Identifier: Apache-2.0
"""Shards behind a URL, and a folder of copies for each test."""

import pathlib
import uuid

import fsspec
import pytest

from pipelines import store
from pipelines.shards import copies, room
from pipelines.sources import readers


@pytest.fixture
def cache(monkeypatch, tmp_path):
  monkeypatch.setattr(store.time, 'sleep', lambda seconds: None)
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  monkeypatch.setattr(room, '_older_are_gone', False)
  yield tmp_path / 'cache'
  readers.SHARED.forget('')
  copies.keep_within(0)


@pytest.fixture
def url(shards, cache):
  place = f'memory://{uuid.uuid4()}/web'
  fs = fsspec.filesystem('memory')
  fs.makedirs(place)
  for path in pathlib.Path(shards).iterdir():
    fs.pipe_file(f'{place}/{path.name}', path.read_bytes())
  return place
