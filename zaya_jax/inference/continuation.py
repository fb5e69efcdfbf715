# SPDX-License-Identifier: Apache-2.0
"""The text of tokens as they come, up to a stop text."""

from collections.abc import Sequence

from pipelines import tokenizer as tokenizer_lib


class Continuation:
  """A continuation as it grows, up to the first of some stop texts.

  Args:
    tokenizer: of the tokens.
    stop: texts before which it ends.

  Attributes:
    whole: the text so far.
    done: whether it has ended.
  """

  def __init__(self, tokenizer: tokenizer_lib.Tokenizer, stop: Sequence[str]):
    self._decoder = tokenizer.stream_decoder()
    self._stop = [text for text in stop if text]
    self._taken = 0  # Characters given to the user.
    self.whole = ''
    self.done = False

  def push(self, token: int) -> None:
    """Appends a token; -1: the text has ended."""
    if self.done:
      return
    if token < 0:
      self.finish()
    else:
      self._append(self._decoder.push(token))

  def finish(self) -> None:
    """Ends the text, with what the decoder still holds."""
    if not self.done:
      self._append(self._decoder.flush())
      self.done = True

  def take(self) -> str:
    """What is new, and sure not to be the beginning of a stop text."""
    ready = len(self.whole)
    if not self.done:
      ready -= max((_overlap(self.whole, s) for s in self._stop), default=0)
    piece = self.whole[self._taken : ready]
    self._taken = max(self._taken, ready)
    return piece

  def _append(self, piece: str) -> None:
    self.whole += piece
    ends = [self.whole.find(text) for text in self._stop]
    if found := [end for end in ends if end >= 0]:
      self.whole = self.whole[: min(found)]
      self.done = True


def _overlap(text: str, stop: str) -> int:
  """Characters at the end of `text` with which `stop` begins."""
  for size in range(min(len(text), len(stop)), 0, -1):
    if text.endswith(stop[:size]):
      return size
  return 0
