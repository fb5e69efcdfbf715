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
  assert seal_key.sign(b'text') is None
  with seal_key.trusting(str(tmp_path / 'a')):
    with seal_key.trusting(str(tmp_path / 'b')):
      assert seal_key.sign(b'text') == expected[1]
      assert not seal_key.accepts(b'text', expected[0])
    assert seal_key.sign(b'text') == expected[0]
    assert seal_key.accepts(b'text', expected[0])
    assert not seal_key.accepts(b'other', expected[0])
    assert not seal_key.accepts(b'text', None)
  assert seal_key.accepts(b'text', None)


def test_no_key_file_trusts_all():
  with seal_key.trusting(''):
    assert seal_key.sign(b'text') is None
