# SPDX-License-Identifier: Apache-2.0

import json
import pickle

import numpy as np
import pytest
import tokenizers
from tokenizers import models

from pipelines import errors, tokenizer

TEXT = 'def f(x):\n\treturn "añ☃🙂 e\u0301"  # <bos> and <eos>\r\n'


@pytest.fixture(scope='module')
def bpe():
  return tokenizer.train_bpe([TEXT * 3, 'return return return'], 280)


def _word_level(tmp_path, special):
  inner = tokenizers.Tokenizer(models.WordLevel({'a': 0}, unk_token='a'))
  inner.add_special_tokens(special)
  path = tmp_path / 'tokenizer.json'
  inner.save(str(path))
  return tokenizer.load(str(path))


def test_bytes_are_their_own_ids():
  ids = tokenizer.load('bytes').encode('aé')
  assert ids.dtype == np.int32
  assert ids.tolist() == [0x61, 0xC3, 0xA9]


def test_bytes_decode_replaces_broken_and_drops_special():
  assert (
    tokenizer.load('bytes').decode([257, 0x61, 0xC3, 258, 300]) == 'a\ufffd'
  )


def test_any_text_survives_the_round_trip(bpe):
  for each in (tokenizer.load('bytes'), bpe):
    assert each.decode(each.encode(TEXT)) == TEXT


def test_trained_vocabulary_has_the_size_asked_for_and_compresses(bpe):
  assert bpe.vocab_size == 280
  assert len(bpe.encode(TEXT)) < len(TEXT.encode())
  assert (bpe.pad_id, bpe.bos_id, bpe.eos_id) == (0, 1, 2)


def test_special_tokens_in_text_stay_text(bpe):
  special = {bpe.pad_id, bpe.bos_id, bpe.eos_id}
  assert not special & set(bpe.encode('<bos><eos><pad>').tolist())


def test_saved_tokenizer_is_the_same(bpe, tmp_path):
  bpe.save(tmp_path)
  again = tokenizer.load(str(tmp_path))
  assert again.sha256 == bpe.sha256
  assert again.encode(TEXT).tolist() == bpe.encode(TEXT).tolist()


def test_stream_never_shows_half_a_character(bpe):
  for each in (tokenizer.load('bytes'), bpe):
    stream = each.stream_decoder()
    parts = [stream.push(i) for i in each.encode(TEXT).tolist()]
    assert all('\ufffd' not in part for part in parts)
    assert ''.join(parts) + stream.flush() == TEXT


def test_tokenizer_of_another_process_is_the_same():
  made = tokenizer.train_bpe(['abc abc'], 260)
  again = pickle.loads(pickle.dumps(made))
  text = 'abc <eos> <pad>'
  assert again.encode(text).tolist() == made.encode(text).tolist()
  assert made.eos_id not in made.encode(text)
  assert (again.sha256, again.name) == (made.sha256, made.name)


def test_stream_of_a_json_tokenizer_flushes_what_is_broken():
  plain = tokenizer.train_bpe(['a'], 259)  # No merges: a token is a byte.
  ids = plain.encode('ab\u2603').tolist()
  assert len(ids) == 2 + 3
  stream = plain.stream_decoder()
  shown = ''.join(stream.push(i) for i in ids[:-1])
  assert shown == 'ab'
  assert shown + stream.flush() == plain.decode(ids[:-1]) == 'ab\ufffd'


def test_stream_of_bytes_flushes_what_is_broken():
  stream = tokenizer.load('bytes').stream_decoder()
  assert (stream.push(0xC3), stream.push(257), stream.flush()) == (
    '',
    '',
    '\ufffd',
  )


@pytest.mark.parametrize(
  'special, expected',
  [
    (['<pad>', '<bos>', '<eos>'], (1, 2, 3)),
    (['<s>', '</s>'], (2, 1, 2)),
    (['<|endoftext|>'], (1, 1, 1)),
    (['</s>'], (1, 1, 1)),
  ],
)
def test_special_tokens_are_found_by_name(tmp_path, special, expected):
  found = _word_level(tmp_path, special)
  assert (found.pad_id, found.bos_id, found.eos_id) == expected
  assert found.vocab_size == 1 + len(special)


def test_no_special_token_is_refused(tmp_path):
  with pytest.raises(errors.DataError, match='no added token') as caught:
    _word_level(tmp_path, ['<mask>'])
  assert caught.value.exit_code == 2


def test_missing_file_is_refused():
  with pytest.raises(errors.DataError, match='nowhere.json is not a file'):
    tokenizer.load('nowhere.json')


@pytest.mark.parametrize(
  'content', [b'{', b'[]', b'{"a": 1}', b'\xff', b'{"model": {"vocab": {}}}']
)
def test_other_files_are_refused(tmp_path, content):
  path = tmp_path / 'tokenizer.json'
  path.write_bytes(content)
  with pytest.raises(errors.DataError, match='is not a tokenizer.json'):
    tokenizer.load(str(path))


def test_hash_follows_the_content(bpe):
  content = json.loads(bpe.serialized)
  vocab = content['model']['vocab']
  vocab['!'], vocab['"'] = vocab['"'], vocab['!']
  other = tokenizer.from_json(json.dumps(content).encode(), 'other')
  assert other.vocab_size == bpe.vocab_size
  assert other.sha256 != bpe.sha256


@pytest.mark.parametrize('kind', ['bytes', 'bpe'])
def test_json_has_the_same_ids_and_puts_bos_in_front(kind, bpe):
  ours = bpe if kind == 'bpe' else tokenizer.load('bytes')
  inner = tokenizers.Tokenizer.from_str(ours.to_json().decode())
  inner.encode_special_tokens = True
  for text in (TEXT, '', ' ', ''.join(map(chr, range(256))), '\n\n  a'):
    wanted = [ours.bos_id, *ours.encode(text)]
    assert inner.encode(text).ids == wanted
    assert inner.decode(wanted) == text
  pair = [ours.bos_id, *ours.encode('a'), *ours.encode('b')]
  assert inner.encode('a', 'b').ids == pair


def test_json_is_read_as_the_same_tokenizer(bpe):
  for ours in (tokenizer.load('bytes'), bpe):
    again = tokenizer.from_json(ours.to_json(), 'again')
    assert again.special_ids == ours.special_ids
    assert again.vocab_size == ours.vocab_size
    assert again.encode(TEXT).tolist() == ours.encode(TEXT).tolist()
    assert again.decode([0x61, 0xC3]) == ours.decode([0x61, 0xC3])
    assert again.to_json() == ours.to_json()  # It has bos already.
