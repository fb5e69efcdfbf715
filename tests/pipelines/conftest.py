# SPDX-License-Identifier: Apache-2.0
"""A small corpus of twelve documents and its shards."""

import pytest

from pipelines import prepare

TEXTS = [f'Document {i}: ' + 'añ☃ ' * (5 + 3 * i) + '\n' for i in range(12)]


@pytest.fixture
def corpus(tmp_path):
  folder = tmp_path / 'corpus'
  folder.mkdir()
  for i, text in enumerate(TEXTS):
    (folder / f'{i:02}.txt').write_text(text)
  return folder


@pytest.fixture
def shards(tmp_path, corpus):
  """A folder with 64 tokens a record and two records a shard."""
  prepare.prepare(
    str(corpus),
    tmp_path / 'shards',
    val_fraction=0.3,
    record_tokens=64,
    shard_tokens=128,
  )
  return tmp_path / 'shards'
