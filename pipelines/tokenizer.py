# SPDX-License-Identifier: Apache-2.0
"""Text to token ids and back: plain bytes, or any `tokenizer.json`.

Text is only ever text: a special token that is spelled out in a document is
split like other characters, so documents cannot forge their own boundaries.
Only what a chat template has written is read with its special tokens.
"""

import codecs
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from pipelines import chat, errors

FILE_NAME = 'tokenizer.json'
SPECIAL_TOKENS = ('<pad>', '<bos>', '<eos>')

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokenizer:
  """What every tokenizer offers.

  Attributes:
    name: 'bytes', or the path or description it was made from.
    sha256: hex digest that identifies its meaning.
    vocab_size: one more than the largest id.
    pad_id: fills the end of the last record.
    bos_id: starts every document.
    eos_id: ends generation.
  """

  name: str
  sha256: str
  vocab_size: int
  pad_id: int
  bos_id: int
  eos_id: int

  @property
  def special_ids(self) -> tuple[int, int, int]:
    """Ids that no text has: in what a model writes, its end."""
    return self.pad_id, self.bos_id, self.eos_id

  @property
  def stop_ids(self) -> tuple[int, ...]:
    """Ids that end what a model writes, the end of a turn among them."""
    return self.special_ids

  def encode(self, text: str) -> np.ndarray:
    """Returns the ids of `text`, int32 [N], without special tokens."""
    return self.encode_batch([text])[0]

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    """Returns the ids of each text, int32 [N]."""
    raise NotImplementedError

  @property
  def template(self) -> chat.Template:
    """What writes conversations; raises DataError where there is none."""
    return chat.none()

  def encode_chat(self, turns: chat.Turns) -> tuple[np.ndarray, np.ndarray]:
    """Encodes what `template.render_with_mask` has written.

    Returns:
      The ids, int32 [N], special tokens among them and none added; and bool
      [N], whether a token has a character that counts.
    """
    raise NotImplementedError

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of `ids`; special and unknown ids are left out."""
    raise NotImplementedError

  def stream_decoder(self) -> 'StreamDecoder':
    """Returns a decoder that is given one id after the other."""
    raise NotImplementedError

  def save(self, folder: str | os.PathLike[str]) -> None:
    """Writes what `load` needs into `folder`."""
    raise NotImplementedError

  def to_json(self) -> bytes:
    """A `tokenizer.json` of the same ids that puts bos in front of a text."""
    raise NotImplementedError


class StreamDecoder:
  """Decodes ids one by one; never gives out half a character."""

  def __init__(self, push: Callable[[int], str], flush: Callable[[], str]):
    self.push = push  # Id to the characters that it completes.
    self.flush = flush  # What is left at the end.


def load(name_or_path: str) -> Tokenizer:
  """Loads 'bytes', a `tokenizer.json`, or the folder that holds one.

  Raises:
    DataError: if there is no such file, it is not a tokenizer, or it has
      neither a token that starts a text nor one that ends it.
  """
  if name_or_path == 'bytes':
    return _BYTES
  path = pathlib.Path(name_or_path)
  if path.is_dir():
    path = path / FILE_NAME
  if not path.is_file():
    raise errors.DataError(
      f'--data.tokenizer={name_or_path}: {path} is not a file; give '
      "'bytes' or the path of a tokenizer.json."
    )
  beside = chat.read_files(path.parent)
  return from_json(path.read_bytes(), name_or_path, beside)


def from_json(
  serialized: bytes, name: str, beside: Mapping[str, bytes] | None = None
) -> Tokenizer:
  """Builds a tokenizer from the content of a `tokenizer.json`.

  Args:
    serialized: the content.
    name: for error messages.
    beside: the files of `chat.FILE_NAMES` that lie in its folder.
  """
  inner = tokenizers.Tokenizer.from_str(_checked(serialized, name))
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


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
  """Trains a byte-level BPE on `texts`; any text survives its round trip."""
  inner = tokenizers.Tokenizer(models.BPE())
  inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  inner.decoder = decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=vocab_size,
    special_tokens=list(SPECIAL_TOKENS),
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  inner.train_from_iterator(texts, trainer)
  return from_json(inner.to_str(pretty=True).encode(), f'bpe-{vocab_size}')


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ByteTokenizer(Tokenizer):
  """Ids 0-255 are the bytes of UTF-8."""

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    return [
      np.frombuffer(text.encode(), np.uint8).astype(np.int32) for text in texts
    ]

  def decode(self, ids: Iterable[int]) -> str:
    return bytes(i for i in map(int, ids) if i < 256).decode(errors='replace')

  def stream_decoder(self) -> StreamDecoder:
    decoder = codecs.getincrementaldecoder('utf-8')('replace')
    return StreamDecoder(
      push=lambda i: decoder.decode(bytes([i]) if i < 256 else b''),
      flush=lambda: decoder.decode(b'', True),
    )

  def save(self, folder: str | os.PathLike[str]) -> None:
    del folder  # The name says it all.

  def to_json(self) -> bytes:
    # The byte-level alphabet: bytes that print stand for themselves, the others
    # for the characters from 256 on.
    printing = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printing]
    codes = dict(zip(printing, printing, strict=True))
    codes |= {byte: 256 + i for i, byte in enumerate(others)}
    vocab = {chr(code): byte for byte, code in codes.items()}
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(
      add_prefix_space=False, use_regex=False
    )
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(list(SPECIAL_TOKENS))
    return _with_bos(inner, self.bos_id)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _JsonTokenizer(Tokenizer):
  """A `tokenizer.json`, kept to the byte so that its hash stays the same."""

  serialized: bytes = dataclasses.field(repr=False)
  beside: Mapping[str, bytes] = dataclasses.field(repr=False)
  inner: tokenizers.Tokenizer = dataclasses.field(repr=False)

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
    files = {**self.beside, FILE_NAME: self.serialized}
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
    return _with_bos(inner, self.bos_id)

  def stream_decoder(self) -> StreamDecoder:
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

    return StreamDecoder(push=push, flush=flush)

  def save(self, folder: str | os.PathLike[str]) -> None:
    for name, content in {**self.beside, FILE_NAME: self.serialized}.items():
      pathlib.Path(folder, name).write_bytes(content)


def _with_bos(inner: tokenizers.Tokenizer, bos_id: int) -> bytes:
  """The JSON of a tokenizer that puts bos in front where specials are added."""
  bos = inner.id_to_token(bos_id)
  inner.post_processor = processors.TemplateProcessing(
    single=[bos, '$A'], pair=[bos, '$A', '$B'], special_tokens=[(bos, bos_id)]
  )
  return inner.to_str(pretty=True).encode()


def _checked(serialized: bytes, name: str) -> str:
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
  return text


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


_BYTES = _ByteTokenizer(
  name='bytes',
  sha256=hashlib.sha256(b'bytes: 256 pad, 257 bos, 258 eos').hexdigest(),
  vocab_size=259,
  pad_id=256,
  bos_id=257,
  eos_id=258,
)
