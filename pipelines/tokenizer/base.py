# SPDX-License-Identifier: Apache-2.0
"""What a tokenizer offers, whatever its ids are."""

import abc
import dataclasses
import os
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import tokenizers
from tokenizers import processors

from pipelines import chat, errors

FILE_NAME = 'tokenizer.json'
SPECIAL_TOKENS = ('<pad>', '<bos>', '<eos>')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokenizer(abc.ABC):
  """Text to ids and back.

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

  @abc.abstractmethod
  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    """Returns the ids of each text, int32 [N]."""

  @property
  def template(self) -> chat.Template:
    """What writes conversations; raises DataError where there is none."""
    return chat.none()

  @property
  def template_sha256(self) -> str | None:
    """Hash of the template; None: there is none."""
    try:
      return self.template.sha256
    except errors.DataError:
      return None

  @abc.abstractmethod
  def encode_chat(self, turns: chat.Turns) -> tuple[np.ndarray, np.ndarray]:
    """Encodes what `template.render_with_mask` has written.

    Returns:
      The ids, int32 [N], special tokens among them and none added; and bool
      [N], whether a token has a character that counts.
    """

  @abc.abstractmethod
  def decode(self, ids: Iterable[int]) -> str:
    """Returns the text of `ids`; special and unknown ids are left out."""

  @abc.abstractmethod
  def stream_decoder(self) -> 'StreamDecoder':
    """Returns a decoder that is given one id after the other."""

  @abc.abstractmethod
  def save(self, folder: str | os.PathLike[str]) -> None:
    """Writes what `load` needs into `folder`."""

  @abc.abstractmethod
  def to_json(self) -> bytes:
    """A `tokenizer.json` of the same ids that puts bos in front of a text."""


class StreamDecoder:
  """Decodes ids one by one; never gives out half a character."""

  def __init__(self, push: Callable[[int], str], flush: Callable[[], str]):
    self.push = push  # Id to the characters that it completes.
    self.flush = flush  # What is left at the end.


def with_bos(inner: tokenizers.Tokenizer, bos_id: int) -> bytes:
  """The JSON of a tokenizer that puts bos in front where specials are added."""
  bos = inner.id_to_token(bos_id)
  inner.post_processor = processors.TemplateProcessing(
    single=[bos, '$A'], pair=[bos, '$A', '$B'], special_tokens=[(bos, bos_id)]
  )
  return inner.to_str(pretty=True).encode()
