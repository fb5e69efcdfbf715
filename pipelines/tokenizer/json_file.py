# SPDX-License-Identifier: Apache-2.0
"""A tokenizer from the content of a `tokenizer.json`, or trained to be one."""

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from pipelines import chat, errors
from pipelines.tokenizer import base

_PAD_NAMES = ('<pad>', '[PAD]', '<|pad|>', '<|padding|>')
_BOS_NAMES = (
  '<bos>',
  '<s>',
  '[BOS]',
  '<|begin_of_text|>',
  '<|startoftext|>',
  '<|endoftext|>',
)
_EOS_NAMES = ('<eos>', '</s>', '[EOS]', '<|end_of_text|>', '<|endoftext|>')


def from_json(
  serialized: bytes, name: str, beside: Mapping[str, bytes] | None = None
) -> base.Tokenizer:
  """Builds a tokenizer from the content of a `tokenizer.json`.

  Args:
    serialized: the content.
    name: for error messages.
    beside: the files of `chat.FILE_NAMES` that lie in its folder.
  """
  inner = _parsed(serialized, name)
  inner.encode_special_tokens = True
  inner.no_padding()
  inner.no_truncation()
  pad_id, bos_id, eos_id = _special_ids(inner, name)
  return _JsonTokenizer(
    name=name,
    sha256=hashlib.sha256(serialized).hexdigest(),
    vocab_size=1 + max(inner.get_vocab(with_added_tokens=True).values()),
    pad_id=pad_id,
    bos_id=bos_id,
    eos_id=eos_id,
    serialized=serialized,
    beside=beside or {},
    inner=inner,
  )


def train_bpe(texts: Iterable[str], vocab_size: int) -> base.Tokenizer:
  """Trains a byte-level BPE on `texts`; any text survives its round trip."""
  inner = tokenizers.Tokenizer(models.BPE())
  inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  inner.decoder = decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=vocab_size,
    special_tokens=list(base.SPECIAL_TOKENS),
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  inner.train_from_iterator(texts, trainer)
  return from_json(inner.to_str(pretty=True).encode(), f'bpe-{vocab_size}')


@dataclasses.dataclass(frozen=True, kw_only=True)
class _JsonTokenizer(base.Tokenizer):
  """A `tokenizer.json`, kept to the byte so that its hash stays the same."""

  serialized: bytes = dataclasses.field(repr=False)
  beside: Mapping[str, bytes] = dataclasses.field(repr=False)
  inner: tokenizers.Tokenizer = dataclasses.field(repr=False)

  def __reduce__(self):
    # The library forgets, when pickled, that special tokens are text.
    return from_json, (self.serialized, self.name, self.beside)

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    encodings = self.inner.encode_batch_fast(
      list(texts), add_special_tokens=False
    )
    return [np.array(e.ids, np.int32) for e in encodings]

  @property
  def stop_ids(self) -> tuple[int, ...]:
    try:
      end = self.inner.token_to_id(self.template.end_of_turn or '')
    except errors.DataError:  # No template, or one that does more than turns.
      end = None
    ids = (*self.special_ids, end)
    return tuple(dict.fromkeys(i for i in ids if i is not None))

  @functools.cached_property
  def template(self) -> chat.Template:
    files = {**self.beside, base.FILE_NAME: self.serialized}
    return chat.Template.from_files(files, self.name)

  def encode_chat(self, turns: chat.Turns) -> tuple[np.ndarray, np.ndarray]:
    text = ''.join(text for text, _ in turns)
    encoding = self._reads_special.encode(text, add_special_tokens=False)
    counts = np.repeat([c for _, c in turns], [len(t) for t, _ in turns])
    # Counting characters before each: a token is as many as it covers.
    before = np.insert(np.cumsum(counts), 0, 0)
    begin, end = np.array(encoding.offsets, np.int64).reshape(-1, 2).T
    return np.array(encoding.ids, np.int32), before[end] > before[begin]

  @functools.cached_property
  def _reads_special(self) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer.from_str(self.serialized.decode())
    inner.no_padding()
    inner.no_truncation()
    # It would only cut white space out of the places of tokens.
    inner.post_processor = None
    return inner

  def decode(self, ids: Iterable[int]) -> str:
    return self.inner.decode(list(map(int, ids)))

  def to_json(self) -> bytes:
    if self.inner.encode('').ids == [self.bos_id]:
      return self.serialized
    inner = tokenizers.Tokenizer.from_str(self.serialized.decode())
    return base.with_bos(inner, self.bos_id)

  def stream_decoder(self) -> base.StreamDecoder:
    stream = decoders.DecodeStream(skip_special_tokens=True)
    ids, given = [], []

    def push(i: int) -> str:
      ids.append(int(i))
      given.append(stream.step(self.inner, ids[-1]) or '')
      return given[-1]

    def flush() -> str:
      # The stream waits for the other bytes of a character that never come.
      whole, done = self.decode(ids), ''.join(given)
      return whole[len(done) :] if whole.startswith(done) else ''

    return base.StreamDecoder(push=push, flush=flush)

  def save(self, folder: str | os.PathLike[str]) -> None:
    for name, content in {
      **self.beside,
      base.FILE_NAME: self.serialized,
    }.items():
      pathlib.Path(folder, name).write_bytes(content)


def _parsed(serialized: bytes, name: str) -> tokenizers.Tokenizer:
  """Refuses what is not a tokenizer; the library itself is less clear."""
  try:
    text = serialized.decode()
    content = json.loads(text)
  except ValueError as error:
    raise errors.DataError(
      f'--data.tokenizer={name} is not a tokenizer.json: {error}.'
    ) from error
  model = content.get('model') if isinstance(content, dict) else None
  if not isinstance(model, dict) or 'vocab' not in model:
    raise errors.DataError(
      f"--data.tokenizer={name} is not a tokenizer.json: it has no 'model' "
      "with a 'vocab'."
    )
  try:
    return tokenizers.Tokenizer.from_str(text)
  except Exception as error:  # The library raises no other.
    raise errors.DataError(
      f'--data.tokenizer={name} is not a tokenizer.json: {error}.'
    ) from error


def _special_ids(
  inner: tokenizers.Tokenizer, name: str
) -> tuple[int, int, int]:
  """Finds the ids of pad, bos and eos among the added tokens."""
  added = {
    token.content: i for i, token in inner.get_added_tokens_decoder().items()
  }

  def first(names: Sequence[str]) -> int | None:
    return next((added[n] for n in names if n in added), None)

  bos, eos = first(_BOS_NAMES), first(_EOS_NAMES)
  if bos is None and eos is None:
    raise errors.DataError(
      f'--data.tokenizer={name} has no added token that starts or ends a '
      f'text; add one of {", ".join(_BOS_NAMES)}.'
    )
  bos = eos if bos is None else bos
  eos = bos if eos is None else eos
  pad = first(_PAD_NAMES)
  return (eos if pad is None else pad), bos, eos
