# SPDX-License-Identifier: Apache-2.0
"""The search for settings, interpreted and tiny: it says a time for each."""

import pytest

from benchmarks import tune


@pytest.fixture(autouse=True)
def small(monkeypatch):
  monkeypatch.setattr(tune, 'CHANNELS', 16)
  for name in ('FORWARD', 'OF_QUERIES', 'OF_KEYS'):
    # The second is no setting: it must not end the search.
    monkeypatch.setattr(tune, name, ((16, 16, 4, 1), (0, 16, 4, 1)))
  monkeypatch.setattr(tune, 'SOFTMAX', ((16, 4),))
  monkeypatch.setattr(tune, 'PARTS', ((4, 8), (8, 8)))


@pytest.mark.parametrize('documents', [0, 9])
def test_attention(documents):
  rows = list(tune.tune_attention((1, 32), documents, 1))
  assert [row['kernel'] for row in rows[::2]] == [
    'forward',
    'of_queries',
    'of_keys',
  ]
  assert all(row['ms'] > 0 for row in rows[::2])
  assert all('failed' in row for row in rows[1::2])


def test_cross_entropy():
  rows = list(tune.tune_cross_entropy((16, 8, 40), 1))
  assert [(row['part'], row['logits']) for row in rows[1:]] == [
    (4, 'float32'),
    (4, 'bfloat16'),
    (8, 'float32'),
    (8, 'bfloat16'),
  ]
  assert all(row['ms'] > 0 for row in rows)
