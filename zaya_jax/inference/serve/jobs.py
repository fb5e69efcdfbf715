# SPDX-License-Identifier: Apache-2.0
"""What the engine is asked for, and what it tells."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

STOP, LENGTH, ERROR = 'stop', 'length', 'error'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Token:
  """A token and how likely it was.

  Attributes:
    id: of the token.
    logprob: before temperature; None: not asked for, or nothing is before it.
    top: ids of the likeliest tokens there, with theirs, best first.
  """

  id: int
  logprob: float | None = None
  top: tuple[tuple[int, float], ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
  """What is new of a job.

  Attributes:
    text: characters that are sure to stay.
    tokens: that were made.
    prompt: the tokens of the prompt, where they were asked for.
    finish: STOP, LENGTH or ERROR with the last event; None before.
  """

  text: str = ''
  tokens: tuple[Token, ...] = ()
  prompt: tuple[Token, ...] = ()
  finish: str | None = None


@dataclasses.dataclass(eq=False, kw_only=True)
class Job:
  """A text to continue.

  Attributes:
    ids: the prompt, [L] int32, not empty.
    max_tokens: the most to add; with 0 only the prompt is read.
    tell: called with each event, in the engine's thread; must not block.
    temperature: 0: the likeliest token.
    top_p: samples from the likeliest tokens of this total probability.
    seed: of the samples.
    no_repeat: no sequence of this many tokens comes twice; 0: any may.
    stop: texts before which it ends.
    scored: whether tokens come with their probability.
    prompt_scored: whether those of the prompt do; then all of it is read.
    cached: tokens of the prompt that were known; told before any event.
  """

  ids: np.ndarray
  max_tokens: int
  tell: Callable[[Event], None]
  temperature: float = 0.0
  top_p: float = 1.0
  seed: int = 0
  no_repeat: int = 0
  stop: Sequence[str] = ()
  scored: bool = False
  prompt_scored: bool = False
  cached: int = 0
  # The engine's own.
  is_begun: bool = False
  read: int = 0  # Tokens of the prompt, which the cache holds.
  is_read: bool = False  # All but the last: takes part in the step.
  asked: int = 0  # Tokens that programs were started for.
  made: int = 0
  done: bool = False
  text: Any = None
  pieces: list[Any] = dataclasses.field(default_factory=list)

  @property
  def is_asked(self) -> bool:
    """Whether programs for all its tokens were started."""
    return self.asked >= self.max_tokens


def token(id_: int, at: Mapping[str, np.ndarray]) -> Token:
  """A token with what `sampling.scores` says where it stands."""
  if not at:
    return Token(id=int(id_))
  return Token(
    id=int(id_),
    logprob=float(at['logprob']),
    top=tuple(
      zip(at['top_ids'].tolist(), at['top_logprobs'].tolist(), strict=True)
    ),
  )
