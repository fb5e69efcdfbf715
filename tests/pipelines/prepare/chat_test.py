# SPDX-License-Identifier: Apache-2.0
"""Conversations through reading, records, windows and batches."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import pre_tokenizers

from pipelines import errors, loader, pack, prepare, tokenizer
from pipelines.prepare import bundle
from pipelines.shards import manifest
from tests.support import chats, shuffled

A, B = [
  [
    {'role': 'user', 'content': question},
    {'role': 'assistant', 'content': answer},
  ]
  for question, answer in [('1+1', '2'), ('é', 'ok ☃')]
]
END, BEGIN, BOS = 258, 257, 256  # <|im_end|>, <|im_start|>, <|endoftext|>


def _write(tmp_path, rows, name='chats.jsonl'):
  path = tmp_path / name
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  return str(path)


def _prepare(tmp_path, rows, template='chatml', **options):
  folder = chats.tokenizer_folder(tmp_path / 'tokenizer', template)
  options = {
    'tokenizer': str(folder),
    'val_fraction': 0.0,
    'record_tokens': 256,
    **options,
  }
  data = prepare.prepare(_write(tmp_path, rows), tmp_path / 'shards', **options)
  return data, tmp_path / 'shards'


def _text(messages):
  """What the template of ChatML writes."""
  return ''.join(
    f'<|im_start|>{m["role"]}\n{m["content"]}<|im_end|>\n' for m in messages
  )


def _batch(folder, seq_len=256, split='train'):
  (batch,) = loader.eval_batches(
    folder, split=split, seq_len=seq_len, batch_size=1
  )
  return {name: array[0] for name, array in batch.items()}


def _ids(text, begin=BEGIN, end=END):
  """By hand: < and > stand for the begin and the end of a turn."""
  alphabet = pre_tokenizers.ByteLevel.alphabet()
  order = {c: i for i, c in enumerate(sorted(alphabet))}
  pieces = pre_tokenizers.ByteLevel(add_prefix_space=False)
  found = []
  for part in text.replace('<', '\0<\0').replace('>', '\0>\0').split('\0'):
    special = {'<': [begin], '>': [end]}.get(part)
    words = pieces.pre_tokenize_str(part) if special is None else ()
    found += special or [order[c] for word, _ in words for c in word]
  return found


def test_only_what_the_assistant_says_counts(tmp_path):
  data, folder = _prepare(tmp_path, [{'messages': A}, {'messages': B}])
  order = ['<user\n1+1>\n<assistant\n2>\n', '<user\né>\n<assistant\nok ☃>\n']
  said = ['2>', 'ok ☃>']
  if shuffled.in_order([_text(A), _text(B)])[0] != _text(A):
    order, said = order[::-1], said[::-1]
  whole = _ids(''.join(order))
  batch = _batch(folder)
  size = len(whole)
  assert batch['tokens'][:size].tolist() == whole
  learnt = batch['targets'][batch['weights'] > 0].tolist()
  assert learnt == _ids(''.join(said))
  assert data.splits['train'].counted_tokens == len(learnt)
  assert data.splits['train'].bytes == len('2<|im_end|>ok ☃<|im_end|>'.encode())
  assert data.splits['train'].bytes_per_token == pytest.approx(
    data.splits['train'].bytes / len(learnt)
  )
  first = len(_ids(order[0]))
  segments = [1] * first + [2] * (size - first)
  assert batch['segment_ids'][:size].tolist() == segments
  assert not batch['segment_ids'][size:].any()
  assert batch['positions'][first] == 0


def test_what_the_template_writes_is_all_there_is(tmp_path):
  _, folder = _prepare(tmp_path, [{'messages': A}, {'messages': B}], 'gemma')
  tokens = _batch(folder)['tokens'].tolist()
  assert tokens.count(257) == 2  # <bos>, once for each conversation.
  assert tokens[0] == 257


def test_end_of_text_within_a_conversation_begins_no_document(tmp_path):
  template = '{% for m in messages %}{{ m.content }}<|endoftext|>{% endfor %}'
  folder = chats.tokenizer_folder(tmp_path / 'tokenizer')
  (folder / 'chat_template.jinja').write_text(template)
  shards = tmp_path / 'shards'
  prepare.prepare(
    _write(tmp_path, [{'messages': A}, {'messages': B}]),
    shards,
    tokenizer=str(folder),
    val_fraction=0.0,
    record_tokens=64,
  )
  batch = _batch(shards, 64)
  end = '<|endoftext|>'
  sizes = [
    len(text.replace(end, '.').encode())
    for text in shuffled.in_order([f'1+1{end}2{end}', f'é{end}ok ☃{end}'])
  ]
  expected = [1] * sizes[0] + [2] * sizes[1]
  assert batch['segment_ids'][: len(expected)].tolist() == expected
  assert batch['weights'].sum() == len('2.ok ☃.'.encode())


def test_plain_text_beside_conversations_counts_whole(tmp_path):
  rows = [{'text': 'plain <|im_end|>'}, {'messages': A}, {'text': 'more'}]
  data, folder = _prepare(tmp_path, rows)
  batch = _batch(folder)
  first, last = _ids('plain '), _ids('more')
  spelled = len('<|im_end|>')  # As text: no special token.
  # Plain text comes before conversations.
  start = 1
  if shuffled.in_order(['more', rows[0]['text']])[0] == 'more':
    start += len(last) + 1
  assert batch['tokens'][0] == batch['tokens'][start - 1] == BOS
  assert batch['tokens'][start : start + len(first)].tolist() == first
  counted = len(first) + spelled + len(_ids('2>')) + 1 + len(last)
  assert batch['weights'].sum() == counted
  assert batch['segment_ids'].max() == 3
  assert data.splits['train'].counted_tokens == counted + 1  # The first BOS.


def test_plain_records_of_a_mixed_folder_store_no_mask(tmp_path, monkeypatch):
  sizes = []
  writer = bundle.array_record_module.ArrayRecordWriter

  class Spy:
    def __init__(self, *args):
      self._inner = writer(*args)

    def write(self, record):
      sizes.append(len(record))
      return self._inner.write(record)

    def close(self):
      self._inner.close()

  monkeypatch.setattr(bundle.array_record_module, 'ArrayRecordWriter', Spy)
  rows = [{'text': 'x' * 63}, {'messages': A}, {'text': 'y' * 200}]
  _prepare(tmp_path, rows, record_tokens=64)
  assert sizes[:4] == [64 * 2] * 4
  assert sizes[4:] == [64 * 3]


def test_manifest_of_plain_text_is_what_it_was(tmp_path):
  data, folder = _prepare(tmp_path, [{'text': 'one'}, {'text': 'two'}])
  content = json.loads((folder / manifest.FILE_NAME).read_text())
  assert content['format_version'] == 3
  assert 'template_sha256' not in content
  assert 'window_tokens' not in content['settings']
  assert 'counted_tokens' not in content['splits']['train']
  assert manifest.load(folder) == data
  assert manifest.load(folder).sha256 == content['sha256']


def test_manifest_says_what_is_masked(tmp_path):
  data, folder = _prepare(tmp_path, [{'messages': A}, {'messages': B}])
  again = manifest.load(folder)
  assert again == data
  assert again.format_version == 3
  assert (
    again.template_sha256 == manifest.load_tokenizer(folder).template.sha256
  )


@pytest.mark.parametrize('seq_len', [8, 16, 64])
def test_windows_count_each_answer_once_whatever_was_read_before(
  tmp_path, seq_len
):
  rows = [{'messages': A}, {'text': 'between'}, {'messages': B}] * 9
  data, folder = _prepare(tmp_path, rows, record_tokens=64, dedup=False)
  batches = list(
    loader.eval_batches(folder, split='train', seq_len=seq_len, batch_size=2)
  )
  weights = sum(batch['weights'].sum() for batch in batches)
  records = data.splits['train'].records
  # The first token of a record is nobody's target.
  assert 0 <= data.splits['train'].counted_tokens - weights <= records
  options = {'seq_len': seq_len, 'batch_size': 4, 'seed': 3}
  with loader.make_train_loader([str(folder)], **options) as straight:
    expected = [next(straight) for _ in range(6)]
    state = straight.state
  with loader.make_train_loader([str(folder)], **options) as resumed:
    resumed.state = state // 2
    for batch in expected[3:]:
      again = next(resumed)
      assert all((again[k] == batch[k]).all() for k in batch)


@pytest.mark.parametrize('window', [0, 64])
def test_conversation_that_fits_is_not_cut(tmp_path, window):
  rows = [
    {
      'messages': [
        A[0],
        {'role': 'assistant', 'content': f'{i:02}' * (1 + i % 9)},
      ]
    }
    for i in range(1, 40)
  ]
  rows[7] = {'text': 'plain ' * 20}
  data, folder = _prepare(
    tmp_path, rows, record_tokens=128, window_tokens=window
  )
  whole, answers = 0, 0
  for batch in loader.eval_batches(
    folder, split='train', seq_len=64, batch_size=1
  ):
    segments, tokens = batch['segment_ids'][0], batch['tokens'][0]
    for segment in range(1, segments.max() + 1):
      here = tokens[segments == segment].tolist()
      whole += here[0] == BEGIN and here.count(END) == 2
    answers += batch['weights'].sum()
  assert (whole == 38) == bool(window)
  assert data.settings.window_tokens == window
  if window:
    plain = 1 + 120 - 2  # Of the plain text, the first token of each record.
    said = sum(2 * (1 + i % 9) + 1 for i in range(1, 40) if i != 8)
    assert plain - 3 <= answers - said <= plain + 3
    assert data.splits['train'].counted_tokens == said + 121


def test_padding_within_a_window_is_no_document():
  windows = np.array([[9, 1, -1, -1, 9, 2, 3]], np.int32)
  for pad in (8, 9):  # Of some tokenizers it is BOS.
    batch = pack.model_inputs(windows, bos_id=9, pad_id=pad)
    assert batch['tokens'].tolist() == [[9, 1, pad, pad, 9, 2]]
    assert batch['weights'].tolist() == [[1, 0, 0, 1, 1, 1]]
    assert batch['segment_ids'].tolist() == [[1, 1, 0, 0, 2, 2]]
    assert batch['positions'].tolist() == [[0, 1, 0, 0, 0, 1]]


def test_older_names_and_parquet_give_the_same(tmp_path):
  older = [
    {'from': 'human', 'value': '1+1'},
    {'from': 'gpt', 'value': '2'},
  ]
  _, folder = _prepare(
    tmp_path, [{'conversations': older}, {'text': None, 'messages': B}]
  )
  expected = _batch(folder)
  pq.write_table(
    pa.table({'text': pa.nulls(2), 'messages': [A, B], 'id': [1, 2]}),
    tmp_path / 'a.parquet',
  )
  prepare.prepare(
    str(tmp_path / 'a.parquet'),
    tmp_path / 'again',
    tokenizer=str(tmp_path / 'tokenizer'),
    val_fraction=0.0,
    record_tokens=256,
  )
  found = _batch(tmp_path / 'again')
  assert all((found[name] == expected[name]).all() for name in expected)


def test_nothing_to_learn_is_left_out_and_named(tmp_path):
  rows = [{'messages': A}, {'messages': []}, {'messages': A[:1]}] * 2
  data, _ = _prepare(tmp_path, rows)
  assert data.splits['train'].documents == 1
  assert data.left_out == {'duplicates': 1}
  assert data.num_skipped == 4
  assert data.skipped['chats.jsonl:2'] == 'no messages'
  assert data.skipped['chats.jsonl:3'] == 'no assistant turn'


@pytest.mark.parametrize(
  'row, sentence',
  [
    ({'messages': 'x'}, r"field 'messages' .* is not a list of messages"),
    ({'messages': ['x']}, 'message 1 is not a JSON object'),
    ({'messages': [A[0], {'content': 'x'}]}, "message 2 has no 'role'"),
    ({'messages': [A[0], {'role': 'assistant'}]}, "2 .role 'assis.* no 'cont"),
    ({'messages': A[1:] + A}, 'refuses the conversation: .*must alternate'),
    ({'messages': A, 'tools': 'x'}, "field 'tools' is not a list"),
    ({'turns': A}, "has no field 'text'.*turns"),
  ],
)
def test_bad_row_is_named(tmp_path, row, sentence):
  with pytest.raises(errors.DataError, match=f'line 2.*{sentence}') as caught:
    _prepare(tmp_path, [{'messages': A}, row], 'gemma')
  assert caught.value.exit_code == 2
  assert not (tmp_path / 'shards').exists()


def test_template_that_counts_nothing_leaves_out(tmp_path):
  folder = chats.tokenizer_folder(tmp_path / 'tokenizer')
  template = '{{ bos_token }}{% generation %}{% endgeneration %}x'
  (folder / 'chat_template.jinja').write_text(template)
  with pytest.raises(errors.DataError, match='holds no text.*nothing in it'):
    prepare.prepare(
      _write(tmp_path, [{'messages': A}] * 2),
      tmp_path / 'shards',
      tokenizer=str(folder),
    )


@pytest.mark.parametrize(
  'options', [{'tokenizer': 'bytes'}, {'train_tokenizer': 300}]
)
def test_tokenizer_without_a_template_is_refused(tmp_path, options):
  options = {'tokenizer': 'bytes', **options}
  with pytest.raises(errors.DataError, match='line 1: .*chat template'):
    _prepare(tmp_path, [{'messages': A}, {'messages': B}], **options)


def test_one_conversation_cannot_be_divided(tmp_path):
  with pytest.raises(errors.DataError, match='val_fraction=0'):
    _prepare(tmp_path, [{'messages': A}], val_fraction=0.1)


def test_held_out_conversations_compare_with_zlib_of_what_counts(tmp_path):
  rows = [
    {'messages': [A[0], {'role': 'assistant', 'content': str(i)}]}
    for i in range(20)
  ]
  data, folder = _prepare(tmp_path, rows, val_fraction=0.5, record_tokens=1024)
  val = data.splits['val']
  assert val.bytes < val.tokens
  assert val.zlib_bits_per_byte > 0
  assert _batch(folder, 1024, 'val')['weights'].sum() == val.counted_tokens


def test_exchanged_template_of_the_shards_is_refused(tmp_path):
  _, folder = _prepare(tmp_path, [{'messages': A}, {'messages': B}])
  (folder / 'chat_template.jinja').write_text('other')
  with pytest.raises(errors.DataError, match='template .* is not') as caught:
    manifest.load_tokenizer(folder)
  assert caught.value.exit_code == 3


def test_another_template_is_another_data_set(tmp_path):
  rows = [{'messages': A}, {'messages': B}]
  _prepare(tmp_path, rows)
  other = tmp_path / 'tokenizer' / 'chat_template.jinja'
  other.write_text(chats.CHATML.replace('im_end', 'im_start'))
  with pytest.raises(errors.DataError, match='template .* is not the one'):
    prepare.prepare(
      str(tmp_path / 'chats.jsonl'),
      tmp_path / 'shards',
      tokenizer=str(tmp_path / 'tokenizer'),
      val_fraction=0.0,
      record_tokens=256,
    )


def test_shards_keep_the_template(tmp_path):
  _, folder = _prepare(tmp_path, [{'messages': A}, {'messages': B}])
  kept = manifest.load_tokenizer(folder)
  kept.save(tmp_path)
  again = tokenizer.load(str(tmp_path))
  assert again.template.render(A) == kept.template.render(A)
  assert '<|im_start|>assistant\n2<|im_end|>' in kept.template.render(A)


def test_bits_of_a_window():
  windows = np.array([[9, 1, 2, 9, 3, 4, -1]], np.int32)
  windows[0, 2] |= pack.UNCOUNTED
  windows[0, 3] |= pack.EXCEPTION  # BOS, but no document begins.
  windows[0, 4] |= pack.EXCEPTION | pack.UNCOUNTED  # Begins without BOS.
  batch = pack.model_inputs(windows, bos_id=9, pad_id=8)
  assert batch['tokens'].tolist() == [[9, 1, 2, 9, 3, 4]]
  assert batch['targets'].tolist() == [[1, 2, 9, 3, 4, 8]]
  assert batch['weights'].tolist() == [[1, 0, 1, 0, 1, 0]]
  assert batch['segment_ids'].tolist() == [[1, 1, 1, 1, 2, 2]]
  assert batch['positions'].tolist() == [[0, 1, 2, 3, 0, 1]]


def test_counting_everything_would_be_noticed(tmp_path, monkeypatch):
  monkeypatch.setattr(pack, 'UNCOUNTED', 0)
  with pytest.raises(AssertionError):
    test_only_what_the_assistant_says_counts(tmp_path)
