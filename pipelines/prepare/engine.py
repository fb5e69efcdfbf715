# SPDX-License-Identifier: Apache-2.0
"""What encodes plain text: the tokenizer, or a faster program with its ids.

`gigatoken` is many times as fast as `tokenizers` and reads the same files. It
is believed for as long as both give the same ids: of difficult texts at the
start, and of one text of each batch.
"""

import json
import logging
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from pipelines import errors
from pipelines import tokenizer as tokenizer_lib

Name = Literal['auto', 'tokenizers', 'gigatoken']

_LONGEST = 2**16  # Characters of a text that is encoded twice.
_DIFFICULT = (
  "Hello, world! It's 3.14159 or 1,000,000; won't, WE'LL, \"quoted\".",
  '  leading,  double   spaces \t tabs\t\t\r\n\r\n\n new lines \n  ',
  'def f(x):\n    return {"a": [1, 2], **x}  # comment\n\n\n\tpass\n',
  'über naïve Ångström e\u0301 ﬁ ½ ² ٣٤ 漢字かな交じり文 한국어 русский ไทย',
  '🙂👩‍👩‍👧‍👦🏳️‍🌈 \u200b\u00a0\u2028\ufeff\x00\x7f\ud7ff\U0010ffff',
  'http://example.org/a?b=c&d=%20 user@host /usr/bin CamelCaseWord_snake',
  'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa ---------- ........ =====',
  '<s></s><pad><bos><eos><unk><|endoftext|><|im_start|><mask>[CLS][SEP]',
)


class Engine:
  """Encodes as a tokenizer does, by that tokenizer."""

  name = 'tokenizers'

  def __init__(self, tokenizer: tokenizer_lib.Tokenizer):
    self._tokenizer = tokenizer

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    """Returns the ids of each text, [N], without special tokens."""
    return self._tokenizer.encode_batch(texts)


class _Gigatoken(Engine):
  name = 'gigatoken'

  def __init__(self, tokenizer: tokenizer_lib.Tokenizer, serialized: bytes):
    super().__init__(tokenizer)
    import gigatoken

    content = json.loads(serialized)
    added = content.get('added_tokens') or []
    # It would read special tokens that are spelled out as such.
    content['added_tokens'] = [a for a in added if not a.get('special')]
    self._inner = gigatoken.Tokenizer.from_json(json.dumps(content))
    self._batches = 0
    spelled = ' '.join(a['content'] for a in added[:64])
    texts = [*_DIFFICULT, spelled]
    if not self._agrees(texts, self._encode(texts)):
      raise ValueError('it gives other ids than tokenizers')

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    found = self._encode(texts)
    if texts:
      self._batches += 1
      i = self._batches * 7919 % len(texts)
      if len(texts[i]) <= _LONGEST and not self._agrees([texts[i]], [found[i]]):
        raise errors.DataError(
          'gigatoken gives other ids than tokenizers to the text that begins '
          f'with {texts[i][:40]!r}; use --data.engine=tokenizers.'
        )
    return found

  def _encode(self, texts: Sequence[str]) -> list[np.ndarray]:
    # Of one text, `layout` would be another.
    found = self._inner.encode_batch([*texts, '']).layout
    ids = np.asarray(found.content.data)
    ends = np.asarray(found.offsets.data).tolist()
    return [ids[ends[i] : ends[i + 1]] for i in range(len(texts))]

  def _agrees(self, texts: Sequence[str], found: Sequence[np.ndarray]) -> bool:
    expected = self._tokenizer.encode_batch(texts)
    return all(map(np.array_equal, expected, found))


def choose(tokenizer: tokenizer_lib.Tokenizer, wanted: Name) -> Engine:
  """Returns the engine; 'auto' is the fastest that is there and agrees.

  Raises:
    DataError: if 'gigatoken' is wanted and is not there or does not agree.
  """
  serialized = getattr(tokenizer, 'serialized', None)
  if wanted == 'tokenizers' or serialized is None:
    return Engine(tokenizer)
  key = wanted, tokenizer.sha256
  if key not in _chosen:
    try:
      _chosen[key] = _Gigatoken(tokenizer, serialized)
    except Exception as error:  # It raises what it likes, ImportError too.
      if wanted == 'gigatoken':
        raise errors.DataError(
          f'--data.engine=gigatoken cannot encode with {tokenizer.name} '
          f'({error}); pip install gigatoken, or use --data.engine=tokenizers.'
        ) from error
      if not isinstance(error, ImportError):  # There, and of no use.
        logging.warning('gigatoken does not encode: %s', error)
      _chosen[key] = Engine(tokenizer)
  return _chosen[key]


_chosen: dict[Any, Engine] = {}
