# SPDX-License-Identifier: Apache-2.0
"""The tokenizer without a file: ids 0-255 are the bytes of UTF-8."""

import codecs
import dataclasses
import hashlib
import os
from collections.abc import Iterable, Sequence

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from pipelines import chat
from pipelines.tokenizer import base


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ByteTokenizer(base.Tokenizer):
  """Ids 0-255 are the bytes of UTF-8."""

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    return [
      np.frombuffer(text.encode(), np.uint8).astype(np.int32) for text in texts
    ]

  def encode_chat(self, turns: chat.Turns) -> tuple[np.ndarray, np.ndarray]:
    chat.none()

  def decode(self, ids: Iterable[int]) -> str:
    return bytes(i for i in map(int, ids) if i < 256).decode(errors='replace')

  def stream_decoder(self) -> base.StreamDecoder:
    decoder = codecs.getincrementaldecoder('utf-8')('replace')
    return base.StreamDecoder(
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
    inner.add_special_tokens(list(base.SPECIAL_TOKENS))
    return base.with_bos(inner, self.bos_id)


BYTES = _ByteTokenizer(
  name='bytes',
  sha256=hashlib.sha256(b'bytes: 256 pad, 257 bos, 258 eos').hexdigest(),
  vocab_size=259,
  pad_id=256,
  bos_id=257,
  eos_id=258,
)
