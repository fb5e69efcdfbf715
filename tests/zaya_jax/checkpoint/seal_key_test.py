# SPDX-License-Identifier: Apache-2.0
"""Which keys are taken, and what they sign."""

import hashlib
import hmac

import pytest

from zaya_jax.checkpoint import errors, seal_key


@pytest.mark.parametrize('content', [None, b'', b'short \n', b'k' * 15 + b'\n'])
def test_unusable_key_is_a_usage_error(tmp_path, content):
  path = tmp_path / 'key'
  if content is not None:
    path.write_bytes(content)
  with pytest.raises(errors.CheckpointError, match='seal_key_file') as caught:
    with seal_key.trusting(str(path)):
      pass
  assert caught.value.exit_code == 2


@pytest.mark.parametrize('size', [16, 17, 200])
def test_text_is_signed_with_the_newest_key(tmp_path, size):
  expected = []
  for name in 'ab':
    (tmp_path / name).write_bytes(name.encode() * size + b'\n')
    key = name.encode() * size
    expected.append(hmac.new(key, b'text', hashlib.sha256).hexdigest())
  assert seal_key.sign(b'text') == {}
  with seal_key.trusting(str(tmp_path / 'a')):
    with seal_key.trusting(str(tmp_path / 'b')):
      assert seal_key.sign(b'text') == {'hmac': expected[1]}
      assert not seal_key.accepts(b'text', expected[0])
    assert seal_key.sign(b'text') == {'hmac': expected[0]}
    assert seal_key.accepts(b'text', expected[0])
    assert not seal_key.accepts(b'other', expected[0])
    assert not seal_key.accepts(b'text', None)
  assert seal_key.accepts(b'text', None)


def test_no_key_file_trusts_all():
  with seal_key.trusting(''):
    assert seal_key.sign(b'text') == {}


def test_first_of_several_keys_signs_and_all_are_accepted(tmp_path):
  ring, old, new = tmp_path / 'ring', b'o' * 20, 'ab' * 16
  (tmp_path / 'old').write_bytes(old + b'\n')
  ring.write_text(f'b:{new}\na:{old.decode()}\n')
  with seal_key.trusting(str(tmp_path / 'old')):
    before = seal_key.sign(b'text')
    assert seal_key.newest() == ''
  with seal_key.trusting(str(ring)):
    assert seal_key.newest() == 'b'
    now = seal_key.sign(b'text')
    assert now['key'] == 'b'
    assert seal_key.accepts(b'text', now['hmac'], 'b')
    assert seal_key.accepts(b'text', before['hmac'])  # It had no id.
    assert seal_key.accepts(b'text', before['hmac'], 'a')
    assert not seal_key.accepts(b'text', before['hmac'], 'b')
    assert not seal_key.accepts(b'text', before['hmac'], 'c')
    assert not seal_key.accepts(b'text', now['hmac'], ['b'])
  with seal_key.trusting(str(tmp_path / 'old')):
    assert not seal_key.accepts(b'text', now['hmac'], 'b')


def test_key_of_bytes_is_written_in_a_line_in_hexadecimal(tmp_path):
  old = bytes(range(200, 232))
  (tmp_path / 'old').write_bytes(old)
  (tmp_path / 'ring').write_text(f'new:{"k" * 16}\nold:{old.hex()}\n')
  with seal_key.trusting(str(tmp_path / 'old')):
    before = seal_key.sign(b'text')['hmac']
  with seal_key.trusting(str(tmp_path / 'ring')):
    assert seal_key.accepts(b'text', before)


def test_file_of_one_line_with_a_colon_is_the_key_that_it_was(tmp_path):
  text = f'id:{"k" * 16}'
  (tmp_path / 'key').write_text(text)
  before = hmac.new(text.encode(), b'text', hashlib.sha256).hexdigest()
  with seal_key.trusting(str(tmp_path / 'key')):
    assert seal_key.accepts(b'text', before)
    assert seal_key.sign(b'text')['key'] == 'id'


@pytest.mark.parametrize(
  'text, why',
  [
    (f'a:{"k" * 16}\na:{"l" * 16}', 'two keys of the id a'),
    (f'a:{"k" * 16}\nb:short', 'fewer than 16 bytes in its key b'),
  ],
)
def test_wrong_lines_of_keys_are_refused(tmp_path, text, why):
  (tmp_path / 'ring').write_text(text)
  with pytest.raises(errors.CheckpointError, match=why):
    with seal_key.trusting(str(tmp_path / 'ring')):
      pass


def test_key_of_the_environment_comes_before_that_of_flags(
  tmp_path, monkeypatch
):
  for name in 'ab':
    (tmp_path / name).write_text(name * 16)
  monkeypatch.setenv('ZAYA_SEAL_KEY_FILE', str(tmp_path / 'a'))
  expected = hmac.new(b'a' * 16, b'text', hashlib.sha256).hexdigest()
  for flag in ('', str(tmp_path / 'b')):  # No flagfile switches it off.
    with seal_key.trusting(flag):
      assert seal_key.sign(b'text') == {'hmac': expected}
      assert seal_key.where() == f'ZAYA_SEAL_KEY_FILE={tmp_path}/a'
  monkeypatch.setenv('ZAYA_SEAL_KEY_FILE', str(tmp_path / 'none'))
  with pytest.raises(errors.CheckpointError, match='ZAYA_SEAL_KEY_FILE='):
    with seal_key.trusting(''):
      pass
