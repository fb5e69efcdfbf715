# SPDX-License-Identifier: Apache-2.0
"""Order, repeats and packing, against lists that are made by hand."""

import json
import random

import numpy as np
import pytest

from pipelines import prepare
from pipelines.prepare import layout
from pipelines.shards import documents
from tests.support import chats, shuffled

SMALL = {'record_tokens': 64, 'shard_tokens': 2**14}


def _write(path, texts):
  path.write_text(''.join(json.dumps({'text': t}) + '\n' for t in texts))
  return str(path)


def _documents(folder, data, split):
  listed = documents.Documents(folder, data, split)
  return listed.between(0, 10**12)


@pytest.fixture(params=[2**19, 7])
def at_once(request, monkeypatch):
  """All documents in one pass, or in many."""
  monkeypatch.setattr(layout, '_AT_ONCE', request.param)


def test_neighbours_of_the_input_are_none_in_the_shards(tmp_path, at_once):
  texts = [f'text {i}' for i in range(2000)]
  data = prepare.prepare(
    _write(tmp_path / 'a.jsonl', texts),
    tmp_path / 'out',
    val_fraction=0.0,
    **SMALL,
  )
  found = _documents(tmp_path / 'out', data, 'train')
  lines = np.array([d.line for d in found])
  assert sorted(lines) == list(range(1, 2001))
  assert [texts[n - 1] for n in lines] == shuffled.in_order(texts)
  assert abs(np.corrcoef(lines[1:], lines[:-1])[0, 1]) < 0.1
  assert (abs(np.diff(lines)) == 1).sum() < 10


@pytest.mark.parametrize('dedup', [True, False])
def test_equal_texts_are_once_and_on_one_side(tmp_path, at_once, dedup):
  rng = random.Random(1)
  texts = [f'text {rng.randrange(60)}' for _ in range(200)]
  data = prepare.prepare(
    _write(tmp_path / 'a.jsonl', texts),
    tmp_path / 'out',
    val_fraction=0.2,
    dedup=dedup,
    **SMALL,
  )
  sides = {
    s: [texts[d.line - 1] for d in _documents(tmp_path / 'out', data, s)]
    for s in ('train', 'val')
  }
  assert not set(sides['train']) & set(sides['val'])
  assert set(sides['train']) | set(sides['val']) == set(texts)
  left = 200 - len(sides['train']) - len(sides['val'])
  assert sum(data.left_out.values()) == left
  if dedup:
    assert left == 200 - len(set(texts))
    assert all(len(s) == len(set(s)) for s in sides.values())
  else:
    assert list(data.left_out) == ['duplicates of held-out documents']
    assert all(len(s) > len(set(s)) for s in sides.values())


def test_leak_would_be_noticed(tmp_path, monkeypatch):
  texts = [f'text {i % 50}' for i in range(200)]
  monkeypatch.setattr(
    layout,
    '_without_repeats',
    lambda rows, held_out, *_: (np.ones(len(rows), bool), held_out),
  )
  data = prepare.prepare(
    _write(tmp_path / 'a.jsonl', texts),
    tmp_path / 'out',
    val_fraction=0.2,
    **SMALL,
  )
  hashes = [
    {d.hash for d in _documents(tmp_path / 'out', data, s)}
    for s in ('train', 'val')
  ]
  assert hashes[0] & hashes[1]


def test_no_more_is_held_out_than_asked_for(tmp_path, at_once):
  source = _write(tmp_path / 'a.jsonl', [f'text {i:04}' for i in range(500)])
  settings = {'val_fraction': 0.5, **SMALL}
  free = prepare.prepare(source, tmp_path / 'free', **settings)
  capped = prepare.prepare(
    source, tmp_path / 'capped', val_tokens=205, **settings
  )
  each = 1 + len('text 0000')
  assert capped.splits['val'].tokens == 200 == 20 * each
  assert sum(s.documents for s in capped.splits.values()) == 500
  first = _documents(tmp_path / 'free', free, 'val')[:20]
  assert [d.line for d in _documents(tmp_path / 'capped', capped, 'val')] == [
    d.line for d in first
  ]
  one = prepare.prepare(source, tmp_path / 'one', val_tokens=1, **settings)
  assert one.splits['val'].documents == 1


def test_limit_of_held_out_tokens_divides_no_equal_texts(tmp_path, at_once):
  texts = [f'text {i // 4:02}' for i in range(200)]
  source = _write(tmp_path / 'a.jsonl', texts)
  each = 1 + len('text 00')
  for most in range(20 * each, 24 * each, each):
    data = prepare.prepare(
      source,
      tmp_path / f'{most}',
      val_fraction=0.5,
      val_tokens=most,
      dedup=False,
      **SMALL,
    )
    train, val = (
      {d.hash for d in _documents(tmp_path / f'{most}', data, s)}
      for s in ('train', 'val')
    )
    assert val and not train & val
    assert data.splits['val'].tokens < most + 4 * each


def _empty(found, lengths, room):
  used = sum(lengths)
  windows = sum(-(-sum(lengths[i] for i in b) // room) for b in found if b)
  return 1 - used / (windows * room)


def test_bins_leave_almost_nothing_empty():
  rng = np.random.default_rng(0)
  room = 4096
  lengths = np.clip(rng.lognormal(6.5, 1.0, 4096), 8, room).astype(int)
  lengths = lengths.tolist()
  found = layout.bins(lengths, room, 0)
  assert sorted(i for b in found for i in b) == list(range(len(lengths)))
  assert all(sum(lengths[i] for i in b) <= room for b in found)
  assert _empty(found, lengths, room) <= 0.002
  # One after the other, as they come.
  windows, left = 1, room
  for length in lengths:
    windows, left = (windows, left) if length <= left else (windows + 1, room)
    left -= length
  assert 1 - sum(lengths) / (windows * room) > 0.08


def test_bins_by_hand():
  assert layout.bins([5, 3, 4, 2], 8, 0) == [[], [0, 1], [2, 3]]
  assert layout.bins([5, 3, 4, 2], 8, 5) == [[0], [1, 2], [3]]
  # A long one comes first, and others fill its last window.
  assert layout.bins([2, 19, 3], 8, 0) == [[], [1, 0, 2]]
  assert layout.bins([2, 16], 8, 2) == [[0], [1]]
  assert layout.bins([], 8, 3) == [[]]


@pytest.mark.parametrize('buffer', [16, 2**12])
def test_chats_are_whole_and_windows_almost_full(tmp_path, monkeypatch, buffer):
  monkeypatch.setattr(layout, '_BUFFER', buffer)
  rng = random.Random(0)
  folder = chats.tokenizer_folder(tmp_path / 'tokenizer')
  rows = [
    {
      'messages': [
        {'role': 'user', 'content': f'{i}'},
        {'role': 'assistant', 'content': 'x' * rng.randrange(1, 60)},
      ]
    }
    for i in range(600)
  ]
  (tmp_path / 'a.jsonl').write_text('\n'.join(map(json.dumps, rows)))
  window = 128
  data = prepare.prepare(
    str(tmp_path / 'a.jsonl'),
    tmp_path / 'out',
    tokenizer=str(folder),
    val_fraction=0.0,
    record_tokens=256,
    window_tokens=window,
  )
  found = _documents(tmp_path / 'out', data, 'train')
  assert sorted(d.line for d in found) == list(range(1, 601))
  sizes = {
    i: len(f'{i - 1}') + len(row['messages'][1]['content']) + 21
    for i, row in enumerate(rows, 1)
  }
  for document in found:
    size = sizes[document.line]
    assert document.start // window == (document.start + size - 1) // window
  assert 1 - sum(sizes.values()) / data.splits['train'].tokens < 0.04
