# SPDX-License-Identifier: Apache-2.0
"""Pairs of answers through reading, records, windows and batches."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines import errors, loader, prepare, tokenizer
from pipelines.prepare.input import pairs
from tests.support import chats

USER = [{'role': 'user', 'content': '1+1'}]
TALK = [*USER, {'role': 'assistant', 'content': 'what?'}, USER[0]]


def said(text):
  return [{'role': 'assistant', 'content': text}]


# The same pair, written in each way.
SAME = {
  'texts': {'prompt': '1+1', 'chosen': '2', 'rejected': '11'},
  'messages': {'prompt': USER, 'chosen': said('2'), 'rejected': said('11')},
  'beside': {'messages': USER, 'chosen': '2', 'rejected': '11'},
  'whole': {'chosen': [*USER, *said('2')], 'rejected': [*USER, *said('11')]},
  'twice': {
    'prompt': '1+1',
    'chosen': [*USER, *said('2')],
    'rejected': [*USER, *said('11')],
  },
}


def prepared(tmp_path, rows, name='pairs.jsonl', **options):
  folder = chats.tokenizer_folder(tmp_path / 'tokenizer')
  path = tmp_path / name
  if name.endswith('.parquet'):
    pq.write_table(pa.Table.from_pylist(rows), path)
  else:
    path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  options = {
    'tokenizer': str(folder),
    'val_fraction': 0.0,
    'record_tokens': 256,
    **options,
  }
  return prepare.prepare(str(path), tmp_path / 'shards', **options)


def batch_of(tmp_path):
  (batch,) = loader.eval_batches(
    tmp_path / 'shards', split='train', seq_len=256, batch_size=1
  )
  return {name: array[0] for name, array in batch.items()}


def text(messages):
  """What the template of ChatML writes."""
  return ''.join(
    f'<|im_start|>{m["role"]}\n{m["content"]}<|im_end|>\n' for m in messages
  )


def expected(tmp_path, prompt, answer):
  """Ids of a conversation, and of what counts in it."""
  found = tokenizer.load(str(tmp_path / 'tokenizer'))
  turn = text([*prompt, *said(answer)])
  return [
    found.encode_chat([(part, True)])[0].tolist()
    for part in (turn, f'{answer}<|im_end|>')
  ]


def assert_pair(tmp_path, batch, prompt, answers):
  for number, answer in enumerate(answers, 1):
    whole, counted = expected(tmp_path, prompt, answer)
    mine = batch['segment_ids'] == number
    ids = batch['tokens'][mine].tolist()
    assert ids == whole
    assert batch['positions'][mine].tolist() == list(range(len(whole)))
    counts = mine & (batch['weights'] > 0)
    assert batch['targets'][counts].tolist() == counted


@pytest.mark.parametrize('kind', SAME)
def test_pair_is_two_conversations(tmp_path, kind):
  made = prepared(tmp_path, [SAME[kind]])
  assert made.pairs
  batch = batch_of(tmp_path)
  assert batch['segment_ids'].max() == 2
  assert_pair(tmp_path, batch, USER, ['2', '11'])
  with pytest.raises(AssertionError):
    assert_pair(tmp_path, batch, USER, ['11', '2'])


def test_only_the_answer_counts(tmp_path):
  """What the assistant has said in the prompt does not."""
  prepared(tmp_path, [{'prompt': TALK, 'chosen': '2', 'rejected': '11'}])
  assert_pair(tmp_path, batch_of(tmp_path), TALK, ['2', '11'])


def test_parquet_has_pairs_too(tmp_path):
  made = prepared(tmp_path, [SAME['texts'] | {'id': 3}], 'pairs.parquet')
  assert made.pairs
  assert_pair(tmp_path, batch_of(tmp_path), USER, ['2', '11'])


def test_no_pair_crosses_a_window(tmp_path):
  rows = [
    {'prompt': f'{i}?', 'chosen': 'a' * (i % 40), 'rejected': 'b' * (i % 23)}
    for i in range(1, 80)
  ]
  prepared(tmp_path, rows, window_tokens=128)
  seen = 0
  for batch in loader.eval_batches(
    tmp_path / 'shards', split='train', seq_len=128, batch_size=1
  ):
    segments, weights = batch['segment_ids'][0], batch['weights'][0]
    assert segments.max() % 2 == 0
    for number in range(1, segments.max() + 1):
      counted = batch['targets'][0][(segments == number) & (weights > 0)]
      letters = set(counted.tolist()[:-1])
      assert len(letters) <= 1
      seen += 1
  assert seen == 2 * 79


def test_longer_pairs_are_left_out(tmp_path):
  long = {'prompt': '?', 'chosen': 'a' * 90, 'rejected': 'b' * 90}
  made = prepared(tmp_path, [SAME['texts'], long], window_tokens=128)
  assert made.splits['train'].documents == 1
  (reason,) = made.skipped.values()
  assert 'tokens, more than a window' in reason


@pytest.mark.parametrize(
  'rows, rule',
  [
    ([{'chosen': 'a', 'rejected': 'b'}], 'a pair needs a prompt'),
    ([{'prompt': 3, 'chosen': 'a', 'rejected': 'b'}], "'prompt' is neither"),
    (
      [{'prompt': 'a', 'chosen': USER, 'rejected': 'b'}],
      "'chosen' does not end with what the assistant says",
    ),
    ([SAME['texts'], {'messages': [*USER, *said('2')]}], 'prepare them apart'),
  ],
)
def test_what_is_no_pair_is_refused(tmp_path, rows, rule):
  with pytest.raises(errors.DataError, match=rule):
    prepared(tmp_path, rows)


def test_row_with_one_answer_is_none():
  assert pairs.is_pair(SAME['texts'])
  assert not pairs.is_pair(SAME['texts'] | {'rejected': None})
  assert np.all([pairs.is_pair(row) for row in SAME.values()])
