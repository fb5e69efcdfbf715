# SPDX-License-Identifier: Apache-2.0
"""Sidecars against a list of documents that is made from the tokens."""

import hashlib
import json

import numpy as np
import pytest
from array_record.python import array_record_module

from pipelines import errors, prepare
from pipelines.shards import documents, manifest

BOS = 257


def stream(folder, data, split):
  """The tokens of a split, read without our loader."""
  content = b''
  for shard in data.splits[split].shards:
    reader = array_record_module.ArrayRecordReader(str(folder / shard.name))
    content += b''.join(reader.read_all())
    reader.close()
  return np.frombuffer(content, data.dtype)[: data.splits[split].tokens]


def naive(folder, data, split):
  """(start, text) of each document, from the tokens alone."""
  tokens = stream(folder, data, split)
  starts = np.flatnonzero(tokens == BOS).tolist()
  return [
    (start, tokens[start + 1 : stop].astype(np.uint8).tobytes())
    for start, stop in zip(starts, [*starts[1:], len(tokens)], strict=True)
  ]


def text_hash(text):
  digest = hashlib.blake2b(text, digest_size=8).digest()
  return int.from_bytes(digest, 'little')


@pytest.mark.parametrize('split', ['train', 'val'])
def test_every_stretch_of_tokens_has_the_documents_that_are_in_it(
  shards, corpus, split
):
  data = manifest.load(shards)
  expected = naive(shards, data, split)
  stops = [start for start, _ in expected[1:]] + [data.splits[split].tokens]
  listed = documents.Documents(shards, data, split)
  assert listed.known
  for first in range(0, data.splits[split].tokens, 3):
    for last in (first + 1, first + 64, first + 500):
      found = listed.between(first, last)
      assert [(d.start, d.hash) for d in found] == [
        (start, text_hash(text))
        for (start, text), stop in zip(expected, stops, strict=True)
        if start < last and stop > first
      ]
  for document, (_, text) in zip(
    listed.between(0, 10**9), expected, strict=True
  ):
    assert (corpus / document.file).read_bytes() == text
    assert document.place == document.file


def test_rows_are_named_by_their_line(tmp_path):
  path = tmp_path / 'a.jsonl'
  texts = [f'text number {i}' for i in range(30)]
  lines = ''.join(json.dumps({'text': t}) + '\n\n' for t in texts)
  path.write_text(lines)
  out = tmp_path / 'out'
  data = prepare.prepare(str(path), out, record_tokens=64, val_fraction=0.3)
  seen = set()
  for split in ('train', 'val'):
    found = documents.Documents(out, data, split).between(0, 10**9)
    for document, (start, text) in zip(
      found, naive(out, data, split), strict=True
    ):
      assert (document.start, document.file) == (start, 'a.jsonl')
      assert document.place == f'a.jsonl:{document.line}'
      assert json.loads(lines.splitlines()[document.line - 1]) == {
        'text': text.decode()
      }
      seen.add(document.line)
  assert len(seen) == 30


def test_both_sides_of_a_single_document_are_it(tmp_path):
  path = tmp_path / 'a.txt'
  path.write_text('some text\n' * 50)
  out = tmp_path / 'out'
  data = prepare.prepare(str(path), out, record_tokens=64)
  for split in ('train', 'val'):
    [document] = documents.Documents(out, data, split).between(1, 2)
    [(_, text)] = naive(out, data, split)
    assert (document.place, document.hash) == ('a.txt', text_hash(text))


def test_nothing_is_between_nothing(shards):
  data = manifest.load(shards)
  listed = documents.Documents(shards, data, 'train')
  assert listed.between(5, 5) == listed.between(7, 3) == []
  assert listed.between(10**9, 10**9 + 1) != []  # The last one, padding.


def test_damaged_sidecar_is_named(shards):
  data = manifest.load(shards)
  path = manifest.documents_path(shards, data.splits['train'].shards[0])
  path.write_bytes(bytes(len(path.read_bytes())))
  with pytest.raises(errors.DataError, match=f'{path} differs') as caught:
    documents.Documents(shards, data, 'train').between(0, 1)
  assert caught.value.exit_code == 3


def test_missing_sidecar_is_named(shards):
  data = manifest.load(shards)
  path = manifest.documents_path(shards, data.splits['train'].shards[0])
  path.unlink()
  with pytest.raises(errors.DataError, match='cannot be read') as caught:
    documents.Documents(shards, data, 'train').between(0, 1)
  assert caught.value.exit_code == 3
